"""Streams: everything arrives in order, the reader's pace is the producer's, leaving ends the producer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from actor_zoo import BlockingStreams, Counter, Streams

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
KINDS = pytest.mark.parametrize("cls", [Streams, BlockingStreams])


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


@PLACES
@KINDS
async def test_a_stream_delivers_every_item_in_order(system: rt.System, where: rt.Where, cls: type[Streams]) -> None:
    actor = await system.spawn(rt.spec(cls), where=where)
    for upto in (0, 1, 3, 16, 17, 1000):
        async with actor.count.open(upto) as items:
            assert [item async for item in items] == list(range(upto))


@PLACES
@KINDS
async def test_a_producer_runs_ahead_by_its_window_and_no_more(
    system: rt.System, where: rt.Where, cls: type[Streams]
) -> None:
    actor = await system.spawn(rt.spec(cls), where=where)
    async with actor.count.open(10_000) as items:
        assert await anext(items) == 0
        await asyncio.sleep(0.1)
        produced, _ = await actor.counts()
        assert 1 <= produced <= 17


@PLACES
@KINDS
async def test_leaving_a_stream_ends_its_producer(system: rt.System, where: rt.Where, cls: type[Streams]) -> None:
    actor = await system.spawn(rt.spec(cls), where=where)
    async with actor.count.open(10_000) as items:
        assert await anext(items) == 0
    for _ in range(100):
        _, closed = await actor.counts()
        if closed:
            break
        await asyncio.sleep(0.01)
    assert closed == 1


@PLACES
async def test_who_reads_a_stream_that_was_left_is_at_its_end(system: rt.System, where: rt.Where) -> None:
    actor = await system.spawn(rt.spec(Streams), where=where)
    async with actor.count.open(10_000) as items:
        assert await anext(items) == 0
    assert [item async for item in items] == []
    async with actor.count.open(1_000_000) as items:
        waiting = asyncio.ensure_future(_read_all(items))
        await asyncio.sleep(0.02)
    async with asyncio.timeout(5):
        read = await waiting
    assert 0 < len(read) < 1_000_000 and read == list(range(len(read)))


async def _read_all(items: AsyncIterator[int]) -> list[int]:
    return [item async for item in items]


class Marks(rt.BlockingActor):
    """Its stream leaves a file when it ends."""

    @rt.stream(window=4)
    def count(self, upto: int, path: str) -> Iterator[int]:
        try:
            yield from range(upto)
        finally:
            Path(path).touch()


@PLACES
@pytest.mark.parametrize("at", [0, 3, 4, 5, 8])
async def test_a_blocking_stream_that_is_left_ends_though_nothing_else_happens(
    system: rt.System, where: rt.Where, at: int, tmp_path: Path
) -> None:
    actor = await system.spawn(rt.spec(Marks), where=where)
    ended = tmp_path / "ended"
    async with actor.count.open(10_000, str(ended)) as items:
        async for item in items:
            if item == at:
                break
        await asyncio.sleep(0.05)  # the producer waits for its reader
    async with asyncio.timeout(5):
        while not ended.exists():
            await asyncio.sleep(0.01)


@PLACES
@KINDS
async def test_what_a_producer_raises_comes_after_its_items(
    system: rt.System, where: rt.Where, cls: type[Streams]
) -> None:
    actor = await system.spawn(rt.spec(cls), where=where)
    got = []
    with pytest.raises(rt.RemoteError, match="the stream broke"):
        async with actor.broken.open(5) as items:
            async for item in items:
                got.append(item)
    assert got == [0, 1, 2, 3, 4]


async def test_an_item_does_not_wait_for_its_batch_to_fill(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Streams), where=rt.process())
    loop = asyncio.get_running_loop()
    async with actor.slowly.open(50) as items:
        assert await anext(items) == 0
        began = loop.time()
        assert await anext(items) == 1
        assert loop.time() - began < 0.5  # a batch of four would be there after far less than the whole second


async def test_a_stream_beside_handlers_does_not_block_them(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Streams), where=rt.process())
    async with actor.count.open(10_000) as one, actor.count.open(10_000) as other:
        assert (await anext(one), await anext(other)) == (0, 0)
        assert (await actor.counts())[1] == 0


@pytest.mark.parametrize("then_waits", [False, True])
async def test_an_item_that_cannot_travel_ends_the_stream_behind_those_before_it(
    system: rt.System, then_waits: bool
) -> None:
    actor = await system.spawn(rt.spec(Streams), where=rt.process())
    got = []
    async with asyncio.timeout(30):
        with pytest.raises(rt.RemoteError, match="EncodeError"):
            async with actor.unencodable.open(then_waits) as items:
                async for item in items:
                    got.append(item)
    assert got == [1]


async def test_the_producers_death_ends_the_stream(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Streams), where=rt.process())
    with pytest.raises(rt.ActorDied, match="SIGKILL"):
        async with actor.count.open(10_000) as items:
            await anext(items)
            actor.die.cast("kill")
            async for _ in items:
                pass


async def test_a_call_of_a_stream_and_a_stream_of_a_call_are_refused(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Streams), where=rt.process())
    with pytest.raises(rt.RemoteError, match="is a stream: open it"):
        await actor.count(3)  # type: ignore[operator]
    with pytest.raises(rt.RemoteError, match="is no stream: call it"):
        async with actor.counts.open() as items:  # type: ignore[attr-defined]
            await anext(items)
    with pytest.raises(rt.RemoteError, match="TypeError"):
        async with actor.count.open() as items:  # type: ignore[call-arg]
            await anext(items)


async def test_a_reader_in_a_process_that_dies_ends_the_producer(system: rt.System) -> None:
    """Seen from inside: the reading actor is killed while it holds the stream."""
    producer = await system.spawn(rt.spec(Streams), where=rt.process())
    reader = await system.spawn(rt.spec(Reader, producer), where=rt.process())
    assert await reader.begin() == 0
    with pytest.raises(rt.ActorDied):
        await reader.die("kill")
    for _ in range(100):
        if (await producer.counts())[1]:
            break
        await asyncio.sleep(0.01)
    assert (await producer.counts())[1] == 1


class Reader(Counter):
    def __init__(self, producer: Streams) -> None:
        super().__init__(0)
        self.producer = producer

    @rt.call
    async def begin(self) -> int:
        self.items = self.producer.count.open(10_000)
        return await anext(await self.items.__aenter__())


def test_what_makes_no_stream_is_refused() -> None:
    make: Any = rt.stream
    with pytest.raises(TypeError, match=r"stream\(5\): give window and batch by name"):
        make(5)
    for options in ({"window": 1.5}, {"window": True}, {"window": 8, "batch": 2.0}):
        with pytest.raises(TypeError, match="give whole numbers"):
            make(**options)
    with pytest.raises(ValueError, match="need 1 <= batch <= window"):
        make(window=2, batch=3)
    with pytest.raises(TypeError, match=r"Wrong.numbers yields: mark it with @rt.stream"):

        class Wrong(rt.Actor):
            @rt.call
            async def numbers(self) -> AsyncIterator[int]:  # type: ignore[misc]
                yield 1


class BadEnding(rt.BlockingActor):
    """Its stream raises when its generator is closed."""

    @rt.stream
    def count(self) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            raise ValueError("cannot close")

    @rt.call
    def alive(self) -> bool:
        return True


@PLACES
async def test_a_blocking_generator_that_raises_when_its_reader_leaves_does_not_end_its_actor(
    system: rt.System, where: rt.Where, capfd: pytest.CaptureFixture[str]
) -> None:
    actor = await system.spawn(rt.spec(BadEnding), where=where)
    async with asyncio.timeout(30):
        async with actor.count.open() as items:
            assert await anext(items) == 0
        assert await actor.alive()
        async with actor.count.open() as items:
            assert await anext(items) == 0
            await system.stop(actor, timeout_s=5)  # a stream that is open then is closed, too
