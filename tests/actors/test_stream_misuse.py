"""A stream's reader that is used wrongly says so at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


class Ticks(rt.Actor):
    @rt.stream
    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @rt.stream
    async def never(self) -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 0


@PLACES
async def test_a_stream_used_wrongly_is_an_error_that_says_how(where: rt.Where) -> None:
    """A5: without `async with` it hung; so did the second of two readers; a second `async with` was empty."""
    async with rt.System() as system, asyncio.timeout(20):
        ticks = await system.spawn(rt.spec(Ticks), where=where)
        reader: Any = ticks.count.open(3)
        with pytest.raises(rt.ActorError, match=r"read inside `async with`: async with ref.items.open\("):
            [number async for number in reader]

        async with ticks.count.open(3) as numbers:
            assert [number async for number in numbers] == [0, 1, 2]
        with pytest.raises(rt.ActorError, match="entered only once"):
            async with numbers:  # type: ignore[attr-defined]
                pass

        async with ticks.never.open() as endless:
            first = asyncio.ensure_future(anext(endless))
            await asyncio.sleep(0)
            with pytest.raises(rt.ActorError, match="another task waits for this stream's next item"):
                await anext(endless)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            next_one = asyncio.ensure_future(anext(endless))  # one after the other is fine
            await asyncio.sleep(0)
            assert not next_one.done()
        with pytest.raises(StopAsyncIteration):
            await next_one
