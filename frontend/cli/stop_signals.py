"""SIGTERM and Ctrl-C of a command that serves, in every phase of it. Only the command line installs handlers.

The first signal stops in order, whatever goes on; the second ends the process at once, and the engine's processes
see it go and end with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

from .streams import tell

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """``with StopSignals() as signals:`` the first signal raises SystemExit(0) here, or, once there is a `stopper`,
    calls that instead.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, object] = {}
        self._stopping = False
        self._stop: Callable[[], None] | None = None

    def stopper(self, stop: Callable[[], None]) -> None:
        """From now on a signal calls ``stop``, which must return at once."""
        self._stop = stop

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            os._exit(128 + number)
        self._stopping = True
        if self._stop is not None:
            self._stop()
        tell("stopping; once more to stop at once")
        if self._stop is None:
            raise SystemExit(0)
