"""The command line's standard streams, whatever was made of them: closed, full, ASCII, or a pipe that nobody reads.

What goes to stderr is status, which never decides whether a command starts, goes on or stops: it is dropped where it
cannot be written. What goes to stdout is the result: a command ends when it cannot be written.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from typing import TextIO

from ringcast.actors.standard_streams import open_standard_streams

READER_GONE = 141  # as a shell tells of a command that SIGPIPE ended
_PIECE = 4096  # bytes; a pipe that is ready takes so many at once


class OutputFailed(OSError):
    """The file system's state, or the caller's choice of a stream: a result cannot be written."""


class StatusStream(io.TextIOBase):
    """Writes to a descriptor at once, or not at all: never waits for a reader, never raises. Stands for sys.stderr."""

    encoding = "utf-8"  # for libraries that ask what they may write

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._num_dropped = 0

    def write(self, text: str) -> int:
        """What cannot be written now is dropped, and counted."""
        lost = f"ringcast: nobody read stderr: {self._num_dropped} writes were dropped\n" if self._num_dropped else ""
        data = (lost + text).encode("utf-8", "backslashreplace")
        try:
            for at in range(0, len(data), _PIECE):
                if not any(event & select.POLLOUT for _, event in self._poll.poll(0)):
                    raise BlockingIOError
                os.write(self._fd, data[at : at + _PIECE])
        except OSError:
            self._num_dropped += 1
        else:
            self._num_dropped = 0
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)


def tell(line: str) -> None:
    """A line of status on stderr. Never raises, wherever it is called: in a signal handler, too."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # closed, broken, or in the middle of another line
        if sys.stderr is not None:
            sys.stderr.write(f"ringcast: {line}\n")
            sys.stderr.flush()


def prepare_streams() -> None:
    """For the rest of this process: call it first. Descriptors that are closed lead to /dev/null from now on."""
    open_standard_streams()
    if sys.stderr is None or not sys.stderr.isatty():
        sys.stderr = StatusStream(2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what its encoding has not must not end an answer


def result_stream() -> TextIO:
    """stdout, for a command's result. `OutputFailed` if there is none."""
    if sys.stdout is None:
        raise OutputFailed("standard output is closed: nothing can be written to it; open it, or name a file")
    return sys.stdout


def finish_output(code: int) -> int:
    """Write what is left of stdout. The exit code: ``code``, or the one that tells that the rest is lost."""
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        discard_output()
        if error.errno == errno.EPIPE:
            return code or READER_GONE
        tell(f"cannot write the result: {error.strerror}")
        return code or 1
    return code


def discard_output() -> None:
    """Drop what stdout still holds: the interpreter would try to write it at its end, and complain."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
