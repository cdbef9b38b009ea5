"""Cells of BlockingActors: `BlockingCell` on a process's main thread, `ThreadCell` on a thread beside a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from .actor import BlockingActor
from .cell import Cell, Incoming
from .origin import Origin
from .wire import FailureKind


class BlockingCell(Cell):
    """Runs handlers when told to. A running handler cannot be cancelled; a queued one is dropped."""

    def put(self, incoming: Incoming) -> None:
        self.queue.append(incoming)

    def cancel(self, origin: Origin, call_id: int) -> None:
        self._drop_queued(origin, call_id)

    def run_one(self) -> bool:
        """Handle the next message; False if there was none."""
        if not self.queue:
            return False
        incoming, function = self._take()
        if function is not None:
            try:
                value = function(self.actor, *incoming.args, **incoming.kwargs)
            except BaseException as error:  # SystemExit of a handler does not end the process
                self._failed(incoming, error)
            else:
                self._succeeded(incoming, value)
        self._on_handler(0)
        return True


class ThreadCell(BlockingCell):
    """The same on its own thread; answers go back to the loop that the callers live on."""

    def __init__(
        self,
        actor: BlockingActor,
        actor_id: int,
        name: str,
        on_handler: Callable[[int], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(actor, actor_id, name, on_handler)
        self._loop = loop
        self._changed = threading.Condition()
        self._stopping = False

    def put(self, incoming: Incoming) -> None:
        incoming.origin = _LoopOrigin(incoming.origin, self._loop)
        with self._changed:
            self.queue.append(incoming)
            self._changed.notify()

    def cancel(self, origin: Origin, call_id: int) -> None:
        with self._changed:
            for incoming in self.queue:
                if incoming.call_id == call_id and unwrapped(incoming.origin) is origin:
                    self._drop_queued(incoming.origin, call_id)
                    return

    def serve(self) -> None:
        """Handle messages until `stop`. Runs on the actor's thread."""
        while True:
            with self._changed:
                while not self.queue and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
            self.run_one()

    def stop(self) -> None:
        """Let `serve` return after the handler that runs."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def _take(self) -> tuple[Incoming, Callable[..., Any] | None]:
        with self._changed:
            return super()._take()


class _LoopOrigin:
    """Passes answers to another origin on its loop's thread."""

    def __init__(self, inner: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = inner
        self._loop = loop

    def reply(self, name: str, call_id: int, value: Any) -> None:
        self._loop.call_soon_threadsafe(self.inner.reply, name, call_id, value)

    def fail(
        self, name: str, call_id: int, kind: FailureKind, error: BaseException | None, text: str, trace: str
    ) -> None:
        self._loop.call_soon_threadsafe(self.inner.fail, name, call_id, kind, error, text, trace)

    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int) -> None:
        self._loop.call_soon_threadsafe(self.inner.took, actor_id, size_bytes, capacity_bytes)


def unwrapped(origin: Origin) -> Origin:
    return origin.inner if isinstance(origin, _LoopOrigin) else origin
