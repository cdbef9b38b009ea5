"""Every kind of failure in every phase, here and in a process: each call ends once, with the right error and cause.

Kinds that would take the host along happen in processes only.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from trouble_zoo import BlockingTroubled, Troubled

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")

RAISED = {
    "exception": r"ValueError.*planned trouble",
    "unpicklable exception": r"Unpicklable.*planned trouble",
    "SystemExit": r"SystemExit.*planned trouble",
    "OOM by rlimit": r"MemoryError",
}
DEADLY = {
    "SIGKILL": r"killed by SIGKILL \(kill -9, or the kernel out of memory\)",
    "SIGSEGV": r"killed by SIGSEGV",
    "os._exit": r"exited with code 9",
}
STUCK = ["SIGSTOP", "hang without the GIL", "hang with the GIL"]
HERE = ["exception", "unpicklable exception", "SystemExit"]  # what leaves the host unharmed
PATIENCE_S = 0.6  # the deadline that ends what is stuck
CLASSES = pytest.mark.parametrize("cls", [Troubled, BlockingTroubled])


def place(where: str, phase: str, kind: str) -> rt.Where:
    if where == "here":
        return rt.here
    return rt.process(env={"TROUBLE_AT_IMPORT": kind} if phase == "import" else {})


CASES = [
    (where, phase, kind)
    for where in ("here", "process")
    for phase in ("import", "__init__", "on_start")
    for kind in [*RAISED, *DEADLY, *STUCK]
    if where == "process" or (kind in HERE and phase != "import")
]


@pytest.mark.parametrize(("where", "phase", "kind"), CASES)
async def test_trouble_before_ready_fails_the_start_with_its_cause(where: str, phase: str, kind: str) -> None:
    async with rt.System(stop_timeout_s=PATIENCE_S) as system:
        spec = rt.spec(Troubled, phase, kind)
        if kind in STUCK:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await system.spawn(spec, where=place(where, phase, kind))
        else:
            with pytest.raises(rt.StartFailed) as caught:
                await system.spawn(spec, where=place(where, phase, kind))
            assert re.search((RAISED | DEADLY)[kind], str(caught.value), re.DOTALL)
            if kind in RAISED:
                assert "in trouble" in caught.value.cause.traceback
        assert await (await system.spawn(rt.spec(Troubled, "", ""))).handler() == "fine"


LATER = pytest.mark.parametrize(
    ("where", "kind"),
    [("process", kind) for kind in [*RAISED, *DEADLY, *STUCK]] + [("here", kind) for kind in HERE],
)


@CLASSES
@LATER
@pytest.mark.parametrize("phase", ["handler", "stream"])
async def test_trouble_in_a_handler_or_stream_ends_the_call_with_its_cause(
    cls: type[Troubled], kind: str, where: str, phase: str
) -> None:
    policy = rt.Restart("permanent", backoff_s=0.01)

    async def ask(actor: Troubled) -> None:
        if phase == "handler":
            await actor.handler()
        else:
            async with actor.stream.open() as items:
                assert [item async for item in items] == []

    async with rt.System(stop_timeout_s=PATIENCE_S) as system:
        actor = await system.spawn(rt.spec(cls, phase, kind), where=place(where, phase, kind), restart=policy)
        if kind in RAISED:
            with pytest.raises(rt.RemoteError) as raised:
                await ask(actor)
            assert re.search(RAISED[kind], str(raised.value), re.DOTALL)
            assert "in trouble" in raised.value.traceback
            with pytest.raises(rt.RemoteError):  # it lives on
                await ask(actor)
        elif kind in DEADLY:
            with pytest.raises(rt.ActorDied, match=DEADLY[kind]):
                await ask(actor)
            async for event in system.watch(actor):  # the policy is obeyed
                if event == rt.Ready(2):
                    break
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await ask(actor)


@CLASSES
@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("where", ["here", "process"])
async def test_an_error_in_on_stop_does_not_keep_a_restart_from_starting(
    cls: type[Troubled], where: str, kind: str
) -> None:
    async with asyncio.timeout(20), rt.System() as system:
        actor = await system.spawn(rt.spec(cls, "on_stop", kind), where=place(where, "on_stop", kind))
        await system.restart(actor)
        assert await actor.handler() == "fine"


@CLASSES
@LATER
async def test_trouble_in_on_stop_neither_hangs_nor_escapes(cls: type[Troubled], kind: str, where: str) -> None:
    async with asyncio.timeout(10):
        async with rt.System(stop_timeout_s=PATIENCE_S) as system:
            actor = await system.spawn(rt.spec(cls, "on_stop", kind), where=place(where, "on_stop", kind))
            assert await actor.handler() == "fine"
        with pytest.raises(rt.NotInSystem):
            await actor.handler()
