"""Actors that an actor spawned: they are its own, and end with it, whatever way it ends. Friction: `ctx.spawn`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from actor_zoo import BadStart, Counter

import ringcast.actors as rt
from ringcast.actors.testing import FakeContext, Simulation, explore

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
KEEP = rt.Restart("permanent", backoff_s=0.01)


class Tracer(rt.Actor):
    """Notes its stop."""

    def __init__(self, path: str) -> None:
        self.path = path

    @rt.call
    async def note(self, text: str) -> int:
        with open(self.path, "a") as file:
            file.write(f"{text}\n")
        return os.getpid()

    async def on_stop(self, reason: str) -> object:
        await self.note("child stops")
        return None


class Owner(rt.Actor):
    """Has one child from its start on, and more when it is asked."""

    def __init__(self, path: str, first: str = "process") -> None:
        self.path = path
        self.first = first

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx
        if self.first == "hang":
            await ctx.spawn(rt.spec(BadStart, "hang"), name="stuck")
        self.child = await ctx.spawn(rt.spec(Tracer, self.path), name="child", restart=KEEP)

    @rt.call
    async def child_pid(self) -> int:
        return await self.child.note("asked")

    @rt.call
    async def the_child(self) -> Tracer:
        return self.child

    @rt.call
    async def spawn_bad(self) -> list[str]:
        try:
            await self.ctx.spawn(rt.spec(BadStart, "on_start"), name="bad")
        except rt.StartFailed as error:
            return [error.name, error.cause.traceback]
        return []

    @rt.call
    async def spawn_here(self) -> str:
        try:
            counter = await self.ctx.spawn(rt.spec(Counter, 1), where=rt.here)
        except rt.ActorError as error:
            return str(error)
        return str(await counter.add(1))

    @rt.call
    async def stop(self, other: Tracer | None) -> str:
        try:
            await self.ctx.stop(self.child if other is None else other)
        except rt.ActorError as error:
            return str(error)
        return "stopped"

    @rt.call
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def on_stop(self, reason: str) -> object:
        await self.child.note("owner stops")
        return None


class BlockingOwner(rt.BlockingActor):
    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx

    @rt.call
    def spawn(self) -> str:
        work = self.ctx.spawn(rt.spec(Counter, 0))
        try:
            work.send(None)
        except rt.ActorError as error:
            return str(error)
        return ""


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with asyncio.timeout(60), rt.System() as system:
        yield system


@PLACES
async def test_what_an_actor_spawned_ends_after_its_on_stop(system: rt.System, where: rt.Where, tmp_path: Path) -> None:
    path = tmp_path / "log"
    owner = await system.spawn(rt.spec(Owner, str(path)), where=where)
    pid = await owner.child_pid()
    assert pid not in (os.getpid(), system.pids().get("Owner-1"))
    assert system.find("child", Tracer) == await owner.the_child()
    await system.stop(owner)
    assert not psutil.pid_exists(pid)
    assert path.read_text().split("\n")[:3] == ["asked", "owner stops", "child stops"]
    with pytest.raises(rt.ActorError, match="no actor named 'child'"):
        system.find("child")


@PLACES
async def test_what_an_actor_spawned_is_ended_before_it_is_restarted(
    system: rt.System, where: rt.Where, tmp_path: Path
) -> None:
    owner = await system.spawn(rt.spec(Owner, str(tmp_path / "log")), where=where)
    before = await owner.child_pid()
    await system.restart(owner)  # its next incarnation spawns a child of the same name
    after = await owner.child_pid()
    assert before != after
    assert not psutil.pid_exists(before)


async def test_the_children_of_a_killed_owner_end_in_order_and_it_is_restarted(
    system: rt.System, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    owner = await system.spawn(rt.spec(Owner, str(path)), where=rt.process(), restart=KEEP)
    before = await owner.child_pid()
    with pytest.raises(rt.ActorDied):
        await owner.die()
    async for event in system.watch(owner):
        if event == rt.Ready(2):
            break
    assert path.read_text().split("\n")[:2] == ["asked", "child stops"]
    assert await owner.child_pid() != before


async def test_a_dead_temporary_owner_leaves_no_child(system: rt.System, tmp_path: Path) -> None:
    owner = await system.spawn(rt.spec(Owner, str(tmp_path / "log")), where=rt.process())
    pid = await owner.child_pid()
    with pytest.raises(rt.ActorDied):
        await owner.die()
    while psutil.pid_exists(pid):
        await asyncio.sleep(0.01)


async def test_a_child_is_restarted_by_its_own_policy(system: rt.System, tmp_path: Path) -> None:
    owner = await system.spawn(rt.spec(Owner, str(tmp_path / "log")), where=rt.process())
    child = await owner.the_child()
    os.kill(await owner.child_pid(), signal.SIGKILL)
    async for event in system.watch(child):
        if event == rt.Ready(2):
            break
    assert await owner.child_pid() == system.pids()["child"]


@PLACES
async def test_a_child_that_does_not_start_fails_with_its_own_traceback(
    system: rt.System, where: rt.Where, tmp_path: Path
) -> None:
    owner = await system.spawn(rt.spec(Owner, str(tmp_path / "log")), where=where)
    name, trace = await owner.spawn_bad()
    assert name == "bad"
    assert 'raise RuntimeError("no luck in on_start")' in trace


@PLACES
async def test_an_actor_stops_what_it_spawned_and_nothing_else(
    system: rt.System, where: rt.Where, tmp_path: Path
) -> None:
    owner = await system.spawn(rt.spec(Owner, str(tmp_path / "log")), where=where)
    other = await system.spawn(rt.spec(Tracer, str(tmp_path / "other")), name="other")
    assert await owner.stop(other) == (f"actor 'other' is not one that {'Owner-1'!r} spawned: it cannot stop it")
    assert await owner.stop(None) == "stopped"
    assert "child" not in system.pids()


async def test_where_children_can_live(system: rt.System, tmp_path: Path) -> None:
    here = await system.spawn(rt.spec(Owner, str(tmp_path / "a")))
    assert await here.spawn_here() == "2"
    await system.stop(here)
    there = await system.spawn(rt.spec(Owner, str(tmp_path / "b")), where=rt.process())
    assert "in processes only: use where=rt.process()" in await there.spawn_here()
    for where in (rt.here, rt.process()):
        blocking = await system.spawn(rt.spec(BlockingOwner), where=where)
        assert "BlockingActor has no event loop" in await blocking.spawn()


@PLACES
async def test_an_owner_whose_start_is_cancelled_leaves_no_child(
    system: rt.System, where: rt.Where, tmp_path: Path
) -> None:
    start = asyncio.ensure_future(system.spawn(rt.spec(Owner, str(tmp_path / "log"), "hang"), where=where))
    while not psutil.Process().children():
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert psutil.Process().children() == []


async def test_leaving_the_system_ends_owners_and_owned(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with rt.System() as system:
        await system.spawn(rt.spec(Owner, str(path)), where=rt.process())
    assert path.read_text().split("\n")[:2] == ["owner stops", "child stops"]


class SimulatedOwner(rt.Actor):
    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.child = await ctx.spawn(rt.spec(Counter, 1), name="child", restart=KEEP)

    @rt.call
    async def add(self) -> int:
        return await self.child.add(1)


def test_owners_and_children_that_die_at_random_leave_one_of_each() -> None:
    """In the simulator: the owner is killed while its child starts, works or stops."""

    async def scenario(sim: Simulation, system: rt.System) -> None:
        policy = rt.Restart("permanent", max_restarts=100, backoff_s=0.01)
        owner = await system.spawn(rt.spec(SimulatedOwner), name="owner", where=rt.process(), restart=policy)
        for turn in range(4):
            await asyncio.sleep(0.02 * ((sim.seed + turn) % 7))
            alive = [process.name for process in sim._world.running if process.is_child]
            victim = "child" if turn % 2 and "child" in alive else "owner"
            if victim in alive:
                sim.kill(victim)
        await asyncio.sleep(3)
        assert sorted(process.name for process in sim._world.running if process.is_child) == ["child", "owner"]
        assert await owner.add() == 2

    explore(scenario, range(30))


async def test_a_fake_context_notes_what_is_spawned(tmp_path: Path) -> None:
    ctx = FakeContext()
    owner = Owner(str(tmp_path / "log"))
    await owner.on_start(ctx, None)
    assert [spec.cls for spec in ctx.spawned] == [Tracer]
