"""Line editing for ``input()``, and the lines typed before: kept in the user's state folder, for the user only."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOST_LINES = 1000
_TICK_S = 0.2

log = logging.getLogger("ringcast.cli")


def history_path() -> Path:
    """Where the XDG base directories put a program's state. `OSError` if there is no home folder."""
    folder = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(folder).expanduser() / "ringcast" / "chat_history"
    except RuntimeError as error:
        raise OSError(f"{error}: set HOME or XDG_STATE_HOME") from error


def is_line_empty() -> bool:
    """Whether nothing had been typed when ``input()`` was interrupted."""
    import readline

    return not readline.get_line_buffer()


def typed_line(prompt: str) -> str:
    """``input(prompt)`` at a terminal, in the main thread, that heeds every Ctrl-C. EOFError, KeyboardInterrupt.

    CPython looks for signals, then sleeps until a key is struck: a Ctrl-C between the two would wait for that key.
    The tick ends the sleep, and Python looks again.
    """
    handler = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
        return input(prompt)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def typed_lines(kept: bool) -> Iterator[None]:
    """Arrow keys work in the block. If ``kept``, lines of former times are there, and those of this one will be."""
    import readline

    if not kept:
        yield
        return
    try:
        path = history_path()
    except OSError as error:
        log.warning("the lines that you type cannot be kept: %s", error)
        yield
        return
    try:
        if path.exists():
            readline.read_history_file(path)
    except OSError as error:
        log.warning("the lines typed before cannot be read: %s", error)
    try:
        yield
    finally:
        readline.set_history_length(_MOST_LINES)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
        except OSError as error:  # a home that cannot be written is no reason to fail
            log.warning("the typed lines cannot be kept: %s", error)
