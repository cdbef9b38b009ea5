"""What a child process writes: its pipe is read in small turns of the loop, and its lines go where they are wanted.

Owned by `launch`. The work of a turn is bounded, and so is what is kept: a child that writes faster than its lines are
taken finds its pipe full and waits. Its last lines are kept for the cause of its death, whatever becomes of the others.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

# Where the lines of children go: see `process`.
Output = Literal["stderr", "logging", "drop", "inherit"] | Callable[[str, str], object]

TAIL_LINES: Final = 20
TAIL_LINE_CHARACTERS: Final = 2000
MAX_LINE_BYTES: Final = 64 * 1024  # longer lines are cut
READ_BYTES: Final = 16 * 1024
TURN_S: Final = 0.002  # of reading and passing lines on, then the loop's other work has its turn
REST: Final = 4  # times as long as a turn took, before the next one, if there is more

log = logging.getLogger("ringcast.actors")
output_log = logging.getLogger("ringcast.actors.output")


def check_output(output: object, where: str) -> None:
    """``TypeError`` or ``ValueError`` if it names no place for a child's lines."""
    if callable(output):
        return
    if not isinstance(output, str):
        raise TypeError(f"{where}: output is {output!r}: use a name or a function of (actor's name, line)")
    if output not in ("stderr", "logging", "drop", "inherit"):
        raise ValueError(f"{where}: output is {output!r}: use 'stderr', 'logging', 'drop', 'inherit' or a function")


class LineSplitter:
    """Makes lines of bytes, in linear time and bounded memory.

    A carriage return begins the line anew, as on a terminal: of a progress bar the last state is left. What is longer
    than ``MAX_LINE_BYTES`` is cut and marked.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._cut_bytes = 0
        self._is_overwritten = False  # by the next character

    def feed(self, data: bytes) -> list[str]:
        """The lines that end in ``data``."""
        lines = []
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            lines.append(self._take())
        self._add(rest)
        return lines

    def finish(self) -> list[str]:
        """The line that has not ended, if there is one."""
        return [self._take()] if self._line else []

    def _add(self, piece: bytes) -> None:
        first, *states = piece.split(b"\r")
        self._write(first)
        if states:
            self._is_overwritten = True
            last = states.pop()
            self._write(last or next((state for state in reversed(states) if state), b""))
            self._is_overwritten |= not last

    def _write(self, state: bytes) -> None:
        if not state:
            return
        if self._is_overwritten:
            self._line.clear()
            self._cut_bytes = 0
            self._is_overwritten = False
        kept = state[: MAX_LINE_BYTES - len(self._line)]
        self._line += kept
        self._cut_bytes += len(state) - len(kept)

    def _take(self) -> str:
        text = self._line.decode("utf-8", "replace").rstrip()
        if self._cut_bytes:
            text += f" [{self._cut_bytes} more bytes of this line were cut]"
        self._line.clear()
        self._cut_bytes = 0
        self._is_overwritten = False
        return text


class LastLines:
    """What is kept of a child's output: its last lines, and what it wrote since its stacks were asked for."""

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._dump: list[str] | None = None

    def add(self, lines: list[str]) -> None:
        """It has written these."""
        self.tail.extend(
            line if len(line) <= TAIL_LINE_CHARACTERS else line[:TAIL_LINE_CHARACTERS] + " [...]"
            for line in lines[-TAIL_LINES:]
        )
        if self._dump is not None:
            self._dump.extend(lines)

    def begin_dump(self) -> None:
        """Keep what is written from now on, for `take_dump`."""
        self._dump = []

    def take_dump(self) -> list[str]:
        """What was written since `begin_dump`."""
        lines, self._dump = self._dump or [], None
        return lines


class ChildOutput:
    """The reading end of a child's output; takes ownership of the descriptor, and adds its lines to ``last``."""

    def __init__(self, name: str, fd: int, output: Output, last: LastLines) -> None:
        self._last = last
        self._fd = fd
        self._show, self._batch = _sink(name, output)
        self._loop = asyncio.get_running_loop()
        self._splitter = LineSplitter()
        self._lines: deque[str] = deque()  # read and not yet passed on
        self._is_watched = False
        self._timer: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        self._watch(True)

    @property
    def has_lines(self) -> bool:
        """Some lines were read and not yet passed on."""
        return bool(self._lines)

    def end(self) -> None:
        """The child is gone: read what the pipe holds now. Other processes may still write to it; that is dropped.

        ``last`` is complete then. Lines that would hold the loop for long are passed on in later turns, or by `flush`.
        """
        if self._fd >= 0:
            left_bytes = fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ)
            while left_bytes > 0 and self._read():
                left_bytes -= READ_BYTES
            self._close()
        if self._timer is not None:
            self._timer.cancel()
        self._turn()

    def abandon(self) -> None:
        """The loop is closed: pass on what was read, and stop reading."""
        self._close()
        self.flush()

    def flush(self) -> None:
        """Pass on all lines that were read, however long that takes."""
        self._pass_on(float("inf"))

    def _turn(self) -> None:
        """Pass lines on and read more, as long as a turn may take; then rest if there is more to do."""
        self._timer = None
        began = time.monotonic()
        while self._pass_on(began + TURN_S):
            if not self._read():
                self._watch(True)
                return
        self._watch(False)
        self._timer = self._loop.call_later(REST * (time.monotonic() - began), self._turn)

    def _watch(self, watch: bool) -> None:
        """Whether the loop calls `_turn` when there is something to read."""
        watch = watch and self._fd >= 0
        if watch and not self._is_watched:
            self._loop.add_reader(self._fd, self._turn)
        elif not watch and self._is_watched:
            self._loop.remove_reader(self._fd)
        self._is_watched = watch

    def _read(self) -> bool:
        """Take in a piece of what was written; whether there was something."""
        if self._fd < 0:
            return False
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return bool(self._lines)
        self._keep(self._splitter.feed(data))
        return True

    def _close(self) -> None:
        if self._fd >= 0:
            if self._is_watched:
                self._loop.remove_reader(self._fd)
                self._is_watched = False
            os.close(self._fd)
            self._fd = -1
            self._keep(self._splitter.finish())

    def _keep(self, lines: list[str]) -> None:
        self._last.add(lines)
        self._lines.extend(lines)

    def _pass_on(self, until: float) -> bool:
        """Pass lines on until that moment; whether none is left."""
        lines = self._lines
        while lines and time.monotonic() < until:
            self._show([lines.popleft() for _ in range(min(self._batch, len(lines)))])
        return not lines and time.monotonic() < until


def _sink(name: str, output: Output) -> tuple[Callable[[list[str]], None], int]:
    """Where lines go, and how many it takes at once."""
    if callable(output):
        return _Caller(name, output).show, 1
    if output == "logging":
        return lambda lines: output_log.info("[%s] %s", name, lines[0], extra={"actor": name}), 1
    if output == "drop":
        return lambda lines: None, 1024
    return lambda lines: _write_to_stderr([f"[{name}] {line}\n" for line in lines]), 64


def _write_to_stderr(lines: list[str]) -> None:
    """The host may have closed its stderr, or put anything in its place: what it cannot take is not written."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        stream.write("".join(lines))
    except Exception:
        for line in lines if len(lines) > 1 else ():
            _write_to_stderr([line])


class _Caller:
    """Gives lines to a function of the program's."""

    def __init__(self, name: str, function: Callable[[str, str], object]) -> None:
        self._name = name
        self._function = function
        self._has_failed = False

    def show(self, lines: list[str]) -> None:
        for line in lines:
            try:
                self._function(self._name, line)
            except Exception:
                if not self._has_failed:
                    self._has_failed = True
                    log.exception("output of %r: %r failed (reported once)", self._name, self._function)
