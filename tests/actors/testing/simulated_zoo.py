"""Actors and scenarios for the tests of the testing kit, in a module that can be imported by name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator

import ringcast.actors as rt
from ringcast.actors.testing import Faults, Probe, Simulation

KEEP = rt.Restart("permanent", max_restarts=1000, within_s=1, backoff_s=0.01)
ALL_FAULTS = Faults(
    kill=0.002, slow_reader=0.002, delayed_doorbell=0.05, delayed_frame=0.05, full_ring=0.02, late_reply=0.05
)


class Store(rt.Actor):
    """A dictionary. Its slow handlers leave room for a death in between."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    @rt.call
    async def put(self, key: str, value: int) -> int:
        self.items[key] = value
        return value

    @rt.call
    async def echo(self, token: str, delay_s: float) -> str:
        await asyncio.sleep(delay_s)
        return token

    @rt.call
    async def work(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @rt.call
    async def tidy(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(1)

    @rt.call
    async def stubborn(self, seconds: float) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(seconds)
        return "not cancelled"

    @rt.call
    async def size(self, data: bytes) -> int:
        return len(data)

    @rt.call
    async def note(self, key: str) -> None:
        self.items[key] = self.items.get(key, 0) + 1

    @rt.stream(window=8, batch=4)
    async def count(self, upto: int) -> AsyncIterator[int]:
        for k in range(upto):
            yield k

    @rt.call
    async def pid(self) -> int:
        return os.getpid()

    @rt.call
    async def die(self, how: str) -> None:
        if how == "exit3":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    @rt.call
    async def fail(self) -> None:
        raise KeyError("no such thing")

    @rt.call
    async def connect(self) -> None:
        await asyncio.open_connection("localhost", 80)


class Client(rt.Actor):
    """Asks a store from its own loop, two questions at a time, and checks that the answers are for them."""

    def __init__(self, store: Store, probe: Probe, delay_s: float = 0.02) -> None:
        self.store = store
        self.probe = probe
        self.delay_s = delay_s

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.incarnation = ctx.incarnation

    async def run(self, ctx: rt.Context) -> None:
        number = 0
        while True:
            number += 2
            await asyncio.gather(self.ask(number), self.ask(number + 1))

    async def ask(self, number: int) -> None:
        token = f"{self.incarnation}/{number}"
        try:
            answer = await self.store.echo(token, self.delay_s * random.random())
        except rt.ActorDied:
            await asyncio.sleep(0.005)
        else:
            self.probe.tell.cast([token, answer])


class Caster(rt.Actor):
    """Casts to a store for ever, whether it is there or not."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def run(self, ctx: rt.Context) -> None:
        while True:
            await asyncio.sleep(0.005)
            with contextlib.suppress(rt.ActorDied, rt.MailboxFull):
                self.store.note.cast("n")


class Cruncher(rt.BlockingActor):
    """Plain handlers."""

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx
        self.aborted = False

    @rt.call
    def crunch(self, seconds: float) -> float:
        began = time.monotonic()
        time.sleep(seconds)
        return time.monotonic() - began

    @rt.call
    def patient(self, seconds: float) -> float:
        """How long it worked before it was asked to end."""
        began = time.monotonic()
        while time.monotonic() < began + seconds and not (self.ctx.cancelled() or self.aborted):
            time.sleep(0.01)
        return time.monotonic() - began

    @rt.stream(window=8, batch=4)
    def count(self, upto: int) -> Iterator[int]:
        yield from range(upto)

    @rt.call
    def pid(self) -> int:
        return os.getpid()

    @rt.call
    def die(self, how: str) -> None:
        if how == "exit3":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    def on_abort(self) -> None:
        self.aborted = True


class Fragile(rt.Actor):
    """Its own loop breaks after a while."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s

    async def run(self, ctx: rt.Context) -> None:
        await asyncio.sleep(self.after_s)
        raise RuntimeError("the loop broke")


class Rank(rt.Actor):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    @rt.call
    async def step(self, by: int) -> int:
        return self.rank * by


async def tolerant(answer: object) -> object:
    """The answer, or the error's name: in the end every call has one or the other."""
    try:
        async with rt.deadline(30):
            return await answer  # type: ignore[misc]
    except rt.ActorError as error:
        assert not isinstance(error, rt.DeadlineExceeded), "it hung"
        return type(error).__name__


async def supervised_traffic(sim: Simulation, system: rt.System) -> None:
    """A tree of supervised processes under traffic: asks, casts, streams, groups, large messages."""
    probe = await system.spawn(rt.spec(Probe), name="probe")
    store = await system.spawn(rt.spec(Store), name="store", where=rt.process(), restart=KEEP)
    cruncher = await system.spawn(rt.spec(Cruncher), name="cruncher", where=rt.process(), restart=KEEP)
    pair = system.supervise("pair", strategy="rest_for_one", max_restarts=1000, within_s=1)
    client = await pair.spawn(rt.spec(Client, store, probe), name="client", where=rt.process(), restart=KEEP)
    group = await pair.spawn_group([rt.spec(Rank, r) for r in range(2)], name="rank", restart=KEEP)
    faults, sim.faults = sim.faults, ALL_FAULTS

    async def ask() -> None:
        for k in range(6):
            assert await tolerant(store.put("k", k)) in (k, "ActorDied")
            assert await tolerant(store.size(b"x" * 3000 * k)) in (3000 * k, "ActorDied")
            assert await tolerant(cruncher.crunch(0.01)) is not None
            try:
                store.note.cast("n")
            except rt.ActorDied:
                await asyncio.sleep(0.02)

    async def read() -> None:
        for actor in (store, cruncher):
            seen: list[int] = []
            try:
                async with actor.count.open(40) as items:
                    async for item in items:
                        seen.append(item)
            except rt.ActorDied:
                pass
            assert seen == list(range(len(seen)))

    async def gather() -> None:
        for k in range(3):
            answers = await group.gather(Rank.step.msg(k), partial=True)
            assert [a for a in answers if isinstance(a, rt.Ok)] == [
                rt.Ok(rank * k) for rank, a in enumerate(answers) if isinstance(a, rt.Ok)
            ]

    await asyncio.gather(ask(), read(), gather())
    await probe.until(lambda told: len(told) >= 5)
    sim.faults = faults
    assert all(token == answer for token, answer in await probe.told())
    await system.stop(client)
