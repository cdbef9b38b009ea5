"""A supervision tree that is stopped, restarted, extended and cancelled while its processes die: many small worlds.

`RINGCAST_SIMULATION_SEEDS=1000` explores further. The bugs that this scenario found have their own tests below.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable
from typing import Any

import pytest
from simulated_zoo import ALL_FAULTS, KEEP, Caster, Client, Cruncher, Fragile, Rank, Store, tolerant

import ringcast.actors as rt
from ringcast.actors.testing import Faults, Probe, Simulation, explore

SEEDS = int(os.environ.get("RINGCAST_SIMULATION_SEEDS", "20"))
pytestmark = [pytest.mark.usefixtures("leak_oracle"), pytest.mark.timeout(60 + 5 * SEEDS)]

THERE = rt.process()


class Upheaval:
    """One world: a tree of two supervisors below the root's, and those who trouble it."""

    def __init__(self, sim: Simulation, system: rt.System) -> None:
        self.sim = sim
        self.system = system
        self.chance = random.Random(sim.seed)

    async def grow(self) -> None:
        def strategy() -> Any:
            return self.chance.choice(["one_for_one", "one_for_all", "rest_for_one"])

        system = self.system
        probe = await system.spawn(rt.spec(Probe), name="probe")
        self.store = await system.spawn(rt.spec(Store), name="store", where=THERE, restart=KEEP)
        self.here = await system.spawn(rt.spec(Store), name="here", restart=KEEP)
        self.engine = system.supervise("engine", strategy=strategy(), max_restarts=1000, within_s=1)
        pool = self.engine.supervise("pool", strategy=strategy(), max_restarts=1000, within_s=1)
        self.one = await pool.spawn(rt.spec(Store), name="one", where=THERE, restart=KEEP)
        self.cruncher = await pool.spawn(rt.spec(Cruncher), name="cruncher", where=THERE, restart=KEEP)
        self.group = await pool.spawn_group([rt.spec(Rank, r) for r in range(2)], name="rank", restart=KEEP)
        await self.engine.spawn(
            rt.spec(Fragile, 0.2), name="fragile", where=self.chance.choice([THERE, rt.here]), restart=KEEP
        )
        await self.engine.spawn(rt.spec(Caster, self.store), name="caster", where=THERE, restart=KEEP)
        await self.engine.spawn(rt.spec(Client, self.store, probe), name="client", where=THERE, restart=KEEP)

    async def ask(self) -> None:
        for k in range(5):
            for actor in (self.store, self.one, self.here):
                await tolerant(actor.put("k", k))
            await tolerant(self.cruncher.crunch(0.01))
            await tolerant(self.store.size(bytes(self.chance.randrange(30_000))))

    async def give_up(self) -> None:
        for _ in range(8):
            calls: list[Awaitable[object]] = [
                self.store.work(0.3),
                self.one.tidy(0.2),
                self.here.stubborn(0.3),
                self.cruncher.patient(0.1),
            ]
            chosen = asyncio.ensure_future(tolerant(calls[self.chance.randrange(4)]))
            for call in calls:
                if asyncio.isfuture(call):
                    call.add_done_callback(lambda call: call.cancelled() or call.exception())
            await asyncio.sleep(self.chance.random() * 0.1)
            chosen.cancel()
            await asyncio.wait([chosen])

    async def gather(self) -> None:
        for k in range(5):
            with contextlib.suppress(rt.ActorDied, rt.CallCancelled):
                async with rt.deadline(30):
                    await self.group.gather(Rank.step.msg(k), reply_from=self.chance.choice([None, 1]))

    async def read(self) -> None:
        for actor in (self.store, self.here, self.cruncher):
            with contextlib.suppress(rt.ActorDied, rt.CallCancelled):
                async with actor.count.open(50) as items:
                    for expected in range(self.chance.randrange(50)):
                        assert await anext(items) == expected

    async def meddle(self) -> None:
        for number in range(3):
            try:
                extra = await self.engine.spawn(rt.spec(Store), name=f"extra{number}", where=THERE, restart=KEEP)
            except rt.StartFailed:
                continue
            with contextlib.suppress(rt.ActorError):
                await self.system.restart(extra)
            await tolerant(extra.put("k", 1))
            if self.chance.random() < 0.5:
                await self.system.stop(extra)
                assert await tolerant(extra.put("k", 1)) == "ActorDied"
            with contextlib.suppress(TimeoutError, rt.StartFailed):
                async with asyncio.timeout(self.chance.random() * 0.1):
                    await self.system.spawn_group([rt.spec(Store), rt.spec(Store)], name=f"pair{number}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.chance.random() * 0.01):
                    await self.system.stop(self.one if self.chance.random() < 0.1 else extra)


async def upheaval(sim: Simulation, system: rt.System) -> None:
    world = Upheaval(sim, system)
    await world.grow()
    sim.faults = ALL_FAULTS
    await asyncio.gather(world.ask(), world.give_up(), world.gather(), world.read(), world.meddle())
    if world.chance.random() < 0.5:  # the other half is stopped in the middle of it
        sim.faults = Faults()


@pytest.mark.parametrize("ring_bytes", [4096, 1 << 16])
def test_a_tree_in_upheaval_keeps_its_promises(ring_bytes: int) -> None:
    assert explore(upheaval, range(SEEDS), ring_bytes=ring_bytes) == SEEDS


async def events_until(watch: rt.Watch, last: rt.Event) -> list[str]:
    seen = []
    async for event in watch:
        seen.append(type(event).__name__)
        if event == last:
            break
    return seen


def test_a_restart_that_meets_a_repair_leaves_one_process() -> None:
    async def scenario(sim: Simulation, system: rt.System) -> None:
        pair = system.supervise("pair", strategy="one_for_all", max_restarts=1000, within_s=1)
        stores = [await pair.spawn(rt.spec(Store), name=n, where=THERE, restart=KEEP) for n in ("a", "b")]
        restart = asyncio.ensure_future(system.restart(stores[0]))
        await asyncio.sleep(0.06 * (sim.seed % 20) / 20)
        sim.kill("b")
        with contextlib.suppress(rt.ActorError):
            await restart
        await asyncio.sleep(1)
        assert sorted(system.pids()) == ["a", "b"]
        assert [process.name for process in sim._world.running if process.is_child] in (["a", "b"], ["b", "a"])

    explore(scenario, range(40))


class SlowToStop(rt.Actor):
    async def on_stop(self, reason: str) -> object:
        await asyncio.sleep(0.2)
        return None


def test_a_restart_that_ends_while_a_repair_stops_others_leaves_one_process() -> None:
    async def scenario(sim: Simulation, system: rt.System) -> None:
        trio = system.supervise("trio", strategy="one_for_all", max_restarts=1000, within_s=1)
        await trio.spawn(rt.spec(SlowToStop), name="slow", where=THERE, restart=KEEP)
        await trio.spawn(rt.spec(Store), name="a", where=THERE, restart=KEEP)
        last = await trio.spawn(rt.spec(Store), name="b", where=THERE, restart=KEEP)
        restart = asyncio.ensure_future(system.restart(last))
        await asyncio.sleep(0.06 * (sim.seed % 20) / 20)
        sim.kill("a")
        with contextlib.suppress(rt.ActorError):
            await restart
        await asyncio.sleep(2)
        assert sorted(process.name for process in sim._world.running if process.is_child) == ["a", "b", "slow"]
        assert await last.put("k", 1) == 1

    explore(scenario, range(40))


class BadStart(rt.Actor):
    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        raise ValueError("no luck")


def test_a_group_that_does_not_start_during_a_repair_leaves_the_others_to_the_repair() -> None:
    async def scenario(sim: Simulation, system: rt.System) -> None:
        trio = system.supervise("trio", strategy="one_for_all", max_restarts=1000, within_s=1)
        for name in ("a", "b"):
            await trio.spawn(rt.spec(Store), name=name, where=THERE, restart=KEEP)
        sim.kill("a")
        await asyncio.sleep(0.02 * (sim.seed % 10) / 10)
        with pytest.raises((rt.StartFailed, rt.ActorError)):
            await trio.spawn_group([rt.spec(Store), rt.spec(BadStart)], name="g", where=THERE)
        await asyncio.sleep(2)
        assert sorted(process.name for process in sim._world.running if process.is_child) == ["a", "b"]

    explore(scenario, range(20))


class SlowToStart(rt.Actor):
    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        await asyncio.sleep(0.3)


def test_a_restart_asked_for_as_soon_as_one_has_ended_leaves_one_process() -> None:
    """A repair waits with a start of its own for the first restart to end; the second one must not make room for it."""

    async def scenario(sim: Simulation, system: rt.System) -> None:
        pair = system.supervise("pair", strategy="one_for_all", max_restarts=1000, within_s=1)
        slow = await pair.spawn(rt.spec(SlowToStart), name="slow", where=THERE, restart=KEEP)
        await pair.spawn(rt.spec(Store), name="b", where=THERE, restart=KEEP)

        async def restart_twice() -> None:
            await system.restart(slow)
            with contextlib.suppress(rt.ActorError):
                await system.restart(slow)

        restarts = asyncio.ensure_future(restart_twice())
        await asyncio.sleep(0.05 + 0.1 * (sim.seed % 10) / 10)
        sim.kill("b")
        await restarts
        await asyncio.sleep(2)
        assert sorted(process.name for process in sim._world.running if process.is_child) == ["b", "slow"]

    explore(scenario, range(20))


def test_a_stop_that_meets_a_repair_stops_the_actor_for_good() -> None:
    async def scenario(sim: Simulation, system: rt.System) -> None:
        pair = system.supervise("pair", strategy="one_for_all", max_restarts=1000, within_s=1)
        stores = [await pair.spawn(rt.spec(Store), name=n, where=THERE, restart=KEEP) for n in ("a", "b")]
        watch = system.watch(stores[0])
        sim.kill("b")
        await asyncio.sleep(0.06 * (sim.seed % 20) / 20)
        await system.stop(stores[0])
        assert "a" not in [process.name for process in sim._world.running]
        assert (await events_until(watch, rt.Stopped()))[-1] == "Stopped"
        await asyncio.sleep(1)
        assert list(system.pids()) == ["b"]

    explore(scenario, range(40))


def test_a_stop_that_nobody_waits_for_goes_on() -> None:
    async def scenario(sim: Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=THERE)
        sim.freeze("store", 100)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await system.stop(store)
        await asyncio.sleep(10)
        assert [process.name for process in sim._world.running] == ["app"]

    explore(scenario, range(5))


def test_a_nested_supervisor_that_comes_back_in_part_is_stopped_before_it_is_started_again() -> None:
    async def scenario(sim: Simulation, system: rt.System) -> None:
        top = system.supervise("top", strategy="one_for_all", max_restarts=1000, within_s=1)
        pool = top.supervise("pool", strategy="one_for_all", max_restarts=1000, within_s=1)
        names = ["a", "b", "c"]
        for name in names[:2]:
            await pool.spawn(rt.spec(Store), name=name, where=THERE, restart=KEEP)
        await top.spawn(rt.spec(Store), name="c", where=THERE, restart=KEEP)
        sim.kill("c")
        while [e.what for e in sim.trace if e.process == "b#2" and "starts" in e.what] == []:
            await asyncio.sleep(0.001)
        sim.kill("b")
        await asyncio.sleep(1)
        assert sorted(process.name for process in sim._world.running if process.is_child) == names

    explore(scenario, range(20))
