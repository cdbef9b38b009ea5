"""A thread of a simulated process: a real one, which runs only while the world waits for it.

Where it would block (`time.sleep`, a wait for a doorbell, a condition) it hands control back, so that everything else
can go on; it is picked up again by choice of the seed.
"""

from __future__ import annotations

import contextvars
import select
import threading
from collections.abc import Callable, Iterable

from .descriptors import Watcher
from .errors import NotSimulated, ProcessExit
from .process import Process
from .world import Strand

REAL_LIMIT_S = 60.0  # a step that takes longer waits for something that the simulation does not know of

_here = threading.local()


def current_thread() -> SimulatedThread | None:
    """The simulated thread that runs this code; None on the world's own thread and elsewhere."""
    return getattr(_here, "thread", None)


class SimulatedThread(Strand):
    """See the module. Runs ``target`` in a copy of the context that makes it."""

    def __init__(self, process: Process, target: Callable[[], None], name: str) -> None:
        super().__init__(process)
        self._target = target
        self._context = contextvars.copy_context()
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._is_ready: Callable[[], bool] = lambda: True
        self._wake_at: float | None = None
        self._has_begun = False
        self._has_ended = False
        self._is_unwinding = False

    def is_runnable(self, now: float) -> bool:
        if self._has_ended:
            return False
        return self._is_ready() or (self._wake_at is not None and self._wake_at <= now)

    def wake_at(self) -> float | None:
        if self._has_ended or self._wake_at is None:
            return None
        return max(self._wake_at, self.process.frozen_until)

    def step(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._thread.start()
        self._go.release()
        if not self._back.acquire(timeout=REAL_LIMIT_S):
            raise NotSimulated(
                f"thread {self._thread.name!r} of {self.process.label} has not come back for {REAL_LIMIT_S:g} real "
                "seconds: it waits for something outside of the simulation, or loops without ever sleeping"
            )

    def unwind(self) -> None:
        if self._has_begun and not self._has_ended:
            self._is_unwinding = True
            self.step()
        if self._has_begun:
            self._thread.join()

    # Called on the thread.

    def park(self, is_ready: Callable[[], bool], wake_at: float | None = None) -> None:
        """Let the others run until the condition holds or the time has come."""
        if self._is_unwinding:
            raise ProcessExit
        self._is_ready, self._wake_at = is_ready, wake_at
        self._back.release()
        self._go.acquire()
        if self._is_unwinding:
            raise ProcessExit

    def pause(self) -> None:
        """Let the others run, if the seed says so."""
        self.park(lambda: True)

    def park_forever(self) -> None:
        """The process has ended."""
        self.park(lambda: False)

    def sleep(self, seconds: float) -> None:
        """What `time.sleep` does here."""
        self.park(lambda: False, self.process.world.now + seconds)

    def wait_ready(self, wanted: Iterable[tuple[int, int]], timeout_s: float | None = None) -> list[int]:
        """Wait until one of the (descriptor, poll event) pairs is noticed; those that are, none after a time-out."""
        noticed: list[int] = []
        pairs = list(wanted)
        descriptors = self.process.world.descriptors
        for fd, event in pairs:
            descriptors.watch(Watcher(fd, event, self, lambda watcher: noticed.append(watcher.fd)))
        try:
            self.park(lambda: bool(noticed), None if timeout_s is None else self.process.world.now + timeout_s)
        finally:
            for fd, event in pairs:
                descriptors.forget(fd, event)
        return noticed

    def wait_readable(self, fd: int) -> None:
        """Wait until the descriptor is readable."""
        self.wait_ready([(fd, select.POLLIN)])

    def _live(self) -> None:
        self._go.acquire()
        _here.thread = self
        try:
            self._context.run(self._target)
        except ProcessExit:
            pass
        except BaseException as error:
            if not self._is_unwinding:
                self.process.world.ledger.violations.append(
                    f"thread {self._thread.name!r} of {self.process.label} ended with {type(error).__name__}: {error}"
                )
        finally:
            self._has_ended = True
            self._back.release()


class SimulatedCondition(threading.Condition):
    """A condition between strands of a simulation. Only one of them runs at a time, so it needs no lock."""

    def __init__(self) -> None:
        super().__init__()
        self._notified = 0

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        thread = current_thread()
        if thread is None:
            raise NotSimulated("a condition was waited for outside of a simulated thread")
        before = self._notified
        thread.park(lambda: self._notified > before, None if timeout is None else thread.process.world.now + timeout)
        return self._notified > before

    def notify(self, n: int = 1) -> None:
        self._notified += 1  # wakes all: a condition may wake without reason

    def notify_all(self) -> None:
        self._notified += 1
