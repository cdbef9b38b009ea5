"""Warm spares: the next incarnation has prepared itself ahead, takes over at a death, and is never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import psutil
import pytest
from trouble_zoo import Prepared, PreparedBlocking

import ringcast.actors as rt
from ringcast.actors import spare, testing, top

pytestmark = pytest.mark.usefixtures("leak_oracle")
KEEP = rt.Restart("permanent", max_restarts=3, within_s=30, backoff_s=0.05)
WARM = rt.process(spare=True)
CLASSES = pytest.mark.parametrize("cls", [Prepared, PreparedBlocking])


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(spare, "NEXT_DELAY_S", 0.01)


def title(process: psutil.Process) -> str:
    """What process tables show; nothing of a dead one."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.NoSuchProcess:
        return ""


def waiting_spares() -> list[psutil.Process]:
    """Children of ours that have prepared themselves and wait as spares."""
    return [process for process in psutil.Process().children() if title(process).endswith("(spare)")]


async def one_waits(but: int = 0) -> psutil.Process:
    """Wait until there is a spare, another than that one."""
    async with asyncio.timeout(10):
        while True:
            for process in waiting_spares():
                if process.pid != but:
                    return process
            await asyncio.sleep(0.02)


@CLASSES
async def test_the_spare_takes_over_at_a_death_and_another_one_waits(cls: Any) -> None:
    async with rt.System("shop") as system:
        actor = await system.spawn(rt.spec(cls), name="till", where=WARM, restart=KEEP)
        for incarnation in (2, 3):
            waits = await one_waits()
            assert title(waits) == "shop: till (spare)"
            died_at = time.monotonic()
            with pytest.raises(rt.ActorDied):
                await actor.die()
            async for event in system.watch(actor):
                if event == rt.Ready(incarnation):
                    break
            (_, prepared_by, prepared_at), (_, started_by, started_at, handoff) = await actor.told()
            assert prepared_by == started_by == waits.pid == system.pids()["till"]
            assert prepared_at < died_at < started_at
            assert handoff is None
            assert title(waits) == "shop: till"


@CLASSES
async def test_an_orderly_restart_goes_to_the_spare_with_its_hand_off(cls: Any) -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(cls), where=WARM)
        waits = await one_waits()
        await system.restart(actor)
        assert [step[1:2] + step[3:] for step in await actor.told()] == [[waits.pid], [waits.pid, "with regards"]]


@CLASSES
@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_without_a_spare_an_actor_prepares_right_before_it_starts(cls: Any, where: rt.Where) -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(cls), where=where)
        (prepare, *_), (start, *_) = await actor.told()
        assert (prepare, start) == ("prepare", "start")
        assert waiting_spares() == []


async def test_the_table_shows_spares_and_a_waiting_one_uses_no_processor() -> None:
    async with rt.System("shop") as system:
        await system.spawn(rt.spec(PreparedBlocking), name="till", where=WARM)
        waits = await one_waits()
        await asyncio.sleep(0.1)  # it falls asleep
        before = waits.cpu_times()
        await asyncio.sleep(0.5)
        assert waits.cpu_times() == before
        seen = {row.name: row for row in top.rows(os.getpid())}
        assert (seen["till (spare)"].state, seen["till (spare)"].pid) == ("spare", waits.pid)
        assert seen["till"].state == "ready"
        assert set(system.pids()) == {"till"}
        assert set(await system.statistics()) == {"shop", "till"}


@CLASSES
async def test_a_spare_that_dies_is_replaced_and_its_actor_hears_nothing_of_it(cls: Any) -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(cls), where=WARM, restart=KEEP)
        steps = await actor.told()
        first = await one_waits()
        first.kill()
        second = await one_waits(but=first.pid)
        assert await actor.told() == steps
        with pytest.raises(rt.ActorDied):
            await actor.die()
        async for event in system.watch(actor):
            if event == rt.Ready(2):
                break
        assert (await actor.told())[0][1] == second.pid


@CLASSES
async def test_a_spare_that_cannot_prepare_is_given_up_and_the_actor_goes_on(
    cls: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare, "MAX_DEATHS", 2)
    with caplog.at_level(logging.WARNING, "ringcast.actors"):
        async with rt.System() as system:
            actor = await system.spawn(rt.spec(cls, 2), where=WARM)
            async with asyncio.timeout(10):
                while "is not replaced" not in caplog.text:
                    await asyncio.sleep(0.02)
            assert len(await actor.told()) == 2
    assert caplog.text.count("a spare of") == 2
    assert caplog.text.count("RuntimeError: nothing to prepare with") == 2


async def test_a_stopped_or_given_up_actor_leaves_no_spare() -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(Prepared), where=WARM)
        await one_waits()
        await system.stop(actor)
        assert psutil.Process().children() == []
        actor = await system.spawn(rt.spec(Prepared), where=WARM, restart=rt.Restart("temporary"))
        spare_process = await one_waits()
        with pytest.raises(rt.ActorDied):
            await actor.die()
        assert isinstance([event async for event in system.watch(actor)][-1], rt.GaveUp)
        await asyncio.to_thread(psutil.wait_procs, [spare_process], 5)
        assert not spare_process.is_running() or spare_process.status() == psutil.STATUS_ZOMBIE


def test_a_spare_ends_with_its_app() -> None:
    program = textwrap.dedent(
        """
        import asyncio
        from trouble_zoo import Prepared
        import ringcast.actors as rt
        from ringcast.actors import spare
        spare.FIRST_DELAY_S = 0.01
        async def main():
            async with rt.System() as system:
                await system.spawn(rt.spec(Prepared), where=rt.process(spare=True))
                print("up", flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as app:
        assert app.stdout is not None
        app.stdout.readline()
        deadline = time.monotonic() + 10
        while len(children := psutil.Process(app.pid).children()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(children) == 2
        app.send_signal(signal.SIGKILL)
        gone, left = psutil.wait_procs(children, timeout=5)
        assert (len(gone), left) == (2, [])


async def survives_kills(sim: testing.Simulation, system: rt.System) -> None:
    """Actors with spares die at random moments, and so do spares."""
    keep = rt.Restart("permanent", max_restarts=100, backoff_s=0.01, max_backoff_s=0.05)
    actors = [await system.spawn(rt.spec(cls), where=WARM, restart=keep) for cls in (Prepared, PreparedBlocking)]
    sim.faults = testing.Faults(kill=0.01, slow_reader=0.02, delayed_frame=0.05)
    for turn in range(100):  # a process is killed when it has something to do
        with contextlib.suppress(rt.ActorDied):
            await actors[turn % 2].told()
        await asyncio.sleep(0.05)
    sim.faults = testing.Faults()
    await asyncio.sleep(5)
    for actor in actors:
        async for event in system.watch(actor):
            if isinstance(event, rt.Ready):
                break
        (prepare, *_), (start, *_) = await actor.told()
        assert (prepare, start) == ("prepare", "start")


def test_deaths_of_actors_and_spares_at_random_moments_are_survived() -> None:
    traces = []
    for seed in range(30):
        with testing.Simulation(seed) as sim:
            sim.run(lambda system, sim=sim: survives_kills(sim, system))  # type: ignore[misc]
        traces.append(sim.trace.text())
    assert sum(text.count("PROMOTE") for text in traces) > 100
