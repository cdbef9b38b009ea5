"""The event loop of one simulated process: asyncio's interface, driven callback by callback by the world.

What runs on it is real asyncio code (tasks, futures, time-outs, queues); only time and readiness are simulated.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import select
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from .descriptors import Watcher
from .errors import NotSimulated
from .process import Process
from .world import Strand

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
log = logging.getLogger("asyncio")

MAX_CLOSES = 100  # of a coroutine that goes on waiting, in finally blocks, while it is closed


class SimulatedTask(asyncio.Task[T]):
    """Hashed by its number, so that the order of a set of tasks is the same in every run."""

    def __init__(self, coro: Any, loop: SimulatedLoop, name: str | None, context: Context | None) -> None:
        self._serial = next(loop.serial)
        super().__init__(coro, loop=loop, name=name or f"Task-{self._serial}", context=context)

    def __hash__(self) -> int:
        return self._serial


class SimulatedFuture(asyncio.Future[T]):
    """Hashed by its number."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._serial = next(loop.serial)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class SimulatedLoop(Strand, asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._world = process.world
        self.serial = itertools.count(1)
        self.tasks: list[asyncio.Task[Any]] = []  # those that may be unfinished
        self._prune_at = 64
        self._ready: deque[tuple[asyncio.Handle, Watcher | None]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._debug = False

    # The world's side.

    def is_runnable(self, now: float) -> bool:
        return bool(self._ready) or bool(self._timers and self._timers[0][0] <= now)

    def wake_at(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return max(self._timers[0][0], self.process.frozen_until) if self._timers else None

    def step(self) -> None:
        """Run one callback, as the running loop of the process."""
        now = self._world.now
        while self._timers and self._timers[0][0] <= now:
            self._ready.append((heapq.heappop(self._timers)[2], None))
        handle, watcher = self._ready.popleft()
        if watcher is not None:
            watcher.is_told = False
        if handle.cancelled():
            return
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        try:
            with self._running():
                handle._run()
        except SystemExit as exit:
            if not self.process.is_child:
                raise
            self.process.exit(exit.code)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def unwind(self) -> None:
        """Close the coroutines that will never go on; their ``finally`` blocks run, and reach nobody."""
        self._ready.clear()
        self._timers.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that were never begun
            with self._running():
                self._close_tasks()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Be the running loop, instead of the one in which a simulation was entered by mistake."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(outer)

    def _close_tasks(self) -> None:
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task)
        self.tasks.clear()

    # asyncio's side.

    def time(self) -> float:
        return self._world.now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.process.has_ended:
            self._ready.append((handle, None))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.process.has_ended:
            heapq.heappush(self._timers, (when, next(self.serial), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells; `wake_at` drops them."""

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = SimulatedTask(coro, self, name, context)
        self.tasks.append(task)
        if len(self.tasks) > self._prune_at:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._prune_at = 64 + 2 * len(self.tasks)
        return task

    def add_reader(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        self._watch(fd, select.POLLIN, callback, args)

    def remove_reader(self, fd: Any) -> bool:
        return self._unwatch(fd, select.POLLIN)

    def add_writer(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        self._watch(fd, select.POLLOUT, callback, args)

    def remove_writer(self, fd: Any) -> bool:
        return self._unwatch(fd, select.POLLOUT)

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """The function runs as a step of this process, not on a thread."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_soon(run)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.has_ended:
            return  # it cannot log any more
        if self._handler is not None:
            self._handler(self, context)
        else:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        log.error("%s: %s", self.process.label, context["message"], exc_info=error)

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._handler

    def is_running(self) -> bool:
        return not self.process.has_ended

    def is_closed(self) -> bool:
        return self.process.has_ended

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled

    # Details.

    def _watch(self, fd: Any, event: int, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        self._unwatch(number, event)
        handle = asyncio.Handle(callback, args, self, None)

        def notice(watcher: Watcher) -> None:
            self._ready.append((handle, watcher))

        watcher = Watcher(number, event, self, notice)
        watcher.cancel = handle.cancel
        self._world.descriptors.watch(watcher)

    def _unwatch(self, fd: Any, event: int) -> bool:
        number = fd if isinstance(fd, int) else fd.fileno()
        watcher = self._world.descriptors.forget(number, event)
        if watcher is None:
            return False
        watcher.cancel()
        return True

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self.process.has_ended:
            self.call_soon(self.create_task, generator.aclose())


def _close(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    assert isinstance(coroutine, Coroutine | Generator)
    for _ in range(MAX_CLOSES):
        try:
            coroutine.close()
        except BaseException as error:  # of user code that is as good as dead; or it waits in a finally block
            log.debug("closing %r of a simulated process that ended: %r", task.get_name(), error)
        else:
            return


def make_loop(process: Process) -> SimulatedLoop:
    """A loop for a process, which is one of its strands from now on."""
    loop = SimulatedLoop(process)  # type: ignore[abstract]  # the rest is set below, or inherited and refuses
    process.strands.append(loop)
    return loop


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotSimulated(f"loop.{name}() is not simulated: there is no network, no real process and no signal here")

    return refuse


for _name in (
    "add_signal_handler",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "run_forever",
    "run_until_complete",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_sendall",
    "subprocess_exec",
    "subprocess_shell",
):
    setattr(SimulatedLoop, _name, _refusal(_name))
