"""DEAD and STALLED are different things: a stall is reported with stacks, and acted upon only if the policy says so."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from actor_zoo import Abortable, Limited, Relay

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System(stop_timeout_s=0.5) as system:
        yield system


async def first(system: rt.System, ref: object, kind: type[rt.Event]) -> rt.Event:
    async with asyncio.timeout(10):
        async for event in system.watch(ref):
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} came")


async def test_a_stalled_handler_is_reported_with_its_stack_and_left_alone(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Limited), name="limited", where=rt.process())
    call = asyncio.ensure_future(actor.sleep(0.8))
    event = await first(system, actor, rt.Stalled)
    assert isinstance(event, rt.Stalled)
    assert event.where == "handler 'sleep'"
    assert "in sleep" in event.stacks
    assert await call == "slept"
    assert await actor.pid() > 0


async def test_a_short_handler_and_an_idle_actor_are_never_stalled(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Limited), where=rt.process())
    seen: list[rt.Event] = []

    async def collect() -> None:
        async for event in system.watch(actor):
            seen.append(event)

    collector = asyncio.ensure_future(collect())
    for _ in range(8):
        await actor.sleep(0.05)
    await asyncio.sleep(0.5)
    collector.cancel()
    assert seen == [rt.Ready(1)]


async def test_by_policy_a_stalled_actor_is_killed_and_restarted(system: rt.System) -> None:
    policy = rt.Restart("permanent", backoff_s=0.01, on_stall="kill")
    actor = await system.spawn(rt.spec(Limited), where=rt.process(), restart=policy)
    with pytest.raises(rt.ActorDied, match=r"stalled in handler 'hold_the_interpreter', and killed by its policy"):
        await actor.hold_the_interpreter()
    async with asyncio.timeout(10):
        async for event in system.watch(actor):
            if event == rt.Ready(2):
                break
    assert await actor.sleep(0.01) == "slept"


async def test_a_stopped_process_is_stalled_and_says_why_there_are_no_stacks(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Limited), where=rt.process())
    call = asyncio.ensure_future(actor.sleep(0.2))
    await asyncio.sleep(0.1)
    os.kill(system.pids()["Limited-1"], signal.SIGSTOP)
    event = await first(system, actor, rt.Stalled)
    assert isinstance(event, rt.Stalled)
    assert event.stacks == "no stacks: the process is stopped by a signal"
    os.kill(system.pids()["Limited-1"], signal.SIGCONT)
    assert await call == "slept"


async def test_a_stall_is_noticed_by_a_caller_in_another_process(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Limited), where=rt.process())
    relay = await system.spawn(rt.spec(StallRelay, actor), where=rt.process())
    call = asyncio.ensure_future(relay.sleep(0.8))
    assert isinstance(await first(system, actor, rt.Stalled), rt.Stalled)
    assert await call == "slept"


class StallRelay(Relay):
    @rt.call
    async def sleep(self, seconds: float) -> str:
        return await self.target.sleep(seconds)  # type: ignore[attr-defined,no-any-return]


async def test_a_declared_phase_that_takes_too_long_is_reported(
    system: rt.System, caplog: pytest.LogCaptureFixture
) -> None:
    await system.spawn(rt.spec(Limited, stall_phase=True), name="loading", where=rt.process())
    assert "actor 'loading' is stalled in phase 'load weights'" in caplog.text


@pytest.mark.parametrize("method", ["sleep", "hold_the_interpreter"])
async def test_a_worker_in_a_long_call_is_stopped_within_the_deadline(method: str) -> None:
    async with rt.System(stop_timeout_s=0.5) as system:
        actor = await system.spawn(rt.spec(Limited), where=rt.process())
        call = asyncio.ensure_future(actor.sleep(30) if method == "sleep" else actor.hold_the_interpreter())
        await asyncio.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    with pytest.raises(rt.ActorDied):
        await call


async def test_on_abort_frees_a_stuck_handler_so_that_the_stop_is_in_order(tmp_path: Path) -> None:
    path = tmp_path / "farewell"
    async with rt.System(stop_timeout_s=5) as system:
        actor = await system.spawn(rt.spec(Abortable, str(path)), where=rt.process())
        call = asyncio.ensure_future(actor.stuck())
        await asyncio.sleep(0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert path.read_text() == "stopped in order"
    assert await call == "aborted"


async def test_a_ping_is_answered_whatever_the_interpreter_does(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Limited), name="limited", where=rt.process())
    assert 0 < await system.ping(actor) < 5
    call = asyncio.ensure_future(actor.hold_the_interpreter())
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        assert await asyncio.gather(*[system.ping(actor) for _ in range(20)])
    pid = system.pids()["limited"]
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(0.1)  # all its threads have stopped by then
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await system.ping(actor)
    late = asyncio.ensure_future(system.ping(actor))
    os.kill(pid, signal.SIGCONT)
    assert await late > 0
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(0.1)
    last = asyncio.ensure_future(system.ping(actor))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(rt.ActorError, match="ended before it answered"):
        await last
    with pytest.raises(rt.ActorDied):
        await call


class Toiler(rt.BlockingActor):
    """Works for longer than a handler may take, and says so in between, or does not."""

    stall_after_s = 0.2

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx

    @rt.call
    def toil(self, rounds: int, tells: bool) -> str:
        for _ in range(rounds):
            time.sleep(0.05)
            if tells:
                self.ctx.progress()
        return "done"


@pytest.mark.parametrize("tells", [True, False])
async def test_a_long_handler_that_says_that_it_is_at_work_is_not_stalled(system: rt.System, tells: bool) -> None:
    """B7: a long step is progress."""
    actor = await system.spawn(rt.spec(Toiler), name="toiler", where=rt.process())
    stalls: list[rt.Event] = []

    async def collect() -> None:
        async for event in system.watch(actor):
            if isinstance(event, rt.Stalled):
                stalls.append(event)

    collector = asyncio.ensure_future(collect())
    call = asyncio.ensure_future(actor.toil(24, tells))
    await asyncio.sleep(0.1)
    before, handler = system.progress(actor)
    assert handler == "toil"
    assert await call == "done"
    after, handler = system.progress(actor)
    assert handler == ""
    assert after - before >= (15 if tells else 1)
    assert [event.where for event in stalls if isinstance(event, rt.Stalled)] == ([] if tells else ["handler 'toil'"])
    collector.cancel()


async def test_a_process_is_looked_at_and_killed_in_whatever_state_it_is(system: rt.System) -> None:
    policy = rt.Restart("permanent", backoff_s=0.01)
    actor = await system.spawn(rt.spec(Limited), name="limited", where=rt.process(), restart=policy)
    call = asyncio.ensure_future(actor.hold_the_interpreter())
    while system.progress(actor)[1] != "hold_the_interpreter":
        await asyncio.sleep(0.01)
    assert "in hold_the_interpreter" in await system.stacks(actor)
    os.kill(system.pids()["limited"], signal.SIGSTOP)
    await asyncio.sleep(0.1)
    assert await system.stacks(actor) == "no stacks: the process is stopped by a signal"
    system.kill(actor, "it hung")
    with pytest.raises(rt.ActorDied, match="it was killed: it hung") as died:
        await call
    assert not died.value.cause.from_outside
    assert isinstance(await first(system, actor, rt.Ready), rt.Ready)
    assert await actor.sleep(0.01) == "slept"
    here = await system.spawn(rt.spec(Limited))
    with pytest.raises(rt.ActorError, match="cannot be killed: it is down, or in this process"):
        system.kill(here, "no")
