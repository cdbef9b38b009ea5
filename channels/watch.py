"""Ends this process when another one dies: a native thread that needs neither the GIL nor a free main thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import _native

ORPHANED: Final = 113  # exit status of a process that outlived the processes that it served


def exit_with(pidfds: Sequence[int], exit_code: int = ORPHANED) -> None:
    """From now on, exit at once with ``exit_code`` as soon as any of the processes behind ``pidfds`` has ended.

    The exit is hard (no clean-up, no atexit), whatever the interpreter is doing. The descriptors are duplicated and
    stay the caller's; there is no way back. ``OSError`` if a descriptor is bad or no thread can be started.
    """
    _native.watch_processes(pidfds, exit_code)
