"""Starts child processes and learns of their end. Owned by `process_host`; knows no actor and no message.

A child gets two inherited file descriptors (its link, and the lane on which it is pinged), a session of its own, and
pipes for its output, whose lines appear on our stderr with the child's name and whose last lines are kept for the cause
of death.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping

from .errors import ActorError

STDERR_TAIL_LINES = 20
CHILD_PROGRAM = "from ringcast.actors.child import main; main()"  # `-m` would load runpy first
DUMP_SIGNAL = signal.SIGUSR2  # a child's faulthandler writes all stacks
DUMP_WAIT_S = 0.2


class ChildProcess:
    """A running child. ``on_exit`` is called once, on the loop, after it was reaped and its output read."""

    def __init__(
        self, name: str, link_fd: int, env: Mapping[str, str], on_exit: Callable[[ChildProcess], None]
    ) -> None:
        self.name = name
        self.tail: deque[str] = deque(maxlen=STDERR_TAIL_LINES)
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._partial = b""
        self._dump: list[str] | None = None  # lines written since stacks were asked for
        self._pings: deque[tuple[float, asyncio.Future[float]]] = deque()
        self._lane, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lane.setblocking(False)
        lane_fd = theirs.fileno()
        self._popen = subprocess.Popen(
            [sys.executable, "-c", CHILD_PROGRAM, str(link_fd), str(os.getpid()), str(lane_fd)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            pass_fds=(link_fd, lane_fd),
            start_new_session=True,
        )
        theirs.close()
        assert self._popen.stdout is not None
        self._output_fd = self._popen.stdout.fileno()
        os.set_blocking(self._output_fd, False)
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._loop.add_reader(self._pidfd, self._exited)
        self._loop.add_reader(self._output_fd, self._read_output)
        self._loop.add_reader(self._lane.fileno(), self._read_pongs)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess`: negative is the signal that killed it. None while it runs."""
        return self._popen.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def ping(self) -> float:
        """Seconds that an answer took, from a native thread that needs nothing of the interpreter.

        None comes from a process that is stopped: wait with a time-out. `ActorError` if it ends instead.
        """
        answered: asyncio.Future[float] = self._loop.create_future()
        self._pings.append((time.monotonic(), answered))
        try:
            self._lane.send(b"p")
        except OSError as error:
            self._pings.pop()
            raise ActorError(f"process {self.pid} of {self.name!r} cannot be pinged: {error}") from error
        return await answered

    def _read_pongs(self) -> None:
        while True:
            try:
                message = self._lane.recv(64)
            except BlockingIOError:
                return
            except ConnectionError:
                message = b""
            if not message:
                self._loop.remove_reader(self._lane.fileno())
                return
            sent_at, answered = self._pings.popleft()
            if not answered.done():
                answered.set_result(time.monotonic() - sent_at)

    def dump_stacks(self, report: Callable[[str], None]) -> None:
        """Make the interpreter write its threads' stacks (faulthandler), and report them as soon as they are there.

        It works while a handler holds the interpreter; a process that is stopped or deep in the kernel writes none.
        """
        self._dump = []
        self.signal(DUMP_SIGNAL)
        self._loop.call_later(DUMP_WAIT_S, self._report_dump, report)

    def _report_dump(self, report: Callable[[str], None]) -> None:
        lines, self._dump = self._dump or [], None
        report("\n".join(lines) or f"no stacks: {self._describe_state()}")

    def _describe_state(self) -> str:
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                letter = file.read().rpartition(")")[2].split()[0]
        except OSError:
            return "the process is gone"
        words = {"T": "stopped by a signal", "D": "waiting in the kernel", "Z": "dead and not yet reaped"}
        return f"the process is {words.get(letter, f'in state {letter}')}"

    def describe_exit(self) -> str:
        """How it ended, in words."""
        code = self.exit_code
        if code is None:
            return "it runs"
        if code >= 0:
            return f"its process {self.pid} exited with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (kill -9, or the kernel out of memory)" if -code == signal.SIGKILL else ""
        return f"its process {self.pid} was killed by {name}{hint}"

    def _exited(self) -> None:
        self._popen.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._loop.remove_reader(self._lane.fileno())
        self._lane.close()
        for _, answered in self._pings:
            if not answered.done():
                answered.set_exception(ActorError(f"process {self.pid} of {self.name!r} ended before it answered"))
        self._read_output()
        if self._output_fd >= 0:
            self._close_output()
        self._on_exit(self)

    def _read_output(self) -> None:
        while self._output_fd >= 0:
            try:
                data = os.read(self._output_fd, 65536)
            except BlockingIOError:
                return
            if not data:
                self._close_output()
                return
            lines = (self._partial + data).split(b"\n")
            self._partial = lines.pop()
            for line in lines:
                self._show(line)

    def _close_output(self) -> None:
        if self._partial:
            self._show(self._partial)
        self._loop.remove_reader(self._output_fd)
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._output_fd = -1

    def _show(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        self.tail.append(text)
        if self._dump is not None:
            self._dump.append(text)
        with contextlib.suppress(OSError, ValueError):  # the host may have closed its stderr
            sys.stderr.write(f"[{self.name}] {text}\n")
