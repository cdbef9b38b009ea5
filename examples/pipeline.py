"""A streaming pipeline over three processes: each stage reads the one before, at the pace of the slowest."""

from collections.abc import AsyncIterator

import ringcast.actors as rt


class Source(rt.Actor):
    @rt.stream(window=32, batch=8)
    async def numbers(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number


class Squares(rt.Actor):
    def __init__(self, source: Source) -> None:
        self.source = source

    @rt.stream(window=32, batch=8)
    async def squares(self, upto: int) -> AsyncIterator[int]:
        async with self.source.numbers.open(upto) as numbers:
            async for number in numbers:
                yield number * number


async def main(system: rt.System) -> None:
    source = await system.spawn(rt.spec(Source), where=rt.process())
    squares = await system.spawn(rt.spec(Squares, source), where=rt.process())
    async with squares.squares.open(1_000_000) as items:
        async for item in items:  # leaving the block ends both producers
            if item > 100:
                break
            print(item)


rt.run(main)
