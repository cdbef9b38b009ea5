"""Supervisors: strategies, nesting, budgets and escalation, hand-off between incarnations, order of stopping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from actor_zoo import Counter, FailsAtRestart, Farewell, Keeper

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
FAST = rt.Restart("permanent", max_restarts=3, within_s=30, backoff_s=0.01)


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


async def until(system: rt.System, ref: object, wanted: Callable[[rt.Event], bool]) -> list[rt.Event]:
    """The events of an actor from its present state to the wanted one."""
    seen = []
    async with asyncio.timeout(20):
        async for event in system.watch(ref):
            seen.append(event)
            if wanted(event):
                break
    return seen


async def kill(actor: Counter | Keeper | FailsAtRestart) -> None:
    with pytest.raises(rt.ActorDied):
        await actor.die("exit3")


@pytest.mark.parametrize(
    ("strategy", "restarted"),
    [("one_for_one", [1]), ("one_for_all", [0, 1, 2]), ("rest_for_one", [1, 2])],
)
async def test_a_strategy_decides_who_is_restarted_with_the_dead(
    system: rt.System, strategy: str, restarted: list[int]
) -> None:
    pool = system.supervise("pool", strategy=strategy)  # type: ignore[arg-type]
    members = [await pool.spawn(rt.spec(Keeper), where=rt.process(), restart=FAST) for _ in range(3)]
    for number, member in enumerate(members):
        await member.add(number)
    await kill(members[1])
    await until(system, members[restarted[-1]], lambda e: e == rt.Ready(2))
    for number, member in enumerate(members):
        # A member stopped in order hands its number on; the dead one starts from nothing.
        expected = 0 if number == 1 else number
        assert await member.add(0) == [2 if number in restarted else 1, expected]


async def test_a_dead_temporary_member_stays_dead_and_concerns_nobody(system: rt.System) -> None:
    pool = system.supervise("pool", strategy="one_for_all")
    keeper = await pool.spawn(rt.spec(Keeper), where=rt.process(), restart=FAST)
    counter = await pool.spawn(rt.spec(Counter, 0), where=rt.process())
    await kill(counter)
    events = await until(system, counter, lambda e: isinstance(e, rt.GaveUp))
    assert isinstance(events[-1], rt.GaveUp)
    assert await keeper.add(0) == [1, 0]


async def test_members_that_die_too_often_make_their_supervisor_fail_and_start_anew(system: rt.System) -> None:
    pool = system.supervise("pool", max_restarts=2, within_s=30, restart=FAST)
    keeper = await pool.spawn(rt.spec(Keeper), name="keeper", where=rt.process(), restart=FAST)
    victim = await pool.spawn(rt.spec(Counter, 5), where=rt.process(), restart=rt.Restart("permanent", 10, 30, 0.01))
    await keeper.add(7)
    for incarnation in (2, 3):
        await kill(victim)
        await until(system, victim, lambda e, i=incarnation: e == rt.Ready(i))  # type: ignore[misc]
    assert await keeper.add(0) == [1, 7]
    await kill(victim)  # the third death within the period: the whole pool is started anew
    await until(system, victim, lambda e: e == rt.Ready(4))
    await until(system, keeper, lambda e: e == rt.Ready(2))
    assert await keeper.add(0) == [2, 7]
    assert await victim.add(1) == 6


async def test_a_supervisor_that_fails_too_often_is_given_up_with_all_below(system: rt.System, tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("1\n1\n")
    outer = system.supervise("outer", restart=rt.Restart("permanent", 1, 30, 0.01))
    inner = outer.supervise("inner", restart=rt.Restart("permanent", 1, 30, 0.01))
    victim = await inner.spawn(
        rt.spec(FailsAtRestart, str(lives)),
        name="victim",
        where=rt.process(),
        restart=rt.Restart("permanent", 1, 30, 0.01),
    )
    bystander = await outer.spawn(rt.spec(Counter, 0), where=rt.process(), restart=FAST)
    await kill(victim)
    events = await until(system, victim, lambda e: e == rt.Ready(2))
    await kill(victim)  # no lives left: every level tries within its budget, then all is given up
    events = await until(system, victim, lambda e: isinstance(e, rt.GaveUp))
    cause = events[-1]
    assert isinstance(cause, rt.GaveUp)
    assert "no lives left" in str(cause.cause)
    assert isinstance((await until(system, bystander, lambda e: isinstance(e, rt.GaveUp)))[-1], rt.GaveUp)
    with pytest.raises(rt.ActorError, match="supervisor 'outer' has failed"):
        await outer.spawn(rt.spec(Counter, 0))
    assert await (await system.spawn(rt.spec(Counter, 1))).add(1) == 2  # the root lives on


@PLACES
async def test_a_restart_in_order_hands_the_state_on(system: rt.System, where: rt.Where) -> None:
    keeper = await system.spawn(rt.spec(Keeper), where=where)
    await keeper.add(41)
    await system.restart(keeper)
    assert await keeper.add(1) == [2, 42]


async def test_nested_members_are_stopped_in_reverse_order_too(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    log = tmp_path / "log"
    async with rt.System() as system:
        await system.spawn(rt.spec(Named, "a", str(log)), where=rt.process())
        pool = system.supervise("pool")
        await pool.spawn(rt.spec(Named, "b", str(log)), where=rt.process())
        await pool.spawn(rt.spec(Named, "c", str(log)))
        await system.spawn(rt.spec(Named, "d", str(log)), where=rt.process())
    assert log.read_text().split() == ["d", "c", "b", "a"]
    assert not any(path.exists() for path in paths)


class Named(Farewell):
    def __init__(self, name: str, log: str) -> None:
        super().__init__(log)
        self.name = name

    async def on_stop(self, reason: str) -> object:
        with open(self.path, "a") as file:
            file.write(f"{self.name}\n")
        return None


async def test_a_stop_ends_a_restart_under_way(system: rt.System) -> None:
    slow = rt.Restart("permanent", backoff_s=60, max_backoff_s=60)
    actor = await system.spawn(rt.spec(Counter, 0), where=rt.process(), restart=slow)
    await kill(actor)
    await until(system, actor, lambda e: isinstance(e, rt.Restarting))
    async with asyncio.timeout(2):
        await system.stop(actor)
    with pytest.raises(rt.ActorDied, match="stopped"):
        await actor.add(1)


async def test_wrong_policies_are_refused_with_the_field_and_the_value(system: rt.System) -> None:
    with pytest.raises(ValueError, match="strategy is 'all'"):
        system.supervise("pool", strategy="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Restart.kind is 'always'"):
        rt.Restart("always")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Restart.on_stall is 'ignore'"):
        rt.Restart(on_stall="ignore")  # type: ignore[arg-type]


class Fleeting(rt.Actor):
    """Ends as soon as it runs, for as long as told."""

    left = 0

    async def run(self, ctx: rt.Context) -> None:
        if Fleeting.left:
            Fleeting.left -= 1
            raise ValueError("as told")
        await asyncio.Event().wait()

    @rt.call
    async def ping(self) -> str:
        return "pong"


async def test_delays_stay_finite_after_more_deaths_than_a_float_can_double(system: rt.System) -> None:
    Fleeting.left = 1_030
    policy = rt.Restart("permanent", max_restarts=10_000, within_s=1e9, backoff_s=1e-9, max_backoff_s=1e-9)
    actor = await system.spawn(rt.spec(Fleeting), restart=policy)
    async with asyncio.timeout(60):
        async for event in system.watch(actor):
            if isinstance(event, rt.Ready) and event.incarnation == 1_031:
                break
    assert await actor.ping() == "pong"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"backoff_s": float("nan")}, "backoff_s is nan: it cannot be negative"),
        ({"max_backoff_s": -1}, "max_backoff_s is -1: it cannot be negative"),
        ({"within_s": 0}, "within_s is 0: it must be positive seconds"),
        ({"max_restarts": -1}, "max_restarts is -1: it cannot be negative"),
        ({"max_restarts": 1.5}, "max_restarts is 1.5: give a whole number"),
    ],
)
async def test_wrong_budgets_are_refused_at_once(system: rt.System, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        rt.Restart("permanent", **wrong)
    if "backoff" not in text:
        with pytest.raises((ValueError, TypeError), match=text):
            system.supervise("pool", **wrong)
    with pytest.raises(TypeError, match="an actor's name is a string, not 5"):
        system.find(5)  # type: ignore[arg-type]
