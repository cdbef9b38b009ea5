"""Asking and telling: values, errors, order, bounds, cancellation; here and across processes alike."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
import threading
from collections.abc import AsyncIterator

import pytest
from actor_zoo import Blocking, Cancelled, Counter, Listener, Point, Relay, Teller

import ringcast.actors as rt
from ringcast.channels import EncodeError

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


@PLACES
async def test_a_call_returns_the_handlers_value(system: rt.System, where: rt.Where) -> None:
    counter = await system.spawn(rt.spec(Counter, 5), where=where)
    assert await counter.add(2) == 7
    assert await counter.add(k=3) == 10
    assert (await counter.pid() == os.getpid()) is (where is rt.here)


@PLACES
async def test_a_blocking_actor_answers_like_an_async_one(system: rt.System, where: rt.Where) -> None:
    actor = await system.spawn(rt.spec(Blocking, 1), where=where)
    assert [await actor.add(1) for _ in range(3)] == [2, 3, 4]
    with pytest.raises(rt.RemoteError, match="KeyError.*nope"):
        await actor.fail("nope")
    with pytest.raises(rt.RemoteError, match="SystemExit"):
        await actor.exit()
    assert await actor.add(1) == 5


@PLACES
async def test_an_exception_reaches_the_caller_with_its_traceback_and_the_actor_lives_on(
    system: rt.System, where: rt.Where
) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), name="c", where=where)
    with pytest.raises(rt.RemoteError) as caught:
        await counter.fail("bad text")
    assert caught.value.type_name == "ValueError"
    assert "raise ValueError(text + " in caught.value.traceback
    assert caught.value.name == "c"
    with pytest.raises(rt.RemoteError, match="SystemExit"):
        await counter.exit()
    assert await counter.add(1) == 1


@PLACES
async def test_a_cancellation_that_nobody_asked_for_is_the_handlers_error_and_the_actor_lives_on(
    system: rt.System, where: rt.Where
) -> None:
    actor = await system.spawn(rt.spec(Cancelled), where=where)
    async with rt.deadline(20):
        with pytest.raises(rt.RemoteError, match="CancelledError"):
            await actor.handle("handle")
        with pytest.raises(rt.RemoteError, match="CancelledError"):
            await actor.beside()
        received = []
        with pytest.raises(rt.RemoteError, match="CancelledError"):
            async with actor.items.open("items") as items:
                received.extend([item async for item in items])
        assert await actor.handle("nowhere") == "nowhere"
        async with actor.items.open("nowhere") as items:
            assert [item async for item in items] == [0, 1, 2]


async def test_a_cast_from_an_actor_on_a_thread_arrives_while_the_loop_sleeps(system: rt.System) -> None:
    teller = await system.spawn(rt.spec(Teller))
    listener = await system.spawn(rt.spec(Listener))
    assert await teller.tell(listener, threading.Event())
    assert await teller.tell_all(rt.Group([listener]), threading.Event())
    elsewhere = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    with pytest.raises(rt.RemoteError, match="type object cannot travel"):
        await teller.tell_unencodable(elsewhere)  # its own mistake reaches the thread


@PLACES
async def test_a_wrong_name_or_wrong_arguments_are_the_callers_error(system: rt.System, where: rt.Where) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=where)
    with pytest.raises(AttributeError, match=r"Counter has no handler 'subtract' \(it has: add, "):
        await counter.subtract(1)  # type: ignore[attr-defined]
    with pytest.raises(rt.RemoteError, match="TypeError"):
        await counter.add()  # type: ignore[call-arg]
    assert await counter.add(1) == 1


async def test_values_of_every_kind_travel(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), name="c", where=rt.process())
    for value in [None, True, -(2**63), 2**64 - 1, 1.5, "ümlaut 🌊", b"\x00\xff", [1, [2, {}]], {"a": 1, 2: "b"}]:
        assert await counter.echo(value) == value
    assert await counter.echo([Point(1, 2), {"p": Point(3, 4)}]) == [Point(1, 2), {"p": Point(3, 4)}]
    assert await counter.echo(counter) == counter


async def test_what_cannot_travel_is_an_error_at_the_side_that_sent_it(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    with pytest.raises(EncodeError, match="object"):
        await counter.echo(object())
    with pytest.raises(EncodeError, match=r"^argument 1 of echo, \['k'\]\[1\]: a value of type object"):
        await counter.echo({"k": [0, object()]})
    with pytest.raises(EncodeError, match=r"^argument 'k' of echo, \.x: "):
        counter.echo.cast(k=Point(object(), 1))
    with pytest.raises(rt.RemoteError, match=r"result cannot travel: \['k'\]\[1\]: a value of type object"):
        await counter.unencodable_within()
    assert await counter.echo(Counter.add.msg(1)) == Counter.add.msg(1)
    with pytest.raises(rt.RemoteError, match=r"EncodeError.*result cannot travel"):
        await counter.unencodable()
    assert await counter.add(1) == 1


@pytest.mark.parametrize("size", [0, 1, 4095, 262_143, 262_144, 262_145, 1 << 20, 24 << 20])
async def test_messages_of_every_size_arrive_whole(system: rt.System, size: int) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    data = os.urandom(size)
    assert await counter.echo(data) == data


async def test_casts_keep_their_order_with_calls_and_large_messages(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    for k in range(200):
        await counter.record.cast.wait(k)
        if k % 50 == 0:
            await counter.size.cast.wait(b"x" * 1_000_000)
    assert await counter.recorded() == list(range(200))


async def test_actors_in_different_processes_talk_without_the_root(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    relay = await system.spawn(rt.spec(Relay, counter), where=rt.process())
    before = (await system.statistics())["ringcast"].messages_sent
    await relay.tell(3000)
    while len(await counter.recorded()) < 3000:  # no order is promised between two senders
        await asyncio.sleep(0.01)
    assert await counter.recorded() == list(range(3000))
    assert (await system.statistics())["ringcast"].messages_sent - before < 50
    assert await relay.add(4) == 4


async def test_a_full_mailbox_refuses_casts_and_makes_waiting_ones_wait(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Blocking), name="b", where=rt.process())
    sleep = asyncio.ensure_future(actor.sleep(0.3))
    await asyncio.sleep(0.05)
    with pytest.raises(rt.MailboxFull, match="mailbox of 'b' is full"):
        for _ in range(1000):
            actor.echo.cast(b"x" * 10_000)
    await actor.echo.cast.wait(b"x" * 10_000)
    assert sleep.done()
    assert await actor.add(1) == 1


class Flood(rt.Actor):
    """Casts to an actor that its process has never sent anything to."""

    @rt.call
    async def flood(self, to: Counter, count: int, size: int) -> int:
        for sent in range(count):
            try:
                to.echo.cast(bytes(size))
            except rt.MailboxFull:
                return sent
        return count


@pytest.mark.parametrize(("size", "most"), [(100, 1024), (10_000, 104), (300_000, 3), (3_000_000, 1)])
async def test_what_waits_for_the_way_to_an_actor_is_bounded(system: rt.System, size: int, most: int) -> None:
    flood = await system.spawn(rt.spec(Flood), where=rt.process())
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    assert await flood.flood(counter, 2000, size) == most


async def test_concurrent_calls_are_each_answered_once(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    results = await asyncio.gather(*[counter.add(1) for _ in range(2000)])
    assert results == list(range(1, 2001))


@PLACES
async def test_cancelling_the_caller_cancels_the_handler(system: rt.System, where: rt.Where) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=where)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await counter.sleep(60)
    assert await counter.add(0) == -1


async def test_a_timeout_does_not_wait_for_a_callee_that_cannot_be_cancelled(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Blocking), where=rt.process())
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await actor.sleep(0.8)
    assert loop.time() - began < 0.5
    assert await actor.add(1) == 1


async def test_a_reference_cannot_be_used_after_its_system(system: rt.System) -> None:
    async with rt.System("other") as other:
        counter = await other.spawn(rt.spec(Counter, 0))
    with pytest.raises(rt.NotInSystem, match="after the system stopped"):
        await counter.add(1)


async def test_two_systems_live_side_by_side(system: rt.System) -> None:
    async with rt.System("other") as other:
        one = await system.spawn(rt.spec(Counter, 1), where=rt.process())
        two = await other.spawn(rt.spec(Counter, 2), where=rt.process())
        assert (await one.add(1), await two.add(1)) == (2, 3)


def test_wrong_kinds_of_handlers_are_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="plain def on an async Actor"):
        type("Bad", (rt.Actor,), {"f": rt.call(lambda self: None)})

    async def coroutine(self: object) -> None: ...

    with pytest.raises(TypeError, match="async def on a BlockingActor"):
        type("Bad", (rt.BlockingActor,), {"f": rt.call(coroutine)})


def test_a_handler_is_a_plain_method_on_an_instance() -> None:
    assert asyncio.run(Counter(1).add(2)) == 3
    assert Blocking(1).add(2) == 3


async def test_nothing_can_be_set_on_a_reference(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 5))
    with pytest.raises(AttributeError, match="'n' cannot be set on <Ref 'Counter-1' #.>: it is a reference"):
        counter.n = 6
    assert await counter.add(0) == 5


async def test_a_copied_reference_is_the_reference_and_a_shell_completes_its_handlers() -> None:
    @dataclasses.dataclass
    class Settings:
        counter: Counter

    async with rt.System() as system:
        for where in (rt.here, rt.process()):
            counter = await system.spawn(rt.spec(Counter, 3), where=where)
            assert copy.copy(counter) is counter and copy.deepcopy([counter]) == [counter]
            assert await dataclasses.asdict(Settings(counter))["counter"].add(0) == 3
            assert {"add", "echo", "record"} <= set(dir(counter)) and "on_start" not in dir(counter)
