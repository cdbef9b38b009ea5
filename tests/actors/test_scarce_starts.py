"""Starts and ends that go wrong through no fault of the actor: no descriptors, no processes, a lost exit status."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from actor_zoo import Counter

import ringcast.actors as rt
from ringcast.actors import process_host, spare
from ringcast.channels import Link

pytestmark = pytest.mark.usefixtures("leak_oracle")
ONCE = rt.Restart("permanent", max_restarts=1, within_s=60, backoff_s=0.01)


def failing(code: int, times: int) -> Callable[[], tuple[Link, Link]]:
    """In place of ``Link.pair``: it fails so often, then works."""
    original, left = Link.pair, [times]

    def pair() -> tuple[Link, Link]:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return original()

    return pair


async def kill(counter: Counter) -> None:
    with pytest.raises(rt.ActorDied):
        await counter.die("kill")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
async def test_a_restart_that_finds_no_resources_is_tried_again_and_costs_no_budget(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C13: three failures in a row for an actor that may be restarted once."""
    async with rt.System() as system, asyncio.timeout(30):
        counter = await system.spawn(rt.spec(Counter, 0), name="c", where=rt.process(), restart=ONCE)
        watch = system.watch(counter)
        monkeypatch.setattr(process_host.Link, "pair", failing(code, 3))
        with caplog.at_level(logging.WARNING, "ringcast.actors"):
            await kill(counter)
            events = []
            async for event in watch:
                events.append(event)
                if event == rt.Ready(2):
                    break
        kinds = [type(event).__name__ for event in events]
        assert kinds == ["Ready", "Died", *["Restarting"] * 4, "Ready"]
        assert [event.attempt for event in events if isinstance(event, rt.Restarting)] == [1] * 4
        assert [e.delay_s for e in events if isinstance(e, rt.Restarting)][1:] == [0.1, 0.2, 0.4]
        assert sum("'c' is started again in" in text for text in caplog.messages) == 3
        assert await counter.add(1) == 1


async def test_a_planned_restart_that_finds_no_resources_says_so_and_goes_on_trying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C13: System.restart."""
    async with rt.System() as system, asyncio.timeout(30):
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process(), restart=ONCE)
        monkeypatch.setattr(process_host.Link, "pair", failing(errno.EMFILE, 2))
        with pytest.raises(rt.StartFailed, match="no descriptors are left"):
            await system.restart(counter)
        async for event in system.watch(counter):
            if event == rt.Ready(2):
                break
        assert await counter.add(1) == 1


async def test_a_first_start_that_finds_no_resources_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: its caller decides."""
    async with rt.System() as system:
        monkeypatch.setattr(process_host.Link, "pair", failing(errno.EMFILE, 1))
        with pytest.raises(rt.StartFailed, match="no descriptors are left"):
            await system.spawn(rt.spec(Counter, 0), where=rt.process())
        assert await (await system.spawn(rt.spec(Counter, 0), where=rt.process())).add(1) == 1


async def test_a_spare_that_finds_no_resources_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: more often than a spare may die."""
    monkeypatch.setattr(spare, "FIRST_DELAY_S", 0.001)
    async with rt.System() as system, asyncio.timeout(30):
        await system.spawn(rt.spec(Counter, 0), where=rt.process(spare=True), restart=ONCE)
        monkeypatch.setattr(process_host.Link, "pair", failing(errno.EMFILE, spare.MAX_DEATHS + 2))
        root = system.supervisor._branch.root
        while len(root.hosts) < 2:
            await asyncio.sleep(0.01)


PROGRAM = """
    import asyncio, os, signal, sys
    import ringcast.actors as rt

    class Victim(rt.Actor):
        @rt.call
        async def die(self, how: str) -> None:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)

    async def main() -> None:
        async with rt.System() as system, asyncio.timeout(30):
            policy = rt.Restart("transient", backoff_s=0.01)
            victim = await system.spawn(rt.spec(Victim), where=rt.process(), restart=policy)
            for incarnation, how in ((2, "kill"), (3, "exit")):
                try:
                    await victim.die(how)
                except rt.ActorDied as death:
                    print(death.cause.exit_code, death.cause.summary)
                async for event in system.watch(victim):
                    if event == rt.Ready(incarnation):
                        break
                    assert not isinstance(event, rt.GaveUp), event

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asyncio.run(main())
"""


def test_a_host_that_ignores_sigchld_has_its_transient_actors_restarted(tmp_path: Path) -> None:
    """C40: kill -9 and exit 3 looked like exit 0."""
    script = tmp_path / "app.py"
    script.write_text(textwrap.dedent(PROGRAM))
    app = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    lines = app.stdout.splitlines()
    assert app.returncode == 0, app.stderr
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("None its process ")
        assert "exit status is unknown: this program ignores SIGCHLD" in line
