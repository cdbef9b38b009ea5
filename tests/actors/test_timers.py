"""Timers: messages that an actor sends itself later; in its turn, not piled up, gone with the incarnation."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import ringcast.actors as rt
import ringcast.actors.testing as rtt

pytestmark = pytest.mark.usefixtures("leak_oracle")


class Clock(rt.Actor):
    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.ctx = ctx
        self.seen: list[tuple[str, float]] = []
        self.timers: dict[str, rt.Timer] = {}

    @rt.call
    async def note(self, what: str) -> None:
        self.seen.append((what, time.monotonic()))

    @rt.call
    async def slow(self, what: str, seconds: float) -> None:
        self.seen.append((what, time.monotonic()))
        await asyncio.sleep(seconds)

    @rt.call
    async def fail(self) -> None:
        raise ValueError("it is late")

    @rt.call
    async def after(self, seconds: float, what: str) -> None:
        self.timers[what] = self.ctx.after(seconds, Clock.note.msg(what))

    @rt.call
    async def every(self, seconds: float, what: str, lasts_s: float = 0.0) -> None:
        self.timers[what] = self.ctx.every(seconds, Clock.slow.msg(what, lasts_s))

    @rt.call
    async def fail_after(self, seconds: float) -> None:
        self.ctx.after(seconds, Clock.fail.msg())

    @rt.call
    async def cancel(self, what: str) -> bool:
        self.timers[what].cancel()
        return self.timers[what].is_active

    @rt.call(concurrent=True)
    async def names(self) -> list[str]:
        return [what for what, _ in self.seen]

    @rt.call
    async def wrong(self, number: int) -> None:
        wrong: list[Any] = [
            lambda: self.ctx.after(-1, Clock.note.msg("x")),
            lambda: self.ctx.every(0, Clock.note.msg("x")),
            lambda: self.ctx.after(float("inf"), Clock.note.msg("x")),
            lambda: self.ctx.after(1, self.note),
            lambda: self.ctx.after(1, BlockingClock.tick.msg()),
            lambda: self.ctx.every("1", Clock.note.msg("x")),  # type: ignore[arg-type]
        ]
        wrong[number]()


class BlockingClock(rt.BlockingActor):
    def __init__(self, interval_s: float = 0.02) -> None:
        self.interval_s = interval_s

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.seen: list[str] = []
        self.once = ctx.after(0.05, BlockingClock.note.msg("once"))
        self.never = ctx.after(0.1, BlockingClock.note.msg("never"))
        self.beat = ctx.every(self.interval_s, BlockingClock.tick.msg())

    @rt.call
    def note(self, what: str) -> None:
        self.seen.append(what)
        self.never.cancel()

    @rt.call
    def tick(self) -> None:
        self.seen.append("tick")
        if self.seen.count("tick") == 5:
            self.beat.cancel()

    @rt.call
    def names(self) -> list[str]:
        return self.seen


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System(stop_timeout_s=1.0) as system:
        yield system


WHERES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


async def until(clock: Clock, what: str, count: int = 1) -> list[str]:
    async with asyncio.timeout(10):
        while (names := await clock.names()).count(what) < count:
            await asyncio.sleep(0.005)
    return names


@WHERES
async def test_messages_come_when_they_are_due_and_not_when_cancelled(system: rt.System, where: rt.Where) -> None:
    clock = await system.spawn(rt.spec(Clock), where=where)
    await clock.after(0.1, "second")
    await clock.after(0.02, "first")
    await clock.after(0.05, "never")
    assert await clock.cancel("never") is False
    assert await until(clock, "second") == ["first", "second"]
    assert await clock.cancel("first") is False, "after its end it may be cancelled"


@WHERES
async def test_a_repeated_message_does_not_pile_up(system: rt.System, where: rt.Where) -> None:
    clock = await system.spawn(rt.spec(Clock), where=where)
    await clock.every(0.01, "slow", 0.2)
    await until(clock, "slow", 2)
    await clock.cancel("slow")
    names = await clock.names()
    assert names.count("slow") <= 3, "twenty beats to a message"
    await asyncio.sleep(0.3)
    assert len(await clock.names()) <= len(names) + 1, "one may have been in the mailbox"


@WHERES
async def test_a_blocking_actor_has_timers_too(system: rt.System, where: rt.Where) -> None:
    clock = await system.spawn(rt.spec(BlockingClock), where=where)
    async with asyncio.timeout(10):
        while (names := await clock.names()).count("tick") < 5 or "once" not in names:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.15)
    assert sorted(await clock.names()) == ["once"] + ["tick"] * 5


@WHERES
async def test_an_interval_of_almost_nothing_makes_an_actor_busy_and_no_more(
    system: rt.System, where: rt.Where
) -> None:
    blocking = await system.spawn(rt.spec(BlockingClock, 1e-320), where=where)
    clock = await system.spawn(rt.spec(Clock), where=where)
    await clock.every(1e-320, "busy")
    await until(clock, "busy", 3)
    async with asyncio.timeout(10):
        while (await blocking.names()).count("tick") < 5:
            await asyncio.sleep(0.01)


async def test_what_a_handler_raises_is_logged_and_timers_go_on(
    system: rt.System, caplog: pytest.LogCaptureFixture
) -> None:
    clock = await system.spawn(rt.spec(Clock), name="clock")
    await clock.fail_after(0.01)
    await clock.after(0.05, "later")
    with caplog.at_level(logging.ERROR):
        await until(clock, "later")
    assert "timer's clock.fail failed" in caplog.text
    assert "ValueError: it is late" in caplog.text


async def test_timers_end_with_the_incarnation(system: rt.System) -> None:
    policy = rt.Restart("permanent", backoff_s=0.01)
    clock = await system.spawn(rt.spec(Clock), name="clock", where=rt.process(), restart=policy)
    await clock.every(0.01, "old")
    await until(clock, "old")
    os.kill(system.pids()["clock"], signal.SIGKILL)
    async with asyncio.timeout(10):
        async for event in system.watch(clock):
            if event == rt.Ready(2):
                break
    await asyncio.sleep(0.05)
    assert await clock.names() == []
    here = await system.spawn(rt.spec(Clock))
    await here.every(0.01, "old")
    await here.after(1000, "far")
    await system.stop(here)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "a timer of -1 seconds: give a finite number not below 0"),
        (1, "a timer of 0 seconds: give a finite number above 0"),
        (2, "a timer of inf seconds"),
        (3, r"a timer takes a message made by Class\.method\.msg"),
        (4, "Clock has no handler 'tick' that a timer could call"),
        (5, "a timer is given a number of seconds, not '1'"),
    ],
)
async def test_wrong_timers_are_refused_at_once(system: rt.System, number: int, text: str) -> None:
    clock = await system.spawn(rt.spec(Clock))
    with pytest.raises(rt.RemoteError, match=text):
        await clock.wrong(number)


def test_time_is_virtual_in_a_simulation() -> None:
    async def main(system: rt.System) -> None:
        for where in (rt.here, rt.process()):
            clock = await system.spawn(rt.spec(Clock), where=where)
            began = time.monotonic()
            await clock.every(3600.0, "hour")
            while len(await clock.names()) < 24:
                await asyncio.sleep(60)
            assert 24 * 3600 <= time.monotonic() - began < 25 * 3600
            blocking = await system.spawn(rt.spec(BlockingClock), where=where)
            await asyncio.sleep(60)
            assert sorted(await blocking.names()) == ["once"] + ["tick"] * 5

    began = time.monotonic()
    with rtt.Simulation(seed=1, limit_s=1e6) as simulation:
        simulation.run(main)
    assert time.monotonic() - began < 20


async def test_a_test_sees_the_timers_of_an_actor() -> None:
    ctx = rtt.FakeContext()
    actor = BlockingClock()
    actor.on_start(ctx, None)
    assert [(started.seconds, started.repeats) for started in ctx.timers] == [(0.05, False), (0.1, False), (0.02, True)]
    actor.note("once")
    assert [started.timer.is_active for started in ctx.timers] == [True, False, True]
