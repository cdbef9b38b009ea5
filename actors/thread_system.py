"""A system on a thread of its own, for programs without an event loop: Flask, Django, WSGI, scripts."""

from __future__ import annotations

import asyncio
import atexit
import os
from concurrent.futures import Future
from types import TracebackType

from .loops import run_on_new_loop
from .portal import Portal
from .system import System
from .system_calls import start_thread


def start_in_thread(system: System | None = None) -> ThreadPortal:
    """Run a system on a new event loop in a thread of its own; returns its portal when the system is up.

    ``with rt.start_in_thread() as portal:`` stops it at the end of the block. A module that keeps the portal instead
    (``portal = rt.start_in_thread()``) may `close` it; if it forgets, the system stops in order when the interpreter
    exits. It has not been entered: ``rt.System("shop")``; without one a system with the usual settings is made.

    Start it after a fork, not before: in a forked process the portal raises `NotInSystem`.
    """
    if system is not None and not isinstance(system, System):
        raise TypeError(f"start_in_thread takes a system that was not entered, rt.System(...), not {system!r}")
    return ThreadPortal(system or System())


class ThreadPortal(Portal):
    """A `Portal` that owns its system and the thread on which it runs; see `start_in_thread`."""

    def __init__(self, system: System) -> None:
        self._up: Future[asyncio.AbstractEventLoop] = Future()
        self._ended: Future[None] = Future()
        self._asked_to_stop = asyncio.Event()
        self._thread = start_thread(lambda: self._live(system), f"{system.name}: loop")
        super().__init__(system, self._up.result())
        atexit.register(self.close)

    def close(self) -> None:
        """Stop the system in order, and wait for that. A second call, or one in a forked process, does nothing."""
        if os.getpid() != self._pid:
            return
        if not self._ended.done():
            self._check()
            self._loop.call_soon_threadsafe(self._asked_to_stop.set)
        self._thread.join()
        atexit.unregister(self.close)
        self._ended.result()

    def __enter__(self) -> ThreadPortal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _live(self, system: System) -> None:
        try:
            run_on_new_loop(self._run(system))
        except BaseException as error:
            if self._up.done():
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)
                self._up.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _run(self, system: System) -> None:
        async with system:
            self._up.set_result(asyncio.get_running_loop())
            await self._asked_to_stop.wait()
