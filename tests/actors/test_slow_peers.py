"""A process that does not read, busy in a handler or stopped, delays nobody but its own callers, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from actor_zoo import Counter

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
RING_BYTES = 64 * 1024
ENOUGH = 3 * RING_BYTES // 1000  # messages of 1000 bytes: the ring goes round and comes to what was not read


class Busy(rt.BlockingActor):
    """Reads nothing while it works."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @rt.call
    def work_until(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.01)

    @rt.call
    def note(self, number: int, ballast: bytes = b"") -> int:
        self.seen.append(number)
        return len(ballast)

    @rt.call
    def noted(self) -> list[int]:
        return self.seen

    @rt.call
    def nap(self, seconds: float, ballast: bytes) -> None:
        time.sleep(seconds)


class Echo(Counter):
    """Says how large what it is told is, and may tell another one."""

    def __init__(self, other: Busy | None = None) -> None:
        super().__init__(0)
        self.other = other

    @rt.call
    async def ask_for_length(self) -> int:
        assert self.other is not None
        return await self.other.note(1, b"12345")

    @rt.call
    async def tell_and_ask(self, echo: Echo) -> int:
        assert self.other is not None
        self.other.note.cast(0)
        return sum([await echo.size(b"x" * 1000) for _ in range(ENOUGH)])


async def test_one_busy_in_a_handler_does_not_hold_up_the_traffic_to_others(tmp_path: Path) -> None:
    async with rt.System(ring_bytes=RING_BYTES) as system, asyncio.timeout(60):
        busy = await system.spawn(rt.spec(Busy), where=rt.process())
        echo = await system.spawn(rt.spec(Echo), where=rt.process())
        working = asyncio.ensure_future(busy.work_until(str(tmp_path / "enough")))
        await asyncio.sleep(0)
        for number in range(ENOUGH):
            busy.note.cast(number)
            assert await echo.size(b"x" * 1000) == 1000
        large = asyncio.ensure_future(busy.note(ENOUGH, b"x" * RING_BYTES))
        assert await echo.size(b"x" * RING_BYTES) == RING_BYTES
        assert not working.done()
        (tmp_path / "enough").touch()
        await working
        assert await large == RING_BYTES
        assert await busy.noted() == list(range(ENOUGH + 1))
        for number in range(ENOUGH):  # it has caught up, and goes on in the ring
            busy.note.cast(number)
        assert await busy.noted() == [*range(ENOUGH + 1), *range(ENOUGH)]


async def test_a_full_mailbox_of_one_member_does_not_hold_up_the_other_members() -> None:
    async with rt.System(ring_bytes=RING_BYTES) as system, asyncio.timeout(60):
        group = await system.spawn_group([rt.spec(Echo) for _ in range(3)])
        stopped = await group[1].pid()
        await group.gather(Echo.pid.msg())
        os.kill(stopped, signal.SIGSTOP)
        try:
            with pytest.raises(rt.MailboxFull):
                while True:
                    group.cast(Echo.size.msg(b"x"))
            assert await group[0].size(b"xx") == 2
            assert await group[2].size(b"xxx") == 3
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert await group.gather(Echo.size.msg(b"x" * RING_BYTES)) == [RING_BYTES] * 3


async def test_nor_does_one_that_another_actor_tells(tmp_path: Path) -> None:
    async with rt.System(ring_bytes=RING_BYTES) as system, asyncio.timeout(60):
        busy = await system.spawn(rt.spec(Busy), where=rt.process())
        echo = await system.spawn(rt.spec(Echo), where=rt.process())
        teller = await system.spawn(rt.spec(Echo, busy), where=rt.process())
        working = asyncio.ensure_future(busy.work_until(str(tmp_path / "enough")))
        assert await teller.tell_and_ask(echo) == ENOUGH * 1000
        (tmp_path / "enough").touch()
        await working
        while await busy.noted() != [0]:  # no order is promised between the teller's and ours
            await asyncio.sleep(0.01)


async def test_one_that_dies_while_it_is_gone_around_is_dead_and_the_others_live() -> None:
    async with rt.System(ring_bytes=RING_BYTES) as system, asyncio.timeout(60):
        stopped, echo = [await system.spawn(rt.spec(Echo), where=rt.process()) for _ in range(2)]
        pid = await stopped.pid()
        os.kill(pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(stopped.pid())
        for _ in range(ENOUGH):
            assert await echo.size(b"x" * 1000) == 1000
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(rt.ActorDied, match="SIGKILL"):
            await asked
        for _ in range(ENOUGH):
            assert await echo.size(b"x" * 1000) == 1000


async def test_a_blocking_actor_that_always_has_a_next_message_meets_others_and_stops_in_order() -> None:
    async with rt.System() as system, asyncio.timeout(30):
        busy = await system.spawn(rt.spec(Busy), where=rt.process())
        teller = await system.spawn(rt.spec(Echo, busy), where=rt.process())

        async def flood() -> None:
            while True:
                await busy.nap.cast.wait(0.002, b"x" * 20_000)  # few of them fill its mailbox

        flooding = asyncio.ensure_future(flood())
        try:
            while (await system.statistics())["ringcast"].messages_sent < 200:
                await asyncio.sleep(0.01)
            assert await teller.ask_for_length() == 5  # they have never met
            await system.stop(busy, timeout_s=10)
            assert not flooding.done() or isinstance(flooding.exception(), rt.ActorDied)
        finally:
            flooding.cancel()
