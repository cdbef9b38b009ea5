"""The cell of an Actor: handlers run one at a time on the loop, concurrent ones and streams beside them.

A handler runs inside the serving task (a task each would double the cost of a call); so its cancellation is told
apart from the cell's own by `_cancelled_by`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from . import call_context
from .actor import Actor, Descriptor, StreamDescriptor
from .call_context import EMPTY
from .cell import Cell, Incoming
from .origin import Origin
from .producer import StreamProducer
from .wire import FailureKind

CALLER, DEADLINE = "its caller gave up", "deadline"


class AsyncCell(Cell):
    """See the module. `serve` runs until it is cancelled; `close` ends what runs beside it."""

    def __init__(self, actor: Actor, actor_id: int, name: str, on_handler: Callable[[Cell, int], None]) -> None:
        super().__init__(actor, actor_id, name, on_handler)
        self._current: Incoming | None = None
        self._cancelled_by: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._beside: dict[tuple[Origin, int | None], asyncio.Task[None]] = {}
        self._streams: dict[tuple[Origin, int], StreamProducer] = {}

    def cancel(self, origin: Origin, call_id: int) -> None:
        current = self._current
        if current is not None and current.call_id == call_id and current.origin == origin:
            self._cancel_current(CALLER)
        elif (task := self._beside.get((origin, call_id))) is not None:
            task.cancel()
        else:
            self._drop_queued(origin, call_id)

    def more(self, origin: Origin, call_id: int, count: int) -> None:
        producer = self._streams.get((origin, call_id))
        if producer is not None:
            producer.grant(count)

    def forget(self, origin: Origin) -> None:
        for (of, _), task in list(self._beside.items()):
            if of == origin:
                task.cancel()

    async def serve(self) -> None:
        """Handle messages until cancelled."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        while True:
            while not self.queue:
                self._arrived = loop.create_future()
                await self._arrived
                self._arrived = None
            incoming, handler = self._take()
            if handler is None:
                pass
            elif handler.is_stream:
                self._start_stream(incoming, handler.descriptor)
            elif handler.is_concurrent:
                self._start_beside(incoming, self._run_beside(incoming, handler.function))
            else:
                await self._run_inline(incoming, handler.function)
            if not self.queue:
                self._on_handler(self, 0)

    async def close(self) -> None:
        """Cancel what runs beside the mailbox, and wait for it."""
        tasks = list(self._beside.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _cancel_current(self, by: str) -> None:
        assert self._task is not None
        if self._cancelled_by is None:
            self._cancelled_by = by
            self._task.cancel()

    async def _run_inline(self, incoming: Incoming, function: Callable[..., Any]) -> None:
        self._current = incoming
        timer = self._start_timer(incoming, self._cancel_current) if incoming.context is not EMPTY else None
        call_context.enter(self._context_of(incoming))
        try:
            value = await function(self.actor, *incoming.args, **incoming.kwargs)
        except asyncio.CancelledError as error:
            self._ended_by_cancellation(incoming, self._cancelled_by, error)
        except BaseException as error:  # SystemExit of a handler must not end the host's loop
            self._failed(incoming, error)
        else:
            self._succeeded(incoming, value)
        finally:
            self._current = None
            if timer is not None:
                timer.cancel()
            assert self._task is not None
            if self._cancelled_by is not None:  # the handler's cancellation is not the serving task's
                self._cancelled_by = None
                self._task.uncancel()
            if self._task.cancelling():  # a stop, perhaps one that the handler swallowed or its caller's stood for
                raise asyncio.CancelledError

    async def _run_beside(self, incoming: Incoming, function: Callable[..., Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        expired = False

        def expire(_: str) -> None:
            nonlocal expired
            expired = True
            task.cancel()

        timer = self._start_timer(incoming, expire)
        call_context.enter(self._context_of(incoming))
        try:
            value = await function(self.actor, *incoming.args, **incoming.kwargs)
        except asyncio.CancelledError as error:
            self._ended_by_cancellation(incoming, DEADLINE if expired else None, error)
        except BaseException as error:
            self._failed(incoming, error)
        else:
            self._succeeded(incoming, value)
        finally:
            if timer is not None:
                timer.cancel()

    def _start_timer(self, incoming: Incoming, expire: Callable[[str], None]) -> asyncio.TimerHandle | None:
        if incoming.context.deadline is None:
            return None
        return asyncio.get_running_loop().call_later(incoming.context.remaining_s(), expire, DEADLINE)

    def _ended_by_cancellation(self, incoming: Incoming, by: str | None, error: asyncio.CancelledError) -> None:
        task = asyncio.current_task()
        if by is None and task is not None and not task.cancelling():
            self._failed(incoming, error)  # nobody cancelled it: the handler awaited something that was
            return
        self.meter.handled_since(incoming.began_at)
        if incoming.call_id is None or by == CALLER:
            return
        if by == DEADLINE:
            where = f"while {self.name}.{incoming.method} ran"
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.DEADLINE, None, where, "")
        else:
            incoming.origin.fail(
                self.name, incoming.call_id, FailureKind.CANCELLED, None, f"{incoming.method} was cancelled there", ""
            )

    def _start_stream(self, incoming: Incoming, descriptor: Descriptor) -> None:
        assert incoming.call_id is not None and isinstance(descriptor, StreamDescriptor)
        try:
            items = descriptor.function(self.actor, *incoming.args, **incoming.kwargs)
        except TypeError as error:  # wrong arguments
            self._failed(incoming, error)
            return
        producer = StreamProducer(self.name, incoming.call_id, incoming.origin, descriptor.window, descriptor.batch)
        key = (incoming.origin, incoming.call_id)
        self._streams[key] = producer

        async def produce() -> None:
            call_context.enter(self._context_of(incoming))
            try:
                await producer.run(items)
            except asyncio.CancelledError as error:
                self._ended_by_cancellation(incoming, None, error)
            except BaseException as error:
                self._failed(incoming, error)
            else:
                self._succeeded(incoming, None)
            finally:
                del self._streams[key]

        self._start_beside(incoming, produce())

    def _start_beside(self, incoming: Incoming, work: Any) -> None:
        key = (incoming.origin, incoming.call_id)
        task = asyncio.create_task(work, name=f"{self.name}.{incoming.method}")
        if incoming.call_id is None:
            key = (incoming.origin, -id(task))  # a cast: nobody will cancel it by its number
        self._beside[key] = task
        task.add_done_callback(lambda _: self._beside.pop(key, None))
