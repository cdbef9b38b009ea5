"""The sending side of a stream: takes items from a generator within the reader's credit, in batches.

Owned by a cell, one for each open stream. It decides when to send; the origin knows how.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

from ringcast.channels import ChannelError

from .origin import Origin, send_items


class StreamProducer:
    """Of an Actor. A batch leaves when it is full, or as soon as the generator waits for something."""

    def __init__(self, name: str, call_id: int, origin: Origin, window: int, batch: int) -> None:
        self._name = name
        self._call_id = call_id
        self._origin = origin
        self._window = window
        self._batch = batch
        self._credit = window
        self._items: list[Any] = []
        self._flush_scheduled = False
        self._granted = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None  # that runs
        self._failure: ChannelError | None = None  # what was to be sent while the generator waited could not be

    def grant(self, count: int) -> None:
        """The reader consumed items."""
        self._credit += count
        self._granted.set()

    async def run(self, items: AsyncGenerator[Any, None]) -> None:
        """Send everything that the generator yields. Cancelling ends the generator, and so does what cannot travel."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            while True:
                while self._credit <= 0:
                    self._granted.clear()
                    self._flush()
                    await self._granted.wait()
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    break
                self._credit -= 1
                self._items.append(item)
                if len(self._items) >= self._batch:
                    self._flush()
                elif not self._flush_scheduled:
                    self._flush_scheduled = True
                    loop.call_soon(self._flush_beside)  # runs as soon as the generator waits
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            assert self._task is not None
            self._task.uncancel()
        finally:
            try:
                self._flush()
            finally:
                await items.aclose()

    def _flush_beside(self) -> None:
        if self._failure is not None:
            return
        try:
            self._flush()
        except ChannelError as error:
            assert self._task is not None
            self._failure = error
            self._task.cancel()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._failure is not None:
            raise self._failure
        if self._items:
            items, self._items = self._items, []
            send_items(self._origin, self._name, self._call_id, items, self._window)


class BlockingProducer:
    """Of a BlockingActor: its generator is stepped between handlers, a batch at a time."""

    def __init__(
        self, name: str, call_id: int, origin: Origin, window: int, batch: int, items: Generator[Any, None, None]
    ) -> None:
        self._name = name
        self._call_id = call_id
        self._origin = origin
        self._window = window
        self._batch = batch
        self.credit = window
        self.items = items

    def step(self) -> bool:
        """Send one batch; False when the generator has ended. Its exceptions come out, what it yielded is sent."""
        taken: list[Any] = []
        try:
            while len(taken) < min(self._batch, self.credit):
                taken.append(next(self.items))
        except StopIteration:
            return False
        finally:
            self.credit -= len(taken)
            if taken:
                send_items(self._origin, self._name, self._call_id, taken, self._window)
        return True
