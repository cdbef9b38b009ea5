"""The runtime on the sanitized build of its native modules: ``python sanitized_runtime.py SEED SECONDS``.

First a mailbox gets envelopes of wrong and of right parts, then a system has real traffic. Prints what came of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/, of native_finder
import native_finder

native_finder.install()
for variable in ("LD_PRELOAD", "PYTHONMALLOC"):  # of this process alone
    os.environ.pop(variable)

from delivery_desk import Desk  # noqa: E402

import ringcast.actors as rt  # noqa: E402
from ringcast.actors.cell import Panel  # noqa: E402


class Worker(rt.Actor):
    """Handlers of every kind."""

    @rt.call
    async def echo(self, x: Any = None) -> Any:
        return x

    @rt.call
    async def wait(self, x: Any = None) -> Any:
        await asyncio.sleep(0)
        return x

    @rt.call
    async def fail(self) -> None:
        raise ValueError("as asked")

    @rt.call(concurrent=True)
    async def beside(self) -> int:
        await asyncio.sleep(0)
        return 1

    @rt.stream
    async def count(self, upto: int = 3) -> AsyncIterator[int]:
        for number in range(upto):
            yield number


METHODS = ("echo", "wait", "fail", "beside", "count", "none")


class Fuzz:
    """Envelopes, most of them with something wrong in them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        choose = self.random.choice
        plain = (0, 1, 5, -1, 2**63, None, True, 1.5, "echo", "", b"x", [], {}, [1, 2], {"x": 1}, {1: 2})
        if depth < 3 and self.random.random() < 0.2:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        return choose(plain)

    def envelope(self) -> Any:
        choose = self.random.choice
        method, args = choose(METHODS), choose(([], [1], [1, 2], [None] * 12))
        contexts = (None, None, [None, [], None, False], [1e18, [1, 2], "trace", True], [0.0, [7], None, False])
        made: list[Any] = choose(
            (
                [0, choose((1, 2, 3)), self.random.randrange(9), method, args, {}, choose(contexts)],
                [1, choose((1, 2)), method, args, choose(({}, {"x": 1}))],
                [2, 5, 1],
                [4, 1, self.random.randrange(9)],
                [6, 1, self.random.randrange(9), "count", [], {}, None],
                [8, 1, self.random.randrange(9), 64],
                [9, [1, 2, 7], choose((None, 5)), choose((None, 0, 1)), method, args, {}, choose(contexts)],
                [self.random.randrange(-1, 12), *(self.value() for _ in range(self.random.randrange(8)))],
            )
        )
        for _ in range(choose((0, 0, 1, 2))):
            place = self.random.randrange(len(made)) if made else 0
            how = self.random.randrange(4)
            if how == 3 and self.random.random() < 0.2:
                return self.value()
            made[place : place + (how < 2)] = [] if how == 0 else [self.value()]
        return made


async def fuzz_a_mailbox(seed: int, seconds: float) -> str:
    """Two actors get envelopes for so long; what they handled."""
    fuzz, sent = Fuzz(seed), 0
    desk = Desk(Worker, Panel(lambda number: None, lambda *figures: None))
    await asyncio.sleep(0)
    done = asyncio.Event()

    def batch() -> None:
        nonlocal sent
        for _ in range(50):
            data = desk.node.codec.encode(fuzz.envelope())
            messages: Any = [(0, data)] * fuzz.random.choice((1, 1, 2))
            desk.delivery.handle_all(desk.peer, messages, len(messages) == 1)
            sent += len(messages)
        desk.sent.clear()
        done.set()

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done.clear()
        asyncio.get_running_loop().call_soon(batch)
        await done.wait()
        for _ in range(60):
            await asyncio.sleep(0)
    await desk.close()
    handled = sum(cell.meter.handled for cell in desk.cells.values())
    refused = desk.node.counters.undecodable
    assert 0 < refused < sent and 0 < handled < sent
    return f"{sent} envelopes, {refused} refused, {handled} handled"


async def have_traffic(seconds: float) -> str:
    """Every way of asking and telling, here and between processes, for so long."""
    rounds, until = 0, time.monotonic() + seconds
    async with rt.System("sanitized") as system:
        group = await system.spawn_group([rt.spec(Worker), rt.spec(Worker)])
        here = await system.spawn(rt.spec(Worker))
        while time.monotonic() < until:
            rounds += 1
            for worker in (here, group[0]):
                assert await worker.echo(rounds) == rounds and await worker.wait("x" * rounds) == "x" * rounds
                assert await asyncio.gather(*(worker.echo(n) for n in range(50))) == list(range(50))
                for _ in range(50):
                    await worker.echo.cast.wait(None)
                async with worker.count.open(100) as items:
                    assert [item async for item in items] == list(range(100))
                async with rt.deadline(60):
                    assert await worker.beside() == 1
                try:
                    await worker.fail()
                except rt.RemoteError as error:
                    assert "as asked" in str(error)
                task = asyncio.ensure_future(worker.wait())
                await asyncio.sleep(0)
                task.cancel()
            assert await group.gather(Worker.echo.msg(rounds)) == [rounds, rounds]
    return f"{rounds} rounds of traffic"


def main() -> None:
    logging.disable(logging.CRITICAL)  # of what is refused and of what fails
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    print(asyncio.run(fuzz_a_mailbox(seed, seconds / 2)), end=", ")
    print(asyncio.run(have_traffic(seconds / 2)))


if __name__ == "__main__":
    main()
