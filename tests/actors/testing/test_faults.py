"""Each fault happens, and the runtime survives it."""

from __future__ import annotations

import asyncio

import pytest
from simulated_zoo import KEEP, Store, tolerant

import ringcast.actors as rt
from ringcast.actors import testing
from ringcast.actors.testing import Faults, Simulation

pytestmark = pytest.mark.usefixtures("leak_oracle")

FAULTS = {
    "killed": Faults(kill=0.02, max_kills=5),
    "stands still": Faults(slow_reader=0.02),
    "its ring is full": Faults(full_ring=0.1),
    "is held back": Faults(late_reply=0.3),
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_happens_and_is_survived(text: str) -> None:
    async def main(system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process(), restart=KEEP)
        sim.faults = FAULTS[text]
        for k in range(20):
            assert await tolerant(store.put("k", k)) in (k, "ActorDied")
            await asyncio.sleep(0.05)

    happened = 0
    for seed in range(20):
        with Simulation(seed) as sim:
            sim.run(main)
        happened += len(sim.trace.of(text))
    assert happened > 5


@pytest.mark.parametrize("faults", [Faults(delayed_doorbell=1.0), Faults(delayed_frame=1.0)], ids=["bell", "frame"])
def test_delays_take_time_and_lose_nothing(faults: Faults) -> None:
    async def main(system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        for k in range(5):
            assert await store.put("k", k) == k

    taken_s = []
    for these in (Faults(), faults):
        sum_s = 0.0
        for seed in range(10):
            with Simulation(seed, faults=these) as sim:
                sim.run(main)
            sum_s += sim.now_s
        taken_s.append(sum_s)
    assert taken_s[1] > taken_s[0] + 10 * 0.05  # some delays are short


def test_a_late_reply_comes_after_its_sender_was_restarted_and_is_dropped() -> None:
    async def main(system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process(), restart=KEEP)
        call = asyncio.ensure_future(store.put("k", 1))
        await asyncio.sleep(0.005)  # it is handled by then, and its reply held back for longer
        sim.kill("store")
        with pytest.raises(rt.ActorDied):
            await call
        await asyncio.sleep(6)
        sim.faults = Faults()
        assert await store.put("k", 2) == 2
        assert (await system.statistics())[system.name].late_replies == 1

    for seed in range(10):
        with Simulation(seed, faults=Faults(late_reply=1.0, delay_s=5.0)) as sim:
            sim.run(main)
        late = [event.at for event in sim.trace.of("receives late")]
        ready = [event.at for event in sim.trace.of("store: Ready (incarnation 2)")]
        assert len(late) == 1 and late[0] > ready[0]


def test_a_lost_doorbell_shows_whether_deadlines_are_there() -> None:
    async def careful(sim: Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        sim.faults = Faults(lost_doorbell=1.0)
        try:
            async with rt.deadline(1):
                await store.put("k", 1)
        except rt.DeadlineExceeded:
            sim.faults = Faults()

    with pytest.raises(testing.InvariantViolated, match="a message was lost"):
        testing.explore(careful, [1])
