"""Cells of BlockingActors: `BlockingCell` on a process's main thread, `ThreadCell` on a thread beside a loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from . import platform
from ._native import Incoming
from .actor import BlockingActor, Descriptor, StreamDescriptor
from .call_scope import inside
from .cell import Cell, Handler, Panel
from .failure import describe
from .forks import end_forked_process, tell_of_forks
from .origin import Origin, ThreadedOrigin
from .producer import BlockingProducer
from .wire import FailureKind

log = logging.getLogger("ringcast.actors")


class BlockingCell(Cell):
    """Runs handlers when told to. A running handler is asked to end (``cancelled``), never interrupted."""

    def __init__(self, actor: BlockingActor, actor_id: int, name: str, panel: Panel | None) -> None:
        super().__init__(actor, actor_id, name, panel)
        self._cancelled = False
        self._streams: dict[tuple[Origin, int], tuple[Incoming, BlockingProducer]] = {}
        self._to_close: list[BlockingProducer] = []  # given up: closed by the actor's own thread

    def cancel(self, origin: Origin, call_id: int) -> None:
        current = self._current
        if current is not None and current.call_id == call_id and current.origin == origin:
            self._cancelled = True
        elif (stream := self._streams.pop((origin, call_id), None)) is not None:
            self._to_close.append(stream[1])
        else:
            self._drop_queued(origin, call_id)

    def more(self, origin: Origin, call_id: int, count: int) -> None:
        stream = self._streams.get((origin, call_id))
        if stream is not None:
            stream[1].credit += count

    def forget(self, origin: Origin) -> None:
        for key in [key for key in self._streams if key[0] == origin]:
            self._to_close.append(self._streams.pop(key)[1])

    def cancelled(self) -> bool:
        """Whether the caller of the handler that runs has given up, or its deadline has passed."""
        current = self._current
        return self._cancelled or (current is not None and current.context.expired())

    def run_one(self) -> bool:
        """Handle the next message, then give every stream with credit a turn; False if there was nothing to do."""
        ran = False
        if self.queue:
            incoming, handler = self._take()
            ran = True
            if handler is None:
                pass
            elif handler.is_stream:
                self._start_stream(incoming, handler.descriptor)
            else:
                self._run(incoming, handler.function)
            self._show_idle()
        while self._to_close:
            self._end(self._to_close.pop())
        for key, (incoming, producer) in list(self._streams.items()):
            if producer.credit > 0:
                ran = True
                self._step_stream(key, incoming, producer)
        return ran

    def _run(self, incoming: Incoming, function: Callable[..., Any]) -> None:
        self._cancelled = False
        self._open(incoming, self._context_of(incoming))
        try:
            value = function(self.actor, *incoming.args, **incoming.kwargs)
        except BaseException as error:  # SystemExit of a handler does not end the process
            self._failed(incoming, error)
        else:
            if incoming.context.expired() and incoming.call_id is not None:
                self.meter.handled_since(time.monotonic(), incoming.began_at)
                where = f"while {self.name}.{incoming.method} ran"
                incoming.origin.fail(self.name, incoming.call_id, FailureKind.DEADLINE, None, where, "")
            elif self._cancelled:
                self.meter.handled_since(time.monotonic(), incoming.began_at)
            else:
                self._succeeded(incoming, value)
        finally:
            self._close()

    def _start_stream(self, incoming: Incoming, descriptor: Descriptor) -> None:
        assert incoming.call_id is not None and isinstance(descriptor, StreamDescriptor)
        try:
            items = descriptor.function(self.actor, *incoming.args, **incoming.kwargs)
        except TypeError as error:  # wrong arguments
            self._failed(incoming, error)
            return
        producer = BlockingProducer(
            self.name, incoming.call_id, incoming.origin, descriptor.window, descriptor.batch, items
        )
        self._streams[incoming.origin, incoming.call_id] = (incoming, producer)

    def _step_stream(self, key: tuple[Origin, int], incoming: Incoming, producer: BlockingProducer) -> None:
        try:
            with inside(self._context_of(incoming)):
                goes_on = producer.step()
        except BaseException as error:
            self._streams.pop(key, None)
            self._failed(incoming, error)
        else:
            if not goes_on and self._streams.pop(key, None) is not None:
                self._succeeded(incoming, None)

    def _end(self, producer: BlockingProducer) -> None:
        """Close the generator of a stream that nobody reads: what it raises meanwhile goes to the log."""
        try:
            producer.items.close()
        except BaseException as error:
            log.error("a stream of %s that was given up failed:\n%s", self.name, describe(error)[2])

    def fail_queued(self, text: str) -> None:
        super().fail_queued(text)
        for incoming, producer in self._streams.values():
            self._end(producer)
            assert incoming.call_id is not None
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.GONE, None, text, "")
        self._streams.clear()


class ThreadCell(BlockingCell):
    """The same on its own thread; answers go back to the loop that the callers live on."""

    def __init__(
        self,
        actor: BlockingActor,
        actor_id: int,
        name: str,
        panel: Panel | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(actor, actor_id, name, panel)
        self._loop = loop
        self._changed = platform.current().condition()
        self._wanted = False  # something happened since the thread last looked
        self._thread_id = 0
        self._is_copy = False  # a handler has forked, and this is the new process

    def put(self, incoming: Incoming) -> None:
        incoming.origin = ThreadedOrigin(incoming.origin, self._loop)
        with self._changed:
            super().put(incoming)
            self._wake()

    def cancel(self, origin: Origin, call_id: int) -> None:
        with self._changed:
            super().cancel(ThreadedOrigin(origin, self._loop), call_id)
            self._wake()  # a stream is closed by the actor's own thread

    def more(self, origin: Origin, call_id: int, count: int) -> None:
        with self._changed:
            super().more(ThreadedOrigin(origin, self._loop), call_id, count)
            self._wake()

    def forget(self, origin: Origin) -> None:
        with self._changed:
            super().forget(ThreadedOrigin(origin, self._loop))
            self._wake()

    def serve(self) -> None:
        """Handle messages until `stop`. Runs on the actor's thread."""
        self._thread_id = threading.get_ident()
        tell_of_forks(self)
        while True:
            with self._changed:
                while not self._wanted:
                    self._changed.wait()
                self._wanted = False
            while not self._stopping and self.run_one():
                if self._is_copy:
                    end_forked_process()
            if self._stopping:
                return

    def was_forked(self) -> None:
        """See `forks`."""
        self._is_copy = threading.get_ident() == self._thread_id

    def cancelled(self) -> bool:
        return self._stopping or super().cancelled()

    def stop(self) -> None:
        """Let `serve` return after the handler that runs."""
        with self._changed:
            self._stopping = True
            self._wake()

    def _wake(self) -> None:
        self._wanted = True
        self._changed.notify()

    def _take(self) -> tuple[Incoming, Handler | None]:
        with self._changed:
            return super()._take()
