"""Actors for the tests, in a module that child processes can import."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import ringcast.actors as rt
from ringcast.channels.codec import message


@message(119)
@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int


class Counter(rt.Actor):
    def __init__(self, start: int) -> None:
        self.n = start

    @rt.call
    async def add(self, k: int) -> int:
        self.n += k
        return self.n

    @rt.call
    async def record(self, k: int) -> None:
        self.seen = [*getattr(self, "seen", []), k]

    @rt.call
    async def recorded(self) -> list[int]:
        return list(getattr(self, "seen", []))

    @rt.call
    async def echo(self, value: object) -> object:
        return value

    @rt.call
    async def size(self, data: bytes) -> int:
        return len(data)

    @rt.call
    async def pid(self) -> int:
        return os.getpid()

    @rt.call
    async def affinity(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    @rt.call
    async def fail(self, text: str) -> None:
        raise ValueError(text + " \ud800")  # a text that does not encode

    @rt.call
    async def exit(self) -> None:
        sys.exit(7)

    @rt.call
    async def unencodable(self) -> object:
        return object()

    @rt.call
    async def unencodable_within(self) -> object:
        return {"k": [1, object()]}

    @rt.call
    async def sleep(self, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.n = -1
            raise
        return "slept"

    @rt.call
    async def die(self, how: str) -> None:
        die(how)


class Relay(rt.Actor):
    """Asks another actor on behalf of its callers."""

    def __init__(self, target: Counter) -> None:
        self.target = target
        self.events: list[str] = []

    async def run(self, ctx: rt.Context) -> None:
        async for event in ctx.watch(self.target):
            self.events.append(type(event).__name__)

    @rt.call
    async def add(self, k: int) -> int:
        return await self.target.add(k)

    @rt.call
    async def why(self) -> list[str]:
        """The type and text of the failure of a call to the target."""
        try:
            await self.target.add(1)
        except rt.ActorError as error:
            return [type(error).__name__, str(error)]
        return []

    @rt.call
    async def tell(self, count: int) -> None:
        for k in range(count):
            await self.target.record.cast.wait(k)

    @rt.call
    async def seen_events(self) -> list[str]:
        return self.events


class Blocking(rt.BlockingActor):
    def __init__(self, start: int = 0) -> None:
        self.n = start

    @rt.call
    def add(self, k: int) -> int:
        self.n += k
        return self.n

    @rt.call
    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    @rt.call
    def echo(self, value: object) -> object:
        return value

    @rt.call
    def pid(self) -> int:
        return os.getpid()

    @rt.call
    def exit(self) -> None:
        sys.exit(7)

    @rt.call
    def fail(self, text: str) -> None:
        raise KeyError(text)

    @rt.call
    def die(self, how: str) -> None:
        die(how)


class Listener(rt.Actor):
    @rt.call
    async def hear(self, heard: threading.Event) -> None:
        heard.set()


class Teller(rt.BlockingActor):
    """On a thread beside the loop: casts, and waits until it was heard."""

    @rt.call
    def tell(self, listener: Listener, heard: threading.Event) -> bool:
        listener.hear.cast(heard)
        return heard.wait(10)

    @rt.call
    def tell_all(self, listeners: rt.Group[Listener], heard: threading.Event) -> bool:
        listeners.cast(Listener.hear.msg(heard))
        return heard.wait(10)

    @rt.call
    def tell_unencodable(self, counter: Counter) -> None:
        counter.add.cast(object())  # type: ignore[arg-type]


class BadStart(rt.Actor):
    def __init__(self, how: str) -> None:
        if how == "init":
            raise RuntimeError("no luck in init")
        self.how = how

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        ctx.phase("load weights")
        if self.how == "on_start":
            raise RuntimeError("no luck in on_start")
        if self.how == "hang":
            await asyncio.Event().wait()
        die(self.how)


class BadRun(rt.Actor):
    def __init__(self, after_s: float) -> None:
        self.after_s = after_s

    async def run(self, ctx: rt.Context) -> None:
        await asyncio.sleep(self.after_s)
        raise RuntimeError("the loop broke")

    @rt.call
    async def pid(self) -> int:
        return os.getpid()


class Cancelled(rt.Actor):
    """Awaits, at ``where``, a task that somebody cancelled: a CancelledError that no stop and no caller asked for."""

    def __init__(self, where: str = "") -> None:
        self.where = where

    async def _at(self, where: str) -> None:
        if where == self.where:
            task = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(task.cancel)
            await task

    async def on_prepare(self, ctx: rt.Context) -> None:
        await self._at("on_prepare")

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        await self._at("on_start")

    async def run(self, ctx: rt.Context) -> None:
        await self._at("run")

    async def on_stop(self, reason: str) -> None:
        await self._at("on_stop")

    @rt.call
    async def handle(self, where: str) -> str:
        self.where = where
        await self._at("handle")
        return where

    @rt.call(concurrent=True)
    async def beside(self) -> None:
        self.where = "beside"
        await self._at("beside")

    @rt.stream(window=2)  # a window smaller than the usual batch
    async def items(self, where: str) -> AsyncIterator[int]:
        self.where = where
        for k in range(3):
            yield k
        await self._at("items")

    @rt.call
    async def cancel_its_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)


class Farewell(rt.Actor):
    def __init__(self, path: str, delay_s: float = 0.0) -> None:
        self.path = path
        self.delay_s = delay_s

    async def on_stop(self, reason: str) -> object:
        await asyncio.sleep(self.delay_s)
        with open(self.path, "a") as file:
            file.write(f"{os.path.basename(self.path)}: {reason}\n")
        return None


def die(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "exit0":
        os._exit(0)
    if how == "exit3":
        print("famous last words", file=sys.stderr)
        os._exit(3)
    raise AssertionError(f"unknown way to die: {how}")


class Streams(rt.Actor):
    def __init__(self) -> None:
        self.produced = 0
        self.closed = 0

    @rt.stream(window=16, batch=4)
    async def count(self, upto: int) -> AsyncIterator[int]:
        try:
            for k in range(upto):
                self.produced += 1
                yield k
        finally:
            self.closed += 1

    @rt.stream(window=4, batch=4)
    async def slowly(self, upto: int) -> AsyncIterator[int]:
        for k in range(upto):
            yield k
            await asyncio.sleep(0.02)

    @rt.stream
    async def broken(self, after: int) -> AsyncIterator[int]:
        for k in range(after):
            yield k
        raise ValueError("the stream broke")

    @rt.stream()
    async def unencodable(self, then_waits: bool = False) -> AsyncIterator[object]:
        yield 1
        yield object()
        if then_waits:
            await asyncio.sleep(3600)

    @rt.call
    async def counts(self) -> list[int]:
        return [self.produced, self.closed]

    @rt.call
    async def die(self, how: str) -> None:
        die(how)


class BlockingStreams(rt.BlockingActor):
    def __init__(self) -> None:
        self.produced = 0
        self.closed = 0

    @rt.stream(window=16, batch=4)
    def count(self, upto: int) -> Iterator[int]:
        try:
            for k in range(upto):
                self.produced += 1
                yield k
        finally:
            self.closed += 1

    @rt.stream()
    def broken(self, after: int) -> Iterator[int]:
        yield from range(after)
        raise ValueError("the stream broke")

    @rt.call
    def counts(self) -> list[int]:
        return [self.produced, self.closed]


class Member(rt.Actor):
    def __init__(self, rank: int, bad_start: bool = False) -> None:
        self.rank = rank
        self.bad_start = bad_start
        self.steps = 0

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        if self.bad_start:
            raise RuntimeError(f"rank {self.rank} has no luck")

    @rt.call
    async def step(self, by: int, bad_rank: int = -1, slow_rank: int = -1) -> list[int]:
        if self.rank == slow_rank:
            await asyncio.sleep(30)
        if self.rank == bad_rank:
            raise ValueError(f"rank {self.rank} fails")
        self.steps += by
        return [self.rank, self.steps]


class Chain(rt.Actor):
    """Asks the next one, which may be itself."""

    def __init__(self) -> None:
        self.next: Chain | None = None
        self.value = 0

    @rt.call
    async def link(self, to: Chain) -> None:
        self.next = to

    @rt.call
    async def pass_on(self, hops: int) -> str:
        if hops == 0 or self.next is None:
            return "end"
        return await self.next.pass_on(hops - 1)

    @rt.call(concurrent=True)
    async def pass_on_beside(self, hops: int) -> str:
        if hops == 0 or self.next is None:
            return "end"
        return await self.next.pass_on_beside(hops - 1)

    @rt.call
    async def pass_on_to_meet(self, hops: int) -> int:
        """An ordinary handler waits for a concurrent one, which may be its own actor's."""
        assert self.next is not None
        return await (self.next.meet(0) if hops == 0 else self.next.pass_on_to_meet(hops - 1))

    @rt.call(concurrent=True)
    async def pass_on_from_beside(self, hops: int) -> str:
        """The other way round."""
        assert self.next is not None
        return await self.next.pass_on(hops)

    @rt.call(concurrent=True)
    async def meet(self, seconds: float) -> int:
        self.value += 1
        await asyncio.sleep(seconds)
        return self.value

    @rt.stream
    async def numbers(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @rt.call
    async def remaining(self) -> float | None:
        """Seconds left of the caller's deadline, as the callee's callee sees them."""
        if self.next is not None:
            return await self.next.remaining()
        at = rt.deadline.current()
        return None if at is None else at - time.monotonic()

    @rt.call
    async def trace(self) -> str | None:
        return await self.next.trace() if self.next is not None else rt.current_trace()

    @rt.call
    async def stubborn(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.value = 100

    @rt.call(idempotent=True)
    async def get(self) -> int:
        return self.value

    @rt.call
    async def die(self, how: str) -> None:
        die(how)


class Patient(rt.BlockingActor):
    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx
        self.noticed = 0

    @rt.call
    def work(self, seconds: float) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.ctx.cancelled():
                self.noticed += 1
                return "cancelled"
            time.sleep(0.01)
        return "done"

    @rt.call
    def times_noticed(self) -> int:
        return self.noticed


class Keeper(rt.Actor):
    """Hands its number on to its successor."""

    def __init__(self) -> None:
        self.n = 0

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.n = handoff if isinstance(handoff, int) else 0
        self.incarnation = ctx.incarnation

    async def on_stop(self, reason: str) -> object:
        return self.n

    @rt.call
    async def add(self, k: int) -> list[int]:
        self.n += k
        return [self.incarnation, self.n]

    @rt.call
    async def die(self, how: str) -> None:
        die(how)


class FailsAtRestart(rt.Actor):
    """Starts well as often as its file has lines to take away."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        with open(self.path) as file:
            lines = file.readlines()
        if not lines:
            raise RuntimeError("no lives left")
        with open(self.path, "w") as file:
            file.writelines(lines[1:])

    @rt.call
    async def die(self, how: str) -> None:
        die(how)


class Limited(rt.BlockingActor):
    """Declares how long a handler may take."""

    stall_after_s = 0.15

    def __init__(self, stall_phase: bool = False) -> None:
        self.stall_phase = stall_phase

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        ctx.phase("load weights", stall_after=0.1)
        if self.stall_phase:
            time.sleep(0.6)

    @rt.call
    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    @rt.call
    def hold_the_interpreter(self) -> None:
        sum(range(10**12))

    @rt.call
    def pid(self) -> int:
        return os.getpid()


class Abortable(rt.BlockingActor):
    """Stuck in something that only its side thread can break."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.released = threading.Event()

    def on_abort(self) -> None:
        self.released.set()

    @rt.call
    def stuck(self) -> str:
        return "aborted" if self.released.wait(60) else "not aborted"

    def on_stop(self, reason: str) -> object:
        with open(self.path, "w") as file:
            file.write("stopped in order")
        return None
