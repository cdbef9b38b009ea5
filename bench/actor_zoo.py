"""The actors that bench.actors measures, in a module that their processes can import."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import ringcast.actors as rt


class Echo(rt.Actor):
    @rt.call
    async def ping(self, x: int) -> int:
        return x

    @rt.call
    async def take(self, x: int) -> None:
        """For casts."""

    @rt.call
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @rt.stream(window=512, batch=64)
    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number


class BlockingEcho(rt.BlockingActor):
    @rt.call
    def ping(self, x: int) -> int:
        return x
