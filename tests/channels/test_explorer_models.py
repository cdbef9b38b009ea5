"""The explorer's memory models against litmus tests with known outcomes (Alglave, Maranget, Tautschnig 2014)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from explorer.machine import Fence, Load, Order, Program, Store, Swap
from explorer.search import MODELS, Configuration, World, explore

RELAXED, ACQUIRE, RELEASE = Order.RELAXED, Order.ACQUIRE, Order.RELEASE


def outcomes(model: str, *bodies: Callable[[], Program]) -> set[tuple[Any, ...]]:
    """All results that threads which return their loads can end with together."""
    results: dict[tuple[str, int], Any] = {}

    def keeping(name: str, body: Callable[[], Program]) -> Callable[[], Program]:
        def program() -> Program:
            seen = yield from body()
            yield Store(f"result.{name}", seen)

        return program

    threads = {f"T{i}": keeping(f"T{i}", body) for i, body in enumerate(bodies)}
    variables = {"x": 0, "y": 0} | {f"result.{name}": None for name in threads}
    world = World(Configuration("litmus", threads, variables), model)
    found, seen, work = set(), {world.initial()}, [world.initial()]
    while work:
        state = work.pop()
        following = world.successors(state)
        if not following:
            found.add(tuple(final_value(world, state, f"result.{name}") for name in threads))
        for _, after in following:
            if after not in seen:
                seen.add(after)
                work.append(after)
    assert results == {}
    return found


def final_value(world: World, state: Any, name: str) -> Any:
    value = state[1][0][world.memory.index[name]]
    return value[-1][0] if isinstance(value, tuple) and value and isinstance(value[-1], tuple) else value


def writes(*stores: tuple[str, int, Order]) -> Callable[[], Program]:
    def body() -> Program:
        for name, value, order in stores:
            yield Store(name, value, order)
        return ()

    return body


def reads(*loads: tuple[str, Order], fence: bool = False) -> Callable[[], Program]:
    def body() -> Program:
        seen: tuple[Any, ...] = ()
        for name, order in loads:
            value = yield Load(name, order)
            seen = (*seen, value)
            del value
            if fence:
                yield Fence()
        return seen

    return body


def store_then_load(mine: str, other: str, fence: bool) -> Callable[[], Program]:
    def body() -> Program:
        yield Store(mine, 1)
        if fence:
            yield Fence()
        return (yield Load(other))

    return body


@pytest.mark.parametrize("model", MODELS)
def test_store_buffering_is_seen_without_fences_and_not_with_them(model: str) -> None:
    for fence in (False, True):
        found = outcomes(model, store_then_load("x", "y", fence), store_then_load("y", "x", fence))
        assert ((0, 0) in found) is not fence
        assert {(0, 1), (1, 0), (1, 1)} <= found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("release", [RELAXED, RELEASE])
@pytest.mark.parametrize("acquire", [RELAXED, ACQUIRE])
def test_message_passing_needs_what_the_model_says(model: str, release: Order, acquire: Order) -> None:
    found = outcomes(model, writes(("x", 1, RELAXED), ("y", 1, release)), reads(("y", acquire), ("x", RELAXED)))
    stale = ((), (1, 0)) in found
    needed = {"TSO": True, "PSO": release is RELEASE, "C11": release is RELEASE and acquire is ACQUIRE}
    assert stale is not needed[model]


@pytest.mark.parametrize("model", MODELS)
def test_one_variable_is_coherent(model: str) -> None:
    found = outcomes(model, writes(("x", 1, RELAXED), ("x", 2, RELAXED)), reads(("x", RELAXED), ("x", RELAXED)))
    assert {seen for _, seen in found} == {(a, b) for a in range(3) for b in range(3) if a <= b}


@pytest.mark.parametrize("model", MODELS)
def test_independent_readers_agree_if_they_have_fences(model: str) -> None:
    writers = [writes(("x", 1, RELAXED)), writes(("y", 1, RELAXED))]
    for fence in (False, True):
        readers = [
            reads(("x", ACQUIRE), ("y", ACQUIRE), fence=fence),
            reads(("y", ACQUIRE), ("x", ACQUIRE), fence=fence),
        ]
        disagree = ((), (), (1, 0), (1, 0)) in outcomes(model, *writers, *readers)
        assert disagree is (model == "C11" and not fence)


@pytest.mark.parametrize("model", MODELS)
def test_two_swaps_never_both_succeed(model: str) -> None:
    def swaps(value: int) -> Callable[[], Program]:
        def body() -> Program:
            return (yield Swap("x", 0, value))

        return body

    assert outcomes(model, swaps(1), swaps(2)) == {(0, 1), (2, 0)}


@pytest.mark.parametrize("model", MODELS)
def test_a_release_sequence_goes_through_the_swap_of_another_thread(model: str) -> None:
    def swaps() -> Program:
        yield Swap("y", 1, 2)
        return ()

    sender = writes(("x", 1, RELAXED), ("y", 1, RELEASE))
    found = outcomes(model, sender, swaps, reads(("y", ACQUIRE), ("x", RELAXED)))
    assert ((), (), (2, 1)) in found and ((), (), (2, 0)) not in found


def test_plain_accesses_that_race_are_reported_in_c11() -> None:
    def world(orders: tuple[Order, Order]) -> Configuration:
        def writer() -> Program:
            yield Store("cell", 1, Order.PLAIN)
            yield Store("flag", 1, orders[0])

        def reader() -> Program:
            flag = yield Load("flag", orders[1])
            if flag:
                yield Load("cell", Order.PLAIN)

        return Configuration("race", {"W": writer, "R": reader}, {"cell": 0, "flag": 0}, ["cell"])

    assert explore(world((RELEASE, ACQUIRE)), "C11").violation is None
    for orders in [(RELAXED, ACQUIRE), (RELEASE, RELAXED)]:
        assert "data race" in str(explore(world(orders), "C11").violation)


def test_deadlock_and_livelock_are_told_apart_from_an_end() -> None:
    def ends() -> Program:
        yield Store("x", 1)

    def spins() -> Program:
        while True:
            value = yield Load("y")
            if value:
                return
            del value

    assert explore(Configuration("end", {"A": ends}, {"x": 0, "y": 0}), "TSO").violation is None
    assert "livelock" in str(explore(Configuration("spin", {"A": ends, "B": spins}, {"x": 0, "y": 0}), "TSO").violation)
