"""The cell of an Actor: handlers run one at a time on the loop, concurrent ones and streams beside them.

A handler runs inside the serving task (a task each would double the cost of a call); so its cancellation is told
apart from the cell's own by `_cancelled_by`. A handler of an idle actor begins even before that task has a turn, in the
callback that brought its message, in the task's context and as the current task (native/at_once.c); if it
has to wait, the task goes on with it. A process that was woken for one short call so needs no further turn of its loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import types
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any

from ._native import Incoming
from .actor import Actor, Descriptor, StreamDescriptor
from .call_context import beside_handlers, inside_handler
from .call_scope import inside
from .cell import Cell, Handler, Panel
from .origin import Origin
from .producer import StreamProducer
from .wire import FailureKind

CALLER, DEADLINE = "its caller gave up", "deadline"


class Begun:
    """A handler that began before the task that serves the mailbox had a turn, and waits for ``awaited``."""

    __slots__ = ("awaited", "handler", "incoming")

    def __init__(self, incoming: Incoming, handler: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self.incoming = incoming
        self.handler = handler
        self.awaited = awaited

    @types.coroutine
    def rest(self, cancelled: asyncio.CancelledError | None) -> Generator[Any, Any, Any]:
        """What is left of it, for that task; ``cancelled``: it was cancelled before it could wait itself."""
        awaited = self.awaited
        thrown: BaseException | None = None
        if cancelled is not None and not (asyncio.isfuture(awaited) and awaited.cancel()):
            thrown = cancelled  # as Task.cancel: only if what it waits for cannot be cancelled in its place
        while True:
            if thrown is not None:
                try:
                    awaited = self.handler.throw(thrown)
                except StopIteration as end:
                    return end.value
            try:
                yield awaited
            except BaseException as error:
                thrown = error
            else:
                return (yield from self.handler)


class Ended:
    """A handler that began and ended before the task had a turn, and has cancelled that task."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class AsyncCell(Cell):
    """See the module. `start` begins to serve, until `stop`; `close` ends what runs beside it."""

    def __init__(self, actor: Actor, actor_id: int, name: str, panel: Panel | None) -> None:
        super().__init__(actor, actor_id, name, panel)
        self._cancelled_by: str | None = None
        self._ended_cancelled: Ended | None = None
        self._beside: dict[tuple[Origin, int | None], asyncio.Task[None]] = {}
        self._streams: dict[tuple[Origin, int], StreamProducer] = {}
        self._running: Counter[str] = Counter()  # handlers of which only so many may run at a time,
        self._waiting: dict[str, deque[Incoming]] = {}  # and messages that wait until fewer do: not taken yet

    def start(self) -> asyncio.Task[None]:
        """The task that handles messages, until `stop`."""
        self._context = copy_context()
        self._task = asyncio.create_task(self._serve(), name=f"{self.name}: mailbox", context=self._context)
        for incoming in [incoming for incoming in self.queue if self._limit_of(incoming) is not None]:
            self.queue.remove(incoming)
            self._context.copy().run(self._start_or_wait, incoming)
        return self._task

    @property
    def _serves(self) -> bool:
        return self._task is not None and not self._stopping

    def stop(self) -> None:
        """Cancel the handler in progress, and end the task, even if the handler swallows that."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

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

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            cancelled = None
            while not self.queue and self._begun is None:
                self._arrived = loop.create_future()
                try:
                    await self._arrived
                except asyncio.CancelledError as error:
                    cancelled = error
                finally:
                    self._arrived = None
                if cancelled is not None and self._begun is None:
                    ended, self._ended_cancelled = self._ended_cancelled, None
                    if ended is not None:
                        self._left(ended.error)
                    elif self._stopping or self._task is None or self._task.cancelling():
                        raise cancelled
                    cancelled = None  # a handler has cancelled the task and ended all the same: Python kept it
            if self._begun is not None:
                begun, self._begun = self._begun, None
                await self._go_on(begun, cancelled)
            else:
                incoming, handler = self._take()
                if handler is None:
                    pass
                elif handler.is_concurrent or handler.is_stream:
                    self._start(incoming, handler)
                else:
                    await self._run_inline(incoming, handler.function)
                del incoming, handler  # while it waits for the next one it holds none
            if not self.queue:
                self._show_idle()

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

    def _waits(self, incoming: Incoming, handler: Coroutine[Any, Any, Any], awaited: Any) -> None:
        """A handler that began at once (native/at_once.c) waits: the task goes on with it."""
        self._begun = Begun(incoming, handler, awaited)
        arrived = self._arrived
        if arrived is not None and not arrived.done():  # else the handler has cancelled its task
            arrived.set_result(None)

    def _was_cancelled(self, error: BaseException | None) -> None:
        """A handler that began at once (native/at_once.c) is over, by ``error`` or well, and has cancelled the task."""
        self._ended_cancelled = Ended(error)

    async def _go_on(self, begun: Begun, cancelled: asyncio.CancelledError | None) -> None:
        try:
            value = await begun.rest(cancelled)
        except BaseException as error:
            self._ended_by(begun.incoming, error)
            await self._settle(error)
        else:
            self._succeeded(begun.incoming, value)
            await self._settle(None)

    async def _run_inline(self, incoming: Incoming, function: Callable[..., Any]) -> None:
        self._begin(incoming)
        try:
            value = await function(self.actor, *incoming.args, **incoming.kwargs)
        except BaseException as error:
            self._ended_by(incoming, error)
            await self._settle(error)
        else:
            if not self._finish(incoming, value):
                await self._settle(None)

    def _enter(self, incoming: Incoming) -> None:
        self._open(incoming, inside_handler(incoming.context, self.actor_id))
        self._timer = self._start_timer(incoming, self._cancel_current)

    def _leave(self) -> None:
        self._close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _settle(self, error: BaseException | None) -> None:
        """`_left`, after a cancellation that the handler asked for and did not wait for: Python keeps it for the task's
        next await, which would be another handler's.
        """
        task = self._task
        if task is not None and task.cancelling() and not issubclass(type(error), asyncio.CancelledError):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        self._left(error)

    def _left(self, error: BaseException | None) -> None:
        """A handler that had a turn of the task has ended. Its cancellation is not the task's; but a stop is, perhaps
        one that the handler swallowed or that its caller's stood for, and so is one of its own that ended it.
        """
        self._leave()
        task = self._task
        assert task is not None
        by, self._cancelled_by = self._cancelled_by, None
        if by is not None:
            task.uncancel()
        if self._stopping or (by is None and issubclass(type(error), asyncio.CancelledError) and task.cancelling()):
            raise asyncio.CancelledError
        while task.cancelling():  # before Python 3.13 a TaskGroup leaves one behind when one of its tasks fails
            task.uncancel()

    def _ended_by(self, incoming: Incoming, error: BaseException) -> None:
        if issubclass(type(error), asyncio.CancelledError):
            self._ended_by_cancellation(incoming, self._cancelled_by, error)
        else:
            self._failed(incoming, error)  # even a SystemExit: it must not end the host's loop

    def _limit_of(self, incoming: Incoming) -> int | None:
        handler = self._handlers.get(incoming.method)
        return None if handler is None else handler.limit

    def _start_or_wait(self, incoming: Incoming) -> None:
        """Start a handler of which only so many may run, or let it wait for its turn."""
        if self._running[incoming.method] == self._limit_of(incoming):
            self._waiting.setdefault(incoming.method, deque()).append(incoming)
        elif (handler := self._admit(incoming)) is not None:
            self._start(incoming, handler)

    def _start_next(self, method: str) -> None:
        """One of those handlers has ended."""
        self._running[method] -= 1
        waiting = self._waiting.get(method)
        while waiting and not self._stopping and self._running[method] != self._limit_of(waiting[0]):
            assert self._context is not None
            self._context.copy().run(self._start_or_wait, waiting.popleft())

    def fail_queued(self, text: str) -> None:
        for waiting in self._waiting.values():
            self.queue.extend(waiting)
            waiting.clear()
        super().fail_queued(text)

    def _drop_queued(self, origin: Origin, call_id: int) -> bool:
        if super()._drop_queued(origin, call_id):
            return True
        return any(self._drop_from(waiting, origin, call_id) for waiting in self._waiting.values())

    def _begin_beside(self, incoming: Incoming) -> None:
        """Begin at once what runs beside the handlers: one of them may wait for it, and with it all in the mailbox."""
        self._begin_first_in_queue()
        if self._limit_of(incoming) is not None:
            if self._enqueue(incoming):
                self.queue.pop()
                assert self._context is not None
                self._context.copy().run(self._start_or_wait, incoming)
            return
        handler = self._admit_at_once(incoming)
        if handler is not None:
            assert self._context is not None
            self._context.copy().run(self._start, incoming, handler)

    def _begin_first_in_queue(self) -> None:
        """Begin those beside the handlers that the actor got while it was idle, and whose turn has not come yet."""
        assert self._context is not None
        while self.queue and self._runs_beside(self.queue[0]):
            incoming, handler = self._take()
            if handler is not None:
                self._context.copy().run(self._start, incoming, handler)

    def _runs_beside(self, incoming: Incoming) -> bool:
        handler = self._handlers.get(incoming.method)
        return handler is not None and (handler.is_concurrent or handler.is_stream)

    def _start(self, incoming: Incoming, handler: Handler) -> None:
        if handler.is_stream:
            self._start_stream(incoming, handler.descriptor)
        else:
            task = self._start_beside(incoming, self._run_beside(incoming, handler.function))
            if handler.limit is not None:
                self._running[incoming.method] += 1
                task.add_done_callback(lambda _: self._start_next(incoming.method))

    async def _run_beside(self, incoming: Incoming, function: Callable[..., Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        expired = False

        def expire(_: str) -> None:
            nonlocal expired
            expired = True
            task.cancel()

        timer = self._start_timer(incoming, expire)
        try:
            with inside(beside_handlers(incoming.context)):
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

    def _ended_by_cancellation(self, incoming: Incoming, by: str | None, error: BaseException) -> None:
        task = asyncio.current_task()
        if by is None and task is not None and not task.cancelling():
            self._failed(incoming, error)  # nobody cancelled it: the handler awaited something that was
            return
        self.meter.handled_since(time.monotonic(), incoming.began_at)
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
            try:
                with inside(beside_handlers(incoming.context)):
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

    def _start_beside(self, incoming: Incoming, work: Any) -> asyncio.Task[None]:
        key = (incoming.origin, incoming.call_id)
        task = asyncio.create_task(work, name=f"{self.name}.{incoming.method}")
        if incoming.call_id is None:
            key = (incoming.origin, -id(task))  # a cast: nobody will cancel it by its number
        self._beside[key] = task
        task.add_done_callback(lambda _: self._beside.pop(key, None))
        return task
