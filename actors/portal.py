"""A system for threads: calls, casts and streams from code that has no event loop. See docs/threads.md.

What a thread asks for runs as a task on the system's loop, and the thread waits. The loop never waits for a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .actor import Call, Stream
from .call_scope import current, deadline
from .errors import ActorError, NotInSystem

if TYPE_CHECKING:
    from .system import System

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Portal:
    """Calls actors from threads; made by `System.portal`. Any number of threads may use it.

    Errors are those that ``await`` would raise. ``with rt.deadline(seconds):`` and ``with rt.trace(...):`` around a
    call count. On the loop's own thread every method raises `ActorError` at once: it would wait for itself. After the
    system stopped, and in a process made by fork, they raise `NotInSystem` at once; calls in flight end with it.
    """

    def __init__(self, system: System, loop: asyncio.AbstractEventLoop) -> None:
        self._system = system
        self._loop = loop
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: dict[Future[Any], asyncio.Task[None] | None] = {}  # what has not ended
        system.portals.append(self)
        self._is_shut = not system.is_up  # it may stop meanwhile, on its own thread

    @property
    def system(self) -> System:
        """The system. Its coroutines are for `run`: ``portal.run(portal.system.spawn, spec)``."""
        return self._system

    def call(self, method: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """``portal.call(counter.add, 2)``: ask an actor and wait for its answer.

        A ``KeyboardInterrupt`` in the waiting thread cancels the call, as cancelling a task does.
        """
        return _result(self.submit(method, *args, **kwargs))

    def submit(self, method: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Ask an actor without waiting: returns a future, whose ``cancel`` cancels the call."""
        self._check()
        future: Future[R] = Future()
        with self._lock:
            if self._is_shut:
                raise self._shut()
            self._open[future] = None
        future.add_done_callback(self._forget)
        # The task gets the context of this thread: its deadline, its trace, its chain of calls.
        try:
            self._loop.call_soon_threadsafe(self._start, future, lambda: method(*args, **kwargs))
        except RuntimeError:  # the loop was closed without stopping the system
            future.cancel()
            raise self._shut() from None
        return future

    def cast(self, method: Call[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """``portal.cast(counter.add, 1)``: tell an actor. Raises what ``counter.add.cast(1)`` raises."""

        async def tell() -> None:
            method.cast(*args, **kwargs)

        self.call(tell)

    @contextmanager
    def stream(self, method: Stream[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Iterator[T]]:
        """``with portal.stream(counter.ticks, 10) as ticks:`` read a stream; leaving the block ends its producer."""
        with self.entered(method.open(*args, **kwargs)) as reader:
            yield self._items(reader.__aiter__().__anext__)

    def run(self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run any coroutine function on the system's loop and wait for its result: ``portal.run(system.stop, ref)``."""
        return _result(self.submit(function, *args, **kwargs))

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """``with portal.entered(rt.connect(name)) as remote:`` an ``async with`` block for a thread.

        It is entered and left in two tasks: not for ``asyncio.timeout`` and its like, which belong to one.
        """
        entered = self.run(manager.__aenter__)
        try:
            yield entered
        except BaseException as error:
            if not self.run(manager.__aexit__, type(error), error, error.__traceback__):
                raise
        else:
            self.run(manager.__aexit__, None, None, None)

    # Called by the system, on its loop.

    def shut(self) -> None:
        """The system stops: end what is under way, refuse what comes."""
        with self._lock:
            self._is_shut = True
            left = list(self._open.items())
        for future, task in left:
            if task is not None:
                task.cancel()
            self._settle(future, error=self._shut())

    def _start(self, future: Future[R], make: Callable[[], Awaitable[R]]) -> None:
        if future.done():  # cancelled, or the system stopped meanwhile
            return
        task = self._loop.create_task(self._answer(future, make), name=f"{self._system.name}: a thread's call")
        with self._lock:
            if future in self._open:
                self._open[future] = task
        future.add_done_callback(lambda done: self._cancel(task) if done.cancelled() else None)

    async def _answer(self, future: Future[R], make: Callable[[], Awaitable[R]]) -> None:
        try:
            at = current().deadline
            if at is None:
                value = await make()
            else:
                async with deadline(at - time.monotonic()):
                    value = await make()
        except asyncio.CancelledError:
            self._settle(future, error=CancelledError())
            raise
        except BaseException as error:
            self._settle(future, error=error)
        else:
            self._settle(future, value)

    # Details.

    def _settle(self, future: Future[Any], value: object = None, error: BaseException | None = None) -> None:
        """End a future on the loop, unless a thread cancels it, or the system's stop has ended it."""
        if future.done() or not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def _items(self, following: Callable[[], Awaitable[T]]) -> Iterator[T]:
        async def read() -> tuple[bool, T | None]:
            try:
                return True, await following()
            except StopAsyncIteration:
                return False, None

        while True:
            there, item = self.run(read)
            if not there:
                return
            yield item  # type: ignore[misc]

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise NotInSystem(
                f"system {self._system.name!r} is process {self._pid}'s, and this is a fork of it: "
                "start a system after the fork"
            )
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if running is self._loop:
            raise ActorError(
                f"the portal of system {self._system.name!r} was used on the loop's own thread, which would wait for "
                "itself: use await there"
            )

    def _shut(self) -> NotInSystem:
        return NotInSystem(f"system {self._system.name!r} has stopped")

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.pop(future, None)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the task with it
            self._loop.call_soon_threadsafe(task.cancel)


def _result(future: Future[R]) -> R:
    try:
        return future.result()
    except BaseException:
        future.cancel()  # the wait was interrupted; nothing if the call has ended
        raise
