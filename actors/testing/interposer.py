"""Stands between simulated code and the interpreter's clock, chance and process calls, while a simulation is entered.

``time.monotonic``, ``time.sleep``, ``random``, ``os.urandom``, ``os.getpid``, ``os.kill``, ``os._exit`` and their like
mean the simulated process there. Other threads of the program keep the real ones.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from .errors import NotSimulated, ProcessExit
from .process import Process
from .thread import current_thread
from .world import World

EPOCH_S = 1_700_000_000.0  # what time.time() says when a simulation begins, less the virtual clock

_entered = threading.Lock()


class Interposer:
    """`install` and `remove` bracket a simulation; there is one at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._main = threading.get_ident()
        self._real: list[tuple[Any, str, Any]] = []
        self._random_state: Any = None
        self._collects = False

    def install(self) -> None:
        if not _entered.acquire(blocking=False):
            raise NotSimulated("another simulation is entered in this process: leave it first")
        world = self._world
        self._random_state = random.getstate()
        random.seed(world.seed)
        self._collects = gc.isenabled()
        gc.disable()  # finalizers run where references end, and not at a moment that depends on the past
        for module, name, simulated in (
            (time, "monotonic", lambda: world.now),
            (time, "monotonic_ns", lambda: round(world.now * 1e9)),
            (time, "perf_counter", lambda: world.now),
            (time, "perf_counter_ns", lambda: round(world.now * 1e9)),
            (time, "time", lambda: EPOCH_S + world.now),
            (time, "time_ns", lambda: round((EPOCH_S + world.now) * 1e9)),
            (time, "sleep", self._sleep),
            (os, "urandom", world.random.randbytes),
            (os, "getpid", self._getpid),
            (os, "kill", self._kill),
            (os, "_exit", self._exit),
            (os, "eventfd_read", self._eventfd_read),
        ):
            self._put(module, name, simulated)

    def remove(self) -> None:
        for module, name, real in self._real:
            setattr(module, name, real)
        self._real.clear()
        random.setstate(self._random_state)
        if self._collects:
            gc.enable()
        _entered.release()

    def _put(self, module: Any, name: str, simulated: Callable[..., Any]) -> None:
        real = getattr(module, name)
        main = self._main

        def chosen(*args: Any) -> Any:
            if threading.get_ident() == main or current_thread() is not None:
                return simulated(*args)
            return real(*args)

        self._real.append((module, name, real))
        setattr(module, name, chosen)

    def _real_one(self, name: str) -> Any:
        return next(real for _, wanted, real in self._real if wanted == name)

    def _sleep(self, seconds: float) -> None:
        thread = current_thread()
        if thread is not None:
            thread.sleep(seconds)
        else:
            self._world.now += seconds  # it blocks an event loop: whoever does that, all wait

    def _getpid(self) -> Any:
        current = self._world.current
        return current.pid if current is not None else self._real_one("getpid")()

    def _kill(self, pid: int, number: int) -> None:
        for process in self._world.processes:
            if process.pid == pid:
                process.signal(number)
                if process.has_ended and process is self._world.current:
                    self._stop_here(process)
                return
        self._real_one("kill")(pid, number)

    def _exit(self, code: int) -> NoReturn:
        process = self._world.current
        if process is None or not process.is_child:
            raise NotSimulated(f"the program called os._exit({code}): in a simulation that would end the test run")
        process.exit(code)
        self._stop_here(process)

    def _stop_here(self, process: Process) -> NoReturn:
        thread = current_thread()
        if thread is not None:
            thread.park_forever()
        raise ProcessExit(process.label)

    def _eventfd_read(self, fd: int) -> Any:
        thread = current_thread()
        if thread is not None:
            thread.wait_readable(fd)
        return self._real_one("eventfd_read")(fd)
