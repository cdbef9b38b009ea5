"""Ends this process when another one dies, and answers pings, in a native thread that never needs the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import _native

ORPHANED: Final = 113  # exit status of a process that outlived the processes that it served


def exit_with(pidfds: Sequence[int], exit_code: int = ORPHANED, *, lane: int | None = None) -> None:
    """From now on, exit at once with ``exit_code`` as soon as any of the processes behind ``pidfds`` has ended.

    ``lane`` is a SOCK_SEQPACKET socket on which the same thread sends every message (up to 64 bytes) back: an answer
    says that the process runs, whoever holds the interpreter. The exit is hard (no clean-up, no atexit), whatever the
    interpreter is doing. The descriptors are duplicated and stay the caller's; there is no way back. ``OSError`` if a
    descriptor is bad or no thread can be started.
    """
    _native.watch_processes(pidfds, exit_code, lane)


def end_with_parent() -> None:
    """From now on, the kernel kills this process when the *thread* that started it ends, even if it is stopped.

    The second line of defence behind `exit_with`, whose thread does not run in a stopped process. Only for processes
    that a lasting thread of their parent started. Ask for the parent afterwards: it may have ended before.
    """
    _native.kill_with_parent()
