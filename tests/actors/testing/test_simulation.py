"""A simulated system behaves like a real one, on virtual time; the same seed gives the same trace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

import pytest
from simulated_zoo import KEEP, Cruncher, Rank, Store, supervised_traffic

import ringcast.actors as rt
from ringcast.actors import testing

pytestmark = pytest.mark.usefixtures("leak_oracle")
SEEDS = range(10)


async def everything(sim: testing.Simulation, system: rt.System) -> None:
    there, here = rt.process(), rt.here
    for where in (there, here):
        store = await system.spawn(rt.spec(Store), where=where)
        assert await store.put("k", 1) == 1
        with pytest.raises(rt.RemoteError, match="no such thing"):
            await store.fail()
        async with store.count.open(20) as items:
            assert [item async for item in items] == list(range(20))
        cruncher = await system.spawn(rt.spec(Cruncher), where=where)
        async with cruncher.count.open(20) as items:
            assert [item async for item in items] == list(range(20))
    group = await system.spawn_group([rt.spec(Rank, r) for r in range(3)])
    assert await group.gather(Rank.step.msg(2)) == [0, 2, 4]


def test_the_ordinary_interface_works() -> None:
    assert testing.explore(everything, SEEDS) == len(SEEDS)


def test_the_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    traces = []
    for seed in (1, 1, 2):
        with testing.Simulation(seed, ring_bytes=4096) as sim:
            sim.run(lambda system, sim=sim: supervised_traffic(sim, system))  # type: ignore[misc]
        traces.append(sim.trace.text().encode())
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]
    assert len(traces[0]) > 20_000


def test_the_same_seed_gives_the_same_trace_in_another_interpreter() -> None:
    """Neither hash seeds nor addresses nor process ids count."""
    code = (
        "import zlib; from simulated_zoo import supervised_traffic; from ringcast.actors.testing import Simulation\n"
        "with Simulation(5) as sim: sim.run(lambda system: supervised_traffic(sim, system))\n"
        "print(zlib.crc32(sim.trace.text().encode()))"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    sums = {
        subprocess.check_output([sys.executable, "-c", code], env={**env, "PYTHONHASHSEED": hash_seed}, stderr=-3)
        for hash_seed in ("1", "2")
    }
    assert len(sums) == 1


def test_time_is_virtual_and_blocking_calls_take_it() -> None:
    async def main(system: rt.System) -> float:
        cruncher = await system.spawn(rt.spec(Cruncher), where=rt.process())
        other = await system.spawn(rt.spec(Cruncher))
        began = time.monotonic()
        both = await asyncio.gather(cruncher.crunch(3600), other.crunch(1800))
        assert both == [pytest.approx(3600), pytest.approx(1800)]
        await asyncio.sleep(86400)
        return time.monotonic() - began

    real = time.monotonic()
    with testing.Simulation(1, limit_s=1e6) as sim:
        assert 90000 <= sim.run(main) < 90001
    assert time.monotonic() - real < 60


def test_a_deadline_reaches_a_blocking_handler_that_looks() -> None:
    async def main(system: rt.System) -> None:
        cruncher = await system.spawn(rt.spec(Cruncher), where=rt.process())
        with pytest.raises(rt.DeadlineExceeded):
            async with rt.deadline(5):
                await cruncher.patient(60)
        assert await cruncher.crunch(1) < 2  # the handler before ended soon after its deadline

    with testing.Simulation(1) as sim:
        sim.run(main)
    assert sim.now_s < 10


def test_on_abort_reaches_a_blocking_handler_when_its_actor_stops() -> None:
    async def main(system: rt.System) -> None:
        cruncher = await system.spawn(rt.spec(Cruncher), where=rt.process())
        call = asyncio.ensure_future(cruncher.patient(60))
        await asyncio.sleep(1)
        await system.stop(cruncher)
        assert 1 <= await call < 2

    with testing.Simulation(1) as sim:
        sim.run(main)
    assert sim.now_s < 3


@pytest.mark.parametrize("cls", [Store, Cruncher])
@pytest.mark.parametrize(("how", "exit_code"), [("exit3", 3), ("kill", -9)])
def test_a_simulated_process_dies_as_a_real_one(cls: type[Any], how: str, exit_code: int) -> None:
    async def main(system: rt.System) -> None:
        actor = await system.spawn(rt.spec(cls), name="victim", where=rt.process(), restart=KEEP)
        first = await actor.pid()
        assert first == system.pids()["victim"] > 1 << 22  # no real process's
        with pytest.raises(rt.ActorDied) as caught:
            await actor.die(how)
        assert (caught.value.cause.exit_code, caught.value.cause.last_handler) == (exit_code, "die")
        async for event in system.watch(actor):
            if event == rt.Ready(2):
                break
        assert await actor.pid() != first

    for seed in SEEDS:
        with testing.Simulation(seed) as sim:
            sim.run(main)


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
def test_a_stop_while_a_cancelled_handler_cleans_up_is_not_taken_for_the_callers_cancellation(where: rt.Where) -> None:
    """It was: the mailbox went on, and the stop waited until its deadline."""

    async def scenario(sim: testing.Simulation, system: rt.System) -> None:
        for _ in range(3):
            store = await system.spawn(rt.spec(Store), where=where)
            call = asyncio.ensure_future(store.tidy(60))
            await asyncio.sleep(0.1)
            call.cancel()
            await asyncio.sleep(0.1)
            await system.stop(store)
        assert sim.now_s < 5

    testing.explore(scenario, SEEDS)


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_a_stop(where: rt.Where) -> None:
    async def scenario(sim: testing.Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), where=where)
        call = asyncio.ensure_future(store.stubborn(60))
        await asyncio.sleep(0.1)
        await system.stop(store)
        assert sim.now_s < 1
        with contextlib.suppress(rt.ActorDied):
            assert await call == "not cancelled"

    testing.explore(scenario, SEEDS)


def test_a_killed_process_is_seen_by_callers_and_watchers() -> None:
    async def scenario(sim: testing.Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process(), restart=KEEP)
        watch = system.watch(store)
        call = asyncio.ensure_future(store.work(10))
        await asyncio.sleep(1)
        sim.kill("store")
        with pytest.raises(rt.ActorDied, match="SIGKILL"):
            await call
        seen = []
        async for event in watch:
            seen.append(type(event))
            if event == rt.Ready(2):
                break
        assert seen == [rt.Ready, rt.Died, rt.Restarting, rt.Ready]
        assert await store.put("k", 1) == 1

    testing.explore(scenario, SEEDS)


def test_a_stopped_process_is_not_dead() -> None:
    async def scenario(sim: testing.Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        assert await system.ping(store) < 0.01
        os.kill(system.pids()["store"], signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await system.ping(store)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await store.put("k", 1)
        os.kill(system.pids()["store"], signal.SIGCONT)
        assert await store.put("k", 2) == 2
        assert await system.ping(store) < 0.01
        sim.freeze("store", 3.0)
        began = time.monotonic()
        assert await store.put("k", 3) == 3
        assert time.monotonic() - began >= 3

    testing.explore(scenario, SEEDS)


def test_chance_is_the_seeds_inside_and_its_own_outside() -> None:
    async def main(system: rt.System) -> list[object]:
        return [random.random(), uuid.uuid4()]

    random.seed(99)
    expected = [random.random(), random.random()]
    random.seed(99)
    assert random.random() == expected[0]
    drawn = []
    for seed in (3, 3, 4):
        with testing.Simulation(seed) as sim:
            drawn.append(sim.run(main))
    assert drawn[0] == drawn[1] != drawn[2]
    assert random.random() == expected[1]


def test_other_threads_keep_real_time() -> None:
    seen: list[float] = []

    async def main(system: rt.System) -> None:
        await asyncio.sleep(1e6)
        thread = threading.Thread(target=lambda: seen.append(time.monotonic()))
        thread.start()
        thread.join()

    before = time.monotonic()
    with testing.Simulation(1, limit_s=1e7) as sim:
        sim.run(main)
    assert before <= seen[0] <= time.monotonic()


def test_a_program_that_waits_for_ever_is_a_deadlock_that_names_its_calls() -> None:
    async def main(system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        await asyncio.gather(store.put("k", 1), asyncio.Event().wait())

    with testing.Simulation(7) as sim, pytest.raises(testing.Deadlock, match="no call is pending") as caught:
        sim.run(main)
    assert caught.value.seed == 7
    assert "receives of store#1 REPLY to call 1" in str(caught.value)

    async def asks(system: rt.System) -> None:
        probe = await system.spawn(rt.spec(testing.Probe), name="probe")
        await probe.until(lambda told: bool(told))

    with (
        testing.Simulation(7) as sim,
        pytest.raises(testing.Deadlock, match=r"app: call 1, probe\.until, not answered"),
    ):
        sim.run(asks)


def test_a_program_that_never_ends_is_ended() -> None:
    async def sleeps(system: rt.System) -> None:
        while True:
            await asyncio.sleep(1)

    async def spins(system: rt.System) -> None:
        while True:
            await asyncio.sleep(0)

    with testing.Simulation(1, limit_s=100) as sim, pytest.raises(testing.Endless, match=r"100 virtual s"):
        sim.run(sleeps)
    with testing.Simulation(1, max_steps=1000) as sim, pytest.raises(testing.Endless, match="1000 steps"):
        sim.run(spins)


def test_what_the_program_raises_comes_out_with_seed_and_trace() -> None:
    async def main(system: rt.System) -> None:
        await system.spawn(rt.spec(Store), name="store", where=rt.process())
        raise KeyError("mine")

    with testing.Simulation(12) as sim, pytest.raises(KeyError, match="mine") as caught:
        sim.run(main)
    assert "seed 12" in caught.value.__notes__[0]
    assert "store: Ready (incarnation 1)" in caught.value.__notes__[0]


def test_what_is_not_simulated_says_so() -> None:
    async def main(system: rt.System) -> None:
        with pytest.raises(testing.NotSimulated, match="no network"):
            await asyncio.open_connection("localhost", 80)
        with pytest.raises(testing.NotSimulated, match="end the test run"):
            os._exit(1)
        with pytest.raises(testing.NotSimulated, match="no process of an actor named 'nobody'"):
            sim.kill("nobody")
        with pytest.raises(testing.NotSimulated, match="another simulation"), testing.Simulation(2):
            pass
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        with pytest.raises(rt.RemoteError, match="no network"):
            await store.connect()

    with testing.Simulation(1) as sim:
        sim.run(main)
    with pytest.raises(testing.NotSimulated, match="enter the simulation first"):
        testing.Simulation(1).run(main)


async def test_a_simulation_does_not_run_inside_an_event_loop() -> None:
    """A11: it is refused, and the loop around it goes on."""

    async def main(system: rt.System) -> None: ...

    around = asyncio.get_running_loop()
    with testing.Simulation(1) as sim, pytest.raises(testing.NotSimulated, match="outside of any event loop"):
        sim.run(main)
    assert asyncio.get_running_loop() is around
    with pytest.raises(testing.NotSimulated, match="outside of any event loop"):
        testing.explore(lambda sim, system: main(system), [1])
    await asyncio.wait_for(asyncio.sleep(0.01), 1)


def test_several_systems_live_in_one_simulation() -> None:
    async def scenario(sim: testing.Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        async with rt.System("other") as other:
            namesake = await other.spawn(rt.spec(Store), name="store", where=rt.process())
            await asyncio.gather(*(actor.put("k", k) for k in range(10) for actor in (store, namesake)))

    testing.explore(scenario, SEEDS)


def test_a_simulation_can_run_several_programs_after_each_other() -> None:
    async def main(system: rt.System) -> int:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        return await store.put("k", 1)

    with testing.Simulation(1) as sim:
        assert sim.run(main) == 1
        first = sim.now_s
        assert sim.run(main) == 1
        assert sim.now_s > first


@pytest.mark.parametrize(
    ("field", "value"), [("kill", 1.5), ("late_reply", -0.1), ("max_kills", -1), ("delay_s", -1.0)]
)
def test_faults_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"Faults\.{field}|{field}"):
        testing.Faults(**{field: value})
