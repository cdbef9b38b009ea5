"""The life of actors and supervisors as their watchers see it, revival, look-up by name, and what is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from actor_zoo import BadStart, Counter, FailsAtRestart, Keeper, Relay
from forgotten import ARGUMENT_BYTES, rss_bytes, spawn_and_stop

import ringcast.actors as rt
from ringcast.actors.directory import KEPT_ENDS

pytestmark = pytest.mark.usefixtures("leak_oracle")
FAST = rt.Restart("permanent", max_restarts=3, within_s=30, backoff_s=0.01)
ONCE = rt.Restart("permanent", 1, 30, 0.01)


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with asyncio.timeout(60), rt.System() as system:
        yield system


async def kill(actor: Counter | Keeper | FailsAtRestart) -> None:
    with pytest.raises(rt.ActorDied):
        await actor.die("exit3")


async def until(watch: rt.Watch, is_last: Callable[[rt.Event], bool]) -> list[rt.Event]:
    """The events up to the wanted one."""
    seen = []
    async for event in watch:
        seen.append(event)
        if is_last(event):
            break
    return seen


def names(events: list[rt.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_members_of_a_nested_supervisor_that_is_restarted_have_complete_events(system: rt.System) -> None:
    """A18: Died, then Restarting, then Ready, for the dead member and for the one that was stopped with it."""
    outer = system.supervise("outer", restart=FAST)
    inner = outer.supervise("inner", max_restarts=0, restart=FAST)
    victim = await inner.spawn(rt.spec(Counter, 0), where=rt.process(), restart=FAST)
    other = await inner.spawn(rt.spec(Counter, 0), restart=FAST)
    watches = [system.watch(victim), system.watch(other), system.watch(inner)]
    await kill(victim)
    for watch in watches:
        events = await until(watch, lambda e: e == rt.Ready(2))
        assert names(events) == ["Ready", "Died", "Restarting", "Ready"]


async def test_given_up_members_of_nested_supervisors_have_died_before(system: rt.System, tmp_path: Path) -> None:
    """A18: every GaveUp comes after a Died of the last incarnation; every Ready but the first after a Restarting."""
    lives = tmp_path / "lives"
    lives.write_text("1\n1\n")
    outer = system.supervise("outer", restart=ONCE)
    inner = outer.supervise("inner", restart=ONCE)
    victim = await inner.spawn(rt.spec(FailsAtRestart, str(lives)), where=rt.process(), restart=ONCE)
    other = await outer.spawn(rt.spec(Counter, 0), restart=FAST)
    watches = [system.watch(watched) for watched in (victim, other, inner, outer)]
    await kill(victim)
    await until(system.watch(victim), lambda e: e == rt.Ready(2))
    await kill(victim)
    for watch in watches:
        events = names(await until(watch, lambda e: isinstance(e, rt.GaveUp)))
        assert events[0] == "Ready"
        after_last_ready = events[len(events) - events[::-1].index("Ready") :]
        assert "Died" in after_last_ready, events
        for before, event in itertools.pairwise(events):
            assert event != "Ready" or before == "Restarting", events
            assert event != "Restarting" or before in ("Died", "Ready"), events
    assert system.pids() == {}


async def test_a_planned_restart_is_no_death(system: rt.System) -> None:
    """Friction: watchers here and in a process see Restarting(planned=True) in place of Died."""
    keeper = await system.spawn(rt.spec(Keeper), where=rt.process())
    relay = await system.spawn(rt.spec(Relay, keeper), where=rt.process())  # watches it
    watch = system.watch(keeper)
    while await relay.seen_events() != ["Ready"]:
        await asyncio.sleep(0.01)
    await system.restart(keeper, "new weights")
    events = await until(watch, lambda e: e == rt.Ready(2))
    assert events == [rt.Ready(1), rt.Restarting(0, 0.0, planned=True, reason="new weights"), rt.Ready(2)]
    while await relay.seen_events() != ["Ready", "Restarting", "Ready"]:
        await asyncio.sleep(0.01)


async def test_who_is_restarted_because_another_one_died_has_not_died(system: rt.System) -> None:
    """Friction: rest_for_one."""
    pair = system.supervise("pair", strategy="rest_for_one")
    first = await pair.spawn(rt.spec(Counter, 0), name="first", where=rt.process(), restart=FAST)
    second = await pair.spawn(rt.spec(Counter, 0), where=rt.process(), restart=FAST)
    watches = [system.watch(first), system.watch(second)]
    await kill(first)
    dead, restarted = [await until(watch, lambda e: e == rt.Ready(2)) for watch in watches]
    assert names(dead) == ["Ready", "Died", "Restarting", "Ready"]
    assert names(restarted) == ["Ready", "Restarting", "Ready"]
    assert isinstance(dead[2], rt.Restarting) and isinstance(restarted[1], rt.Restarting)
    assert (dead[2].planned, dead[2].attempt) == (False, 1)
    assert "code 3" in dead[2].reason
    assert (restarted[1].planned, restarted[1].reason) == (True, "'first' died")


async def test_a_supervisor_is_watched_to_its_stop(system: rt.System) -> None:
    pool = system.supervise("pool")
    watch = system.watch(pool)
    await pool.spawn(rt.spec(Counter, 0))
    await pool.stop("closing time")
    events = [event async for event in watch]
    assert events == [rt.Ready(1), rt.Stopped()]
    assert isinstance(events[-1], rt.Stopped) and events[-1].reason == "closing time"


async def test_a_given_up_actor_is_revived_with_a_fresh_budget(system: rt.System) -> None:
    """Friction: `system.revive`."""
    counter = await system.spawn(rt.spec(Counter, 5), name="c", where=rt.process(), restart=ONCE)
    with pytest.raises(rt.ActorError, match="'c' cannot be revived: it is not given up, but ready"):
        await system.revive(counter)
    for _ in range(2):  # two lives of one budget each
        await kill(counter)
        await until(system.watch(counter), lambda e: isinstance(e, rt.Ready))
        await kill(counter)
        await until(system.watch(counter), lambda e: isinstance(e, rt.GaveUp))
        await system.revive(counter)
        assert await counter.add(1) == 6
    assert system.find("c", Counter) == counter


async def test_a_given_up_actor_that_is_stopped_is_forgotten(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 5), where=rt.process(), restart=rt.Restart("permanent", 0))
    await kill(counter)
    await until(system.watch(counter), lambda e: isinstance(e, rt.GaveUp))
    await system.stop(counter)
    with pytest.raises(rt.ActorError, match="has ended for good: it was stopped: asked to stop"):
        await system.revive(counter)


async def test_a_failed_supervisor_is_revived_with_its_members(system: rt.System) -> None:
    pool = system.supervise("pool", max_restarts=0, restart=rt.Restart("permanent", 0))
    victim = await pool.spawn(rt.spec(Counter, 0), name="victim", where=rt.process(), restart=FAST)
    other = await pool.spawn(rt.spec(Counter, 0), restart=FAST)
    await kill(victim)
    await until(system.watch(pool), lambda e: isinstance(e, rt.GaveUp))
    with pytest.raises(rt.ActorError, match="its supervisor 'pool' has failed; revive that"):
        await system.revive(victim)
    await system.revive(pool)
    assert (await victim.add(1), await other.add(2)) == (1, 2)
    assert await (await pool.spawn(rt.spec(Counter, 3))).add(0) == 3


async def test_an_actor_is_found_by_its_name(system: rt.System) -> None:
    """Friction: `system.find`."""
    counter = await system.spawn(rt.spec(Counter, 1), name="counter", where=rt.process())
    await system.spawn(rt.spec(Keeper), name="keeper")
    found = system.find("counter", Counter)
    assert found == counter and await found.add(1) == 2
    with pytest.raises(rt.ActorError, match=r"no actor named 'countr' is alive.*did you mean 'counter'\?"):
        system.find("countr", Counter)
    with pytest.raises(TypeError, match="actor 'keeper' is a Keeper, not a Counter"):
        system.find("keeper", Counter)
    await system.stop(counter)
    with pytest.raises(rt.ActorError, match="no actor named 'counter' is alive"):
        system.find("counter")


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_stopped_actors_are_forgotten_with_their_arguments(system: rt.System, where: rt.Where) -> None:
    """A2: 40 arguments of 1 MiB, and hand-offs as large."""
    await spawn_and_stop(system, where, 5)
    before = rss_bytes()
    await spawn_and_stop(system, where, 40)
    assert rss_bytes() - before < 15 * ARGUMENT_BYTES
    assert not system._directory._records and not system._branch._members


async def test_the_end_of_an_actor_is_remembered_and_those_of_many_are_not(system: rt.System) -> None:
    """A2: the last thousand; older ones have just ended."""
    first = await system.spawn(rt.spec(Counter, 0))
    watch = system.watch(first)
    await system.stop(first, "first of all")
    assert [event async for event in watch] == [rt.Ready(1), rt.Stopped()]
    with pytest.raises(rt.ActorDied, match="it was stopped: first of all"):
        await first.add(1)
    with contextlib.suppress(rt.StartFailed):
        await system.spawn(rt.spec(BadStart, "init"))
    for _ in range(KEPT_ENDS):
        await system.stop(await system.spawn(rt.spec(Counter, 0)))
    assert len(system._directory._ends) == KEPT_ENDS
    assert [event async for event in system.watch(first)] == [rt.Stopped()]
    with pytest.raises(rt.ActorDied, match="it has ended"):
        await first.add(1)


class Caller(rt.Actor):
    """Calls and watches one actor after another."""

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx

    @rt.call
    async def meet(self, counter: Counter) -> int:
        watch = self.ctx.watch(counter)
        assert await anext(watch) == rt.Ready(1)
        await watch.aclose()
        return await counter.add(1)

    @rt.call
    async def num_kept(self) -> int:
        node = self.ctx.self_ref._sender
        return len(node.routes) + len(node._watches)


async def test_processes_that_called_and_watched_many_actors_keep_nothing_of_them(system: rt.System) -> None:
    """A2: neither the caller's routes and watches nor the root's accounts of them grow."""
    caller = await system.spawn(rt.spec(Caller), where=rt.process())
    kept = await caller.num_kept()
    for _ in range(20):
        counter = await system.spawn(rt.spec(Counter, 0))
        assert await caller.meet(counter) == 1
        await system.stop(counter)
    assert await caller.num_kept() == kept
    root = system._branch.root
    assert root._routed == {}
    assert not any(root._watches.values())
