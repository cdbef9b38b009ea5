"""Checked by test_typing.py, never run: what `mypy --strict` must infer, line by line."""

from collections.abc import AsyncIterator, Iterator
from typing import reveal_type

import ringcast.actors as rt


class Worker(rt.Actor):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    @rt.call
    async def step(self, batch: list[int], *, dry: bool = False) -> int:
        return len(batch)

    @rt.call(concurrent=True, idempotent=True)
    async def name(self) -> str:
        return "w"

    @rt.stream(window=8, batch=2)
    async def tokens(self, prompt: str) -> AsyncIterator[str]:
        yield prompt


class Cruncher(rt.BlockingActor):
    @rt.call
    def crunch(self, x: float) -> float:
        return x

    @rt.stream()
    def numbers(self) -> Iterator[float]:
        yield 1.0


async def main(system: rt.System) -> None:
    worker = await system.spawn(rt.spec(Worker, 0), name="w0", where=rt.process())
    reveal_type(worker)  # Worker
    reveal_type(await worker.step([1, 2], dry=True))  # int
    reveal_type(await worker.name())  # str
    worker.step.cast([1])
    await worker.step.cast.wait([1])
    async with worker.tokens.open("hi") as tokens:
        async for token in tokens:
            reveal_type(token)  # str
    cruncher = await system.spawn(rt.spec(Cruncher))
    reveal_type(await cruncher.crunch(1.0))  # float
    async with cruncher.numbers.open() as numbers:
        reveal_type(await anext(numbers))  # float
    group = await system.spawn_group([rt.spec(Worker, rank) for rank in range(8)])
    message = Worker.step.msg([1])
    reveal_type(await group.gather(message))  # list[int]
    reveal_type(await group.gather(message, reply_from=0))  # int
    for outcome in await group.gather(message, partial=True):
        if isinstance(outcome, rt.Ok):
            reveal_type(outcome.value)  # int
    reveal_type(group[0])  # Worker
    reveal_type(group[1:3])  # Group[Worker]
    reveal_type(await rt.retry(worker.name)())  # str
    pool = system.supervise("pool", strategy="one_for_all")
    reveal_type(await pool.spawn(rt.spec(Worker, 1)))  # Worker
    workers = await system.spawn_pool([rt.spec(Worker, rank) for rank in range(2)])
    reveal_type(workers.any)  # Worker
    reveal_type(await workers.at("key").step([1]))  # int
    reveal_type(workers.members)  # Group[Worker]
    reveal_type(rt.pool([worker]))  # Pool[Worker]


def in_a_thread(portal: rt.Portal) -> None:
    worker = portal.run(portal.system.spawn, rt.spec(Worker, 0), name="w0", where=rt.process())
    reveal_type(portal.call(worker.step, [1], dry=True))  # int
    reveal_type(portal.submit(worker.name).result())  # str
    portal.cast(worker.step, [1])
    with portal.stream(worker.tokens, "hi") as tokens:
        reveal_type(next(tokens))  # str
    with portal.entered(rt.connect("workers")) as remote:
        reveal_type(portal.call(remote.find("w0", Worker).name))  # str
