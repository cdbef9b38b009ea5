"""Groups: all or none at the start, one write for many, the first failure, partial answers, one rank's answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
from actor_zoo import Counter, Member

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_gather_returns_the_answers_in_rank_order(system: rt.System, where: rt.Where) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(4)], name="w", where=where)
    assert len(group) == 4
    assert await group.gather(Member.step.msg(2)) == [[0, 2], [1, 2], [2, 2], [3, 2]]
    assert await group[1:3].gather(Member.step.msg(by=1)) == [[1, 3], [2, 3]]
    assert await group[3].step(1) == [3, 3]
    assert await group.gather(Member.step.msg(1), reply_from=2) == [2, 4]


async def test_one_record_serves_all_members(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(4)])
    await group.gather(Member.step.msg(1))  # every member is connected now
    before = (await system.statistics())["ringcast"].messages_sent
    for _ in range(10):
        await group.gather(Member.step.msg(1))
    assert (await system.statistics())["ringcast"].messages_sent - before == 10


async def test_a_start_is_all_or_none(system: rt.System) -> None:
    with pytest.raises(rt.StartFailed, match="rank 2 has no luck"):
        await system.spawn_group([rt.spec(Member, rank, bad_start=rank == 2) for rank in range(4)], name="w")
    assert psutil.Process().children() == []
    assert len(await system.spawn_group([rt.spec(Member, 0)], name="w")) == 1  # its names are free again


async def test_the_first_failure_cancels_the_rest(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)])
    async with asyncio.timeout(5):
        with pytest.raises(rt.RemoteError, match="rank 1 fails"):
            await group.gather(Member.step.msg(1, bad_rank=1, slow_rank=2))
        assert await group[2].step(1) == [2, 1]  # its slow call was cancelled


async def test_a_partial_gather_tells_each_members_fate(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)])
    one, two, three = await group.gather(Member.step.msg(1, bad_rank=1), partial=True)
    assert (one, three) == (rt.Ok([0, 1]), rt.Ok([2, 1]))
    assert isinstance(two, rt.Err)
    assert isinstance(two.error, rt.RemoteError)


async def test_with_reply_from_another_members_failure_is_still_told(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)])
    with pytest.raises(rt.RemoteError, match="rank 1 fails"):
        await group.gather(Member.step.msg(1, bad_rank=1, slow_rank=0), reply_from=0)


async def test_asking_without_waiting_gives_futures_in_rank_order(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)])
    first = group.ask(Member.step.msg(1))
    second = group.ask(Member.step.msg(1))
    assert await asyncio.gather(*second) == [[0, 2], [1, 2], [2, 2]]
    assert [future.result() for future in first] == [[0, 1], [1, 1], [2, 1]]


async def test_members_that_need_not_answer_are_forgotten_with_the_answer(system: rt.System) -> None:
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["message"]))
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)])
    await group.gather(Member.step.msg(1))  # every member is connected now: they are asked by one record
    futures = group.ask(Member.step.msg(1), reply_from=1)
    assert await futures[1] == [1, 2]
    for member in group:
        await system.stop(member)
    assert [future.done() for future in futures] == [False, True, False]
    del futures
    gc.collect()
    assert unseen == []
    with pytest.raises(rt.ActorDied):
        await group.ask(Member.step.msg(1), reply_from=1)[0]


async def test_a_cast_reaches_every_member(system: rt.System) -> None:
    counters = [await system.spawn(rt.spec(Counter, k), where=rt.process()) for k in range(3)]
    group = rt.Group(counters)
    group.cast(Counter.add.msg(10))
    assert [await counter.add(0) for counter in counters] == [10, 11, 12]


async def test_a_dead_member_fails_a_gather(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)], name="w")
    await system.stop(group[1])
    with pytest.raises(rt.ActorDied, match="w-1"):
        await group.gather(Member.step.msg(1))


async def test_of_several_failures_one_is_raised_and_none_is_logged_as_unseen(system: rt.System) -> None:
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["message"]))
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)])
    for member in group:
        await system.stop(member)
    for options in ({}, {"reply_from": 1}):
        with pytest.raises(rt.ActorDied, match=r"Member-\d"):
            await group.gather(Member.step.msg(1), **options)
    gc.collect()
    assert unseen == []


async def test_cancelling_a_gather_cancels_the_members(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(3)])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await group.gather(Member.step.msg(1, slow_rank=2))
    assert await group.gather(Member.step.msg(1)) == [[0, 2], [1, 2], [2, 1]]


async def test_a_rank_that_is_not_there_is_refused(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, rank) for rank in range(2)])
    with pytest.raises(ValueError, match=r"reply_from=2: the group has ranks 0 to 1"):
        await group.gather(Member.step.msg(1), reply_from=2)


async def test_what_is_no_call_written_down_is_refused(system: rt.System) -> None:
    group = await system.spawn_group([rt.spec(Member, 0)], where=rt.here)
    wrong: Any = Member.step
    for misuse in (group.ask, group.cast, group.gather):
        with pytest.raises(TypeError, match=r"a group takes a message made by Class\.method\.msg"):
            ended = misuse(wrong)  # type: ignore[operator]
            if asyncio.iscoroutine(ended):
                await ended
