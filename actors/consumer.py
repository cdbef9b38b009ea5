"""The receiving side of a stream: an async iterator that returns credit as it is read.

Made by `BoundStream.open`; its node feeds it. Leaving its block ends the producer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from .errors import ActorError


class StreamReader(AsyncIterator[Any]):
    """``async with`` opens it, ``async for`` reads it; what the producer raised is raised after its last item.

    One task reads it, once: anything else raises `ActorError` at once.
    """

    def __init__(self, start: Callable[[StreamReader], int], stop: Callable[[int], None]) -> None:
        self._start = start
        self._stop = stop
        self._call_id = 0
        self._was_entered = False
        self._is_awaited = False  # a task waits in __anext__
        self._items: deque[Any] = deque()
        self._unreturned = 0
        self._window = 1
        self._return_credit: Callable[[int], None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self.has_ended = False
        self._error: ActorError | None = None

    async def __aenter__(self) -> StreamReader:
        if self._was_entered:
            raise ActorError("a stream's reader can be entered only once: call .open(...) again")
        self._was_entered = True
        self._call_id = self._start(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._items.clear()  # who reads on, in another task perhaps, is at the end
        self._error = None
        if not self.has_ended:
            self.has_ended = True
            self._stop(self._call_id)
            self._wake()

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> Any:
        if not self._was_entered:
            raise ActorError(
                "a stream is read inside `async with`: "
                "async with ref.items.open(...) as items: async for item in items: ..."
            )
        if self._is_awaited:
            raise ActorError("another task waits for this stream's next item: a stream has one reader, open it twice")
        while not self._items:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self.has_ended:
                raise StopAsyncIteration
            self._arrived = asyncio.get_running_loop().create_future()
            self._is_awaited = True
            try:
                await self._arrived
            finally:
                self._is_awaited = False
        item = self._items.popleft()
        self._unreturned += 1
        if self._unreturned * 2 >= self._window and not self.has_ended:
            assert self._return_credit is not None
            self._return_credit(self._unreturned)
            self._unreturned = 0
        return item

    # Called by the node.

    def put(self, items: list[Any], window: int, return_credit: Callable[[int], None]) -> None:
        """Items came; ``return_credit`` tells the producer how many were read."""
        self._items.extend(items)
        self._window = window
        self._return_credit = return_credit
        self._wake()

    def end(self, value: Any, error: ActorError | None) -> None:
        """Nothing more comes."""
        self.has_ended = True
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
