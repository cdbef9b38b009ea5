"""Pools: the least loaded member, the member of a key, back-pressure in order, and what becomes of dead members."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")


class Worker(rt.Actor):
    """Says who it is; `held` ends when it is told to."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.told: list[int] = []
        self.gate = asyncio.Event()

    @rt.call(idempotent=True)
    async def who(self) -> int:
        return self.rank

    @rt.call(concurrent=True)
    async def held(self, number: int) -> tuple[int, int]:
        self.told.append(number)
        await self.gate.wait()
        return self.rank, number

    @rt.call
    async def note(self, number: int) -> None:
        self.told.append(number)

    @rt.call
    async def noted(self) -> list[int]:
        return self.told

    @rt.call
    async def open_gate(self) -> None:
        self.gate.set()

    @rt.call
    async def pid(self) -> int:
        return os.getpid()

    @rt.stream(window=4)
    async def ticks(self, count: int) -> AsyncIterator[tuple[int, int]]:
        for number in range(count):
            yield self.rank, number


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System(stop_timeout_s=1.0) as system:
        yield system


async def local_pool(system: rt.System, size: int = 3, **bounds: int) -> rt.Pool[Worker]:
    return await system.spawn_pool([rt.spec(Worker, i) for i in range(size)], name="w", where=rt.here, **bounds)


def in_flight(pool: rt.Pool[Worker]) -> list[int]:
    return [member.in_flight for member in pool.statistics().members]


async def spin() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_least_loaded_member_is_asked_and_equals_take_turns(system: rt.System) -> None:
    pool = await local_pool(system)
    assert Counter([await pool.any.who() for _ in range(9)]) == {0: 3, 1: 3, 2: 3}
    held = [asyncio.ensure_future(pool.members[rank].held(0)) for rank in (0, 1, 2)]  # past the pool: not counted
    assert in_flight(pool) == [0, 0, 0]
    busy = [asyncio.ensure_future(pool.any.held(1)) for _ in range(2)]
    idle = next(rank for rank, count in enumerate(in_flight(pool)) if count == 0)
    assert [await pool.any.who() for _ in range(4)] == [idle] * 4
    await pool.members.gather(Worker.open_gate.msg())
    await asyncio.gather(*busy, *held)
    await spin()
    assert in_flight(pool) == [0, 0, 0]
    assert [member.num_sent for member in pool.statistics().members] != [0, 0, 0]


async def test_a_key_always_finds_the_same_member_and_keys_are_spread(system: rt.System) -> None:
    pool = await local_pool(system)
    owners = {key: await pool.at(key).who() for key in [*map(str, range(300)), b"1", 1, -1]}
    assert all([await pool.at(key).who() == owner for key, owner in owners.items()])
    assert min(Counter(owners.values()).values()) > 60
    smaller = rt.pool([pool.members[0], pool.members[1]])
    for key, owner in owners.items():
        if owner != 2:
            assert await smaller.at(key).who() == owner, "only the keys of the member that left have moved"
    with pytest.raises(TypeError, match="a pool's key is a str, bytes or int, not float"):
        pool.at(1.5)  # type: ignore[arg-type]


async def test_calls_beyond_the_bound_wait_in_order_and_a_cancelled_one_leaves(system: rt.System) -> None:
    pool = await local_pool(system, 1, max_pending=2, max_waiting=3)
    (only,) = pool.members
    calls = [asyncio.ensure_future(pool.any.held(number)) for number in range(4)]
    calls.append(asyncio.ensure_future(pool.at("x").held(4)))
    await spin()
    assert (in_flight(pool), pool.statistics().waiting) == ([2], 3)
    with pytest.raises(rt.MailboxFull, match=r"pool 'w' is full: .* 3 calls wait \(max_waiting=3\)"):
        pool.any.held(9)
    calls[3].cancel()
    with pytest.raises(rt.DeadlineExceeded):
        async with rt.deadline(0.02):
            calls[2].cancel()
            await spin()
            assert pool.statistics().waiting == 1
            await pool.any.held(5)
    await only.open_gate()
    assert await asyncio.gather(calls[0], calls[1], calls[4]) == [(0, 0), (0, 1), (0, 4)]
    noted = await only.noted()
    assert (sorted(noted[:2]), noted[2:]) == ([0, 1], [4])
    await spin()
    assert (in_flight(pool), pool.statistics().waiting) == ([0], 0)


async def test_a_call_that_is_cancelled_as_its_turn_comes_gives_the_place_back(system: rt.System) -> None:
    pool = await local_pool(system, 1, max_pending=1)
    first = asyncio.ensure_future(pool.any.held(0))
    second = asyncio.ensure_future(pool.any.held(1))
    await spin()
    first.cancel()
    second.cancel()
    assert await pool.any.who() == 0
    await spin()
    assert (in_flight(pool), pool.statistics().waiting) == ([0], 0)


async def test_casts_and_streams_go_through_a_pool_too(system: rt.System) -> None:
    pool = await local_pool(system, max_pending=1)
    for number in range(6):
        pool.any.note.cast(number)
    await pool.any.note.cast.wait(6)
    pool.at("k").note.cast(7)
    noted = await pool.members.gather(Worker.noted.msg())
    assert sorted(number for numbers in noted for number in numbers) == list(range(8))
    assert min(map(len, noted)) >= 2
    async with pool.any.ticks.open(3) as ticks, pool.any.ticks.open(2) as more:
        assert sorted(in_flight(pool)) == [0, 1, 1]
        items = [item async for item in ticks]
        others = [item async for item in more]
    assert [number for _, number in items] == [0, 1, 2]
    assert items[0][0] != others[0][0]
    assert in_flight(pool) == [0, 0, 0]


async def test_calls_go_round_a_dead_member_until_it_is_back(system: rt.System) -> None:
    restart = rt.Restart("permanent", backoff_s=0.3)
    pool = await system.spawn_pool([rt.spec(Worker, i) for i in range(2)], name="w", restart=restart)
    keys = [str(number) for number in range(100) if await pool.at(str(number)).who() == 0]
    in_it = asyncio.ensure_future(pool.members[0].held(0))
    while not await pool.members[0].noted():
        await asyncio.sleep(0.001)
    os.kill(system.pids()["w-0"], signal.SIGKILL)
    with pytest.raises(rt.ActorDied):
        await in_it
    await spin()
    assert [member.is_up for member in pool.statistics().members] == [False, True]
    assert [await pool.any.who() for _ in range(4)] == [1] * 4
    assert await pool.at(keys[0]).who() == 0, "it waited for the restart of its member"
    assert sorted({await pool.any.who() for _ in range(4)}) == [0, 1]
    os.kill(system.pids()["w-1"], signal.SIGKILL)
    assert await rt.retry(pool.any.who)() == 0, "an idempotent call is repeated at another member"


async def test_calls_that_wait_do_not_follow_a_member_into_its_end(system: rt.System) -> None:
    """A member's death, and its planned restart, fail what is in flight there, and none of the calls that wait."""
    restart = rt.Restart("permanent", backoff_s=0.01)
    specs = [rt.spec(Worker, i) for i in range(2)]
    pool = await system.spawn_pool(specs, name="w", restart=restart, max_pending=2)
    key = next(key for key in range(100) if pool.at(key)._name == "w[0]")
    for end in (lambda: system.kill(pool.members[0], "a test"), lambda: system.restart(pool.members[0])):
        in_flight = [asyncio.ensure_future(pool.at(key).held(number)) for number in range(2)]
        while len(await pool.members[0].noted()) < 2:
            await asyncio.sleep(0.001)
        waiting = [asyncio.ensure_future(pool.at(key).who()) for _ in range(8)]
        ending = end()
        async with asyncio.timeout(20):
            if ending is not None:
                await ending
            assert await asyncio.gather(*waiting) == [0] * 8
        for call in in_flight:
            with pytest.raises((rt.ActorDied, rt.CallCancelled)):
                await call


async def test_when_all_are_down_calls_wait_and_when_all_are_gone_they_fail(system: rt.System) -> None:
    restart = rt.Restart("permanent", max_restarts=1, backoff_s=0.05)
    pool = await system.spawn_pool([rt.spec(Worker, i) for i in range(2)], name="w", restart=restart)
    for pid in system.pids().values():
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while any(member.is_up for member in pool.statistics().members):
            await asyncio.sleep(0)
        assert await pool.any.who() in (0, 1)
        while not all(member.is_up for member in pool.statistics().members):
            await asyncio.sleep(0.01)
    for pid in system.pids().values():
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        while any(member.is_up for member in pool.statistics().members):
            await asyncio.sleep(0)
        with pytest.raises(rt.ActorDied, match="died 2 times within"):
            await pool.any.who()
        with pytest.raises(rt.ActorDied):
            await pool.at("k").who()
        with pytest.raises(rt.ActorDied):
            pool.any.note.cast(1)


class Boss(rt.Actor):
    """Has a pool of what it was given."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.pool = rt.pool(self.workers, max_pending=1)

    @rt.call
    async def all_of(self, count: int) -> list[int]:
        return await asyncio.gather(*(self.pool.any.who() for _ in range(count)))

    @rt.call
    async def send_away(self, to: Worker) -> None:
        to.note.cast(self.pool.any)  # type: ignore[arg-type]


async def test_an_actor_makes_a_pool_of_references_and_pools_do_not_travel(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Worker, i) for i in range(2)], restart=rt.Restart("permanent"))
    boss = await system.spawn(rt.spec(Boss, list(group)), where=rt.process())
    asked = await boss.all_of(20)
    assert (len(asked), set(asked)) == (20, {0, 1})
    os.kill(await group[0].pid(), signal.SIGKILL)
    async with asyncio.timeout(10):
        while 0 not in await retried(boss):
            await asyncio.sleep(0.01)
    with pytest.raises(rt.RemoteError, match="is of another system"):
        await boss.send_away(group[1])


async def retried(boss: Boss) -> list[int]:
    try:
        return await boss.all_of(4)
    except rt.RemoteError as error:
        assert "ActorDied" in error.type_name
        return []


async def test_a_pool_of_nothing_and_wrong_bounds_are_refused_at_once(system: rt.System) -> None:
    with pytest.raises(ValueError, match="a pool needs one or more members"):
        rt.pool([])
    with pytest.raises(ValueError, match="a pool needs one or more members"):
        await system.spawn_pool([])
    with pytest.raises(TypeError, match=r"start specs by `await system\.spawn_pool"):
        rt.pool([rt.spec(Worker, 0)])  # type: ignore[type-var]
    with pytest.raises(ValueError, match="max_pending is 0: give a whole number of 1 or more"):
        await system.spawn_pool([rt.spec(Worker, 0)], max_pending=0)
    with pytest.raises(ValueError, match="max_waiting is -1"):
        await system.spawn_pool([rt.spec(Worker, 0)], max_waiting=-1)
    assert system.pids() == {}


async def test_a_name_that_the_members_do_not_have_is_rejected_at_once(system: rt.System) -> None:
    pool = await local_pool(system)
    with pytest.raises(AttributeError, match="whom"):
        pool.any.whom  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="whom"):
        pool.at("key").whom  # type: ignore[attr-defined]  # noqa: B018


async def test_a_pool_that_is_dropped_watches_nobody(system: rt.System) -> None:
    import gc

    group = await system.spawn_group([rt.spec(Worker, i) for i in range(2)], where=rt.here)
    before = len(asyncio.all_tasks())
    pool = rt.pool(group)
    assert await pool.any.who() in (0, 1)
    assert len(asyncio.all_tasks()) == before + 2
    del pool
    gc.collect()
    await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) == before


async def test_a_pool_costs_little(system: rt.System) -> None:
    """No bound on time here (bench.actors measures): the account is right after many calls."""
    pool = await local_pool(system)
    began = time.monotonic()
    for _ in range(200):
        await asyncio.gather(*(pool.any.who() for _ in range(60)))
    print(f"{(time.monotonic() - began) / 12_000 * 1e6:.1f} us a call")
    assert in_flight(pool) == [0, 0, 0]
    assert sum(member.num_sent for member in pool.statistics().members) == 12_000
