"""One handler without a runtime: what a caller would see, and stand-ins for what surrounds the actor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from simulated_zoo import Caster, Store

import ringcast.actors as rt
from ringcast.actors.testing import FakeActor, FakeContext, Told, open_stream, run_handler
from ringcast.channels import EncodeError

pytestmark = pytest.mark.usefixtures("leak_oracle")


class Subject(rt.Actor):
    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        ctx.phase("load")
        ctx.phase("warm up", stall_after=10)
        self.ctx = ctx
        self.closed = 0

    @rt.call
    async def kind(self, value: object) -> str:
        return type(value).__name__

    @rt.call
    async def fail(self) -> None:
        raise KeyError("broken")

    @rt.call
    async def unencodable(self) -> object:
        return object()

    @rt.call
    async def sleep(self, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.closed += 1
            raise
        return "slept"

    @rt.call(concurrent=True)
    async def remaining(self) -> float | None:
        at = rt.deadline.current()
        return None if at is None else at - time.monotonic()

    @rt.stream(window=4, batch=2)
    async def count(self, upto: int) -> AsyncIterator[int]:
        try:
            for k in range(upto):
                yield k
        finally:
            self.closed += 1

    @rt.stream()
    async def broken(self) -> AsyncIterator[int]:
        yield 1
        raise ValueError("the stream broke")

    @rt.call
    async def ask(self, other: Store, value: int) -> int:
        return await other.put("k", value) + 1


class Plain(rt.BlockingActor):
    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx
        self.closed = 0

    @rt.call
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    @rt.call
    def exit(self) -> None:
        raise SystemExit(3)

    @rt.call
    def patient(self) -> str:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if self.ctx.cancelled():
                return "cancelled"
            time.sleep(0.005)
        return "done"

    @rt.stream(window=4, batch=2)
    def count(self, upto: int) -> Iterator[int]:
        try:
            yield from range(upto)
        finally:
            self.closed += 1


@pytest.fixture
async def subject() -> Subject:
    subject = Subject()
    await subject.on_start(FakeContext(), None)
    return subject


@pytest.fixture
def plain() -> Plain:
    plain = Plain()
    plain.on_start(FakeContext(), None)
    return plain


async def test_values_pass_as_between_processes(subject: Subject) -> None:
    assert await run_handler(subject.kind, (1, 2)) == "list"  # tuples arrive as lists
    assert await subject.kind((1, 2)) == "tuple"  # called directly it is just the method
    with pytest.raises(EncodeError, match="cannot travel"):
        await run_handler(subject.kind, object())


async def test_errors_are_those_of_a_caller_with_the_handlers_own_as_cause(subject: Subject) -> None:
    with pytest.raises(rt.RemoteError, match="broken") as caught:
        await run_handler(subject.fail)
    assert caught.value.type_name == "KeyError"
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(rt.RemoteError, match="the result cannot travel"):
        await run_handler(subject.unencodable)
    with pytest.raises(rt.RemoteError, match="missing 1 required"):
        await run_handler(subject.kind)  # type: ignore[call-arg]


async def test_a_deadline_travels_and_cancels_the_handler(subject: Subject) -> None:
    async with rt.deadline(5):
        remaining = await run_handler(subject.remaining)
    assert remaining is not None and 4 < remaining < 5
    assert await run_handler(subject.remaining) is None
    with pytest.raises(rt.DeadlineExceeded):
        async with rt.deadline(0.02):
            await run_handler(subject.sleep, 10)
    assert subject.closed == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await run_handler(subject.sleep, 10)
    assert subject.closed == 2


async def test_a_stream_is_read_within_its_window_and_closed_when_left(subject: Subject, plain: Plain) -> None:
    async with open_stream(subject.count, 100) as items:
        assert [item async for item in items] == list(range(100))
    assert subject.closed == 1
    async with open_stream(subject.count, 10**9) as items:
        assert await anext(items) == 0
    assert subject.closed == 2
    async with open_stream(plain.count, 100) as items:
        assert [item async for item in items] == list(range(100))
    async with open_stream(plain.count, 10**9) as items:
        assert await anext(items) == 0
    assert plain.closed == 2
    with pytest.raises(rt.RemoteError, match="the stream broke"):
        async with open_stream(subject.broken) as items:
            assert [item async for item in items] == [1]


async def test_blocking_handlers_run_beside_the_test(plain: Plain) -> None:
    assert await run_handler(plain.add, 2, b=3) == 5
    with pytest.raises(rt.RemoteError, match="SystemExit"):
        await run_handler(plain.exit)
    with pytest.raises(rt.DeadlineExceeded):
        async with rt.deadline(0.02):
            await run_handler(plain.patient)
    call = asyncio.ensure_future(run_handler(plain.patient))
    await asyncio.sleep(0.02)
    assert isinstance(plain.ctx, FakeContext)
    plain.ctx.cancel()
    assert await call == "cancelled"


async def test_a_fake_context_records_phases_and_plays_events(subject: Subject) -> None:
    assert isinstance(subject.ctx, FakeContext)
    assert subject.ctx.phases == ["load", "warm up"]
    other = FakeActor("other")
    watch = subject.ctx.watch(other.ref)
    died = rt.Died(1, rt.Cause("kill -9"))
    subject.ctx.tell(other.ref, rt.Ready(1))
    subject.ctx.tell(other.ref, died)
    assert [await anext(watch), await anext(watch)] == [rt.Ready(1), died]
    assert await anext(subject.ctx.watch(other.ref)) == died  # a later watch is told the present state
    subject.ctx.tell(other.ref, rt.Stopped())
    assert [event async for event in watch] == [rt.Stopped()]


async def test_a_fake_actor_answers_and_remembers(subject: Subject) -> None:
    store = FakeActor("store", {"put": lambda key, value: 10 * value})
    assert await run_handler(subject.ask, store.ref, 4) == 41
    assert store.told == [Told("put", ("k", 4), {}, is_cast=False)]

    def dies(key: str, value: int) -> int:
        raise rt.ActorDied("store", rt.Cause("kill -9"))

    with pytest.raises(rt.RemoteError, match="actor 'store' died: kill -9") as caught:
        await run_handler(subject.ask, FakeActor("store", {"put": dies}).ref, 4)
    assert isinstance(caught.value.__cause__, rt.ActorDied)
    with pytest.raises(rt.RemoteError, match="has no answer for it"):
        await run_handler(subject.ask, FakeActor("store").ref, 4)


async def test_an_actors_own_loop_runs_against_a_fake_actor() -> None:
    store = FakeActor("store")
    caster = Caster(store.ref)
    loop = asyncio.ensure_future(caster.run(FakeContext()))
    await asyncio.sleep(0.03)
    loop.cancel()
    assert Told("note", ("n",), {}, is_cast=True) in store.told


async def test_a_fake_actor_streams() -> None:
    numbers = FakeActor("numbers", {"count": range})
    async with numbers.ref.count.open(3) as items:
        assert [item async for item in items] == [0, 1, 2]


async def test_only_handlers_can_be_run(subject: Subject) -> None:
    with pytest.raises(TypeError, match="a handler of an actor instance is needed"):
        await run_handler(subject.on_stop, "now")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a handler of an actor instance is needed"):
        await run_handler(Subject.kind, 1)


async def test_a_stand_in_records_asks_casts_and_streams() -> None:
    """Friction: FakeActor told asks and streams apart from nothing."""
    fake = FakeActor("fake", {"add": lambda k: k + 1, "ticks": range})
    assert await fake.ref.add(1) == 2
    fake.ref.note.cast("x", loud=True)
    async with fake.ref.ticks.open(2) as ticks:
        assert [tick async for tick in ticks] == [0, 1]
    with pytest.raises(LookupError, match="no items for the stream 'other'"):
        fake.ref.other.open(5)
    assert [(told.method, told.args) for told in fake.asks] == [("add", (1,))]
    assert [(told.method, told.args, told.kwargs) for told in fake.casts] == [("note", ("x",), {"loud": True})]
    assert [(told.method, told.args) for told in fake.opened] == [("ticks", (2,)), ("other", (5,))]
    assert len(fake.told) == 4
