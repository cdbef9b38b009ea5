"""The runtime on the sanitized build of its native modules: ``python sanitized_runtime.py SEED SECONDS``.

First a mailbox gets envelopes of wrong and of right parts, then a system has real traffic. Prints what came of it;
RINGCAST_TEST_NATIVE is the folder of the build, see native_builds.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import logging
import os
import random
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

BUILD = Path(os.environ.pop("RINGCAST_TEST_NATIVE"))
for variable in ("LD_PRELOAD", "PYTHONMALLOC"):  # of this process alone
    os.environ.pop(variable)


class TestBuild:
    """Finds the native modules of the runtime in the test build."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in ("ringcast.channels._native", "ringcast.actors._native"):
            return None
        file = BUILD / name.split(".")[1] / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        return importlib.util.spec_from_file_location(name, file)


sys.meta_path.insert(0, TestBuild)  # type: ignore[arg-type]

import ringcast.actors as rt  # noqa: E402
from ringcast.actors.async_cell import AsyncCell  # noqa: E402
from ringcast.actors.cell import Panel  # noqa: E402
from ringcast.actors.delivery import Delivery  # noqa: E402
from ringcast.actors.origin import RemoteOrigin  # noqa: E402
from ringcast.channels import Codec  # noqa: E402


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
    fuzz, codec, sent = Fuzz(seed), Codec(), 0
    calls = SimpleNamespace(finish=lambda *_: None, items=lambda *_: None)
    node: Any = SimpleNamespace(codec=codec, cells={}, calls=calls, counters=SimpleNamespace(undecodable=0), peers={})
    node.send_masked, node.credit = lambda mask, data: codec.decode(data), lambda *_: None
    peer: Any = SimpleNamespace(slot=1, mask=1, name="peer")
    node.peers[1], peer.origin = peer, RemoteOrigin(node, peer)
    delivery = Delivery(node)
    for actor_id in (1, 2):
        panel = Panel(lambda number: None, lambda *figures: None)
        cell = node.cells[actor_id] = AsyncCell(Worker(), actor_id, f"worker-{actor_id}", panel)
        cell.start()
    await asyncio.sleep(0)
    done = asyncio.Event()

    def batch() -> None:
        nonlocal sent
        for _ in range(50):
            data = codec.encode(fuzz.envelope())
            messages: Any = [(0, data)] * fuzz.random.choice((1, 1, 2))
            delivery.handle_all(peer, messages, len(messages) == 1)
            sent += len(messages)
        done.set()

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done.clear()
        asyncio.get_running_loop().call_soon(batch)
        await done.wait()
        for _ in range(60):
            await asyncio.sleep(0)
    handled = 0
    for cell in node.cells.values():
        assert not cell._task.done(), "an actor has ended"
        handled += cell.meter.handled
        cell.stop()
        await asyncio.wait([cell._task])
        await cell.close()
    assert 0 < node.counters.undecodable < sent and 0 < handled < sent
    return f"{sent} envelopes, {node.counters.undecodable} refused, {handled} handled"


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
