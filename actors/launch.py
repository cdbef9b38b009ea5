"""Starts child processes and learns of their end. Owned by `process_host`; knows no actor and no message.

A child gets two inherited file descriptors (its link, and the lane on which it is pinged), a session of its own, and a
pipe for its output (`child_output`). How its interpreter is started stands in `child_command`.
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
from collections.abc import Callable, Mapping, Sequence

from .child_command import BEGAN, REMEDY, arguments, executable, first_message
from .child_output import ChildOutput, LastLines, Output
from .errors import ActorError
from .lasting_thread import on_lasting_thread
from .system_calls import calling

DUMP_SIGNAL = signal.SIGUSR2  # a child's faulthandler writes all stacks
DUMP_WAIT_S = 0.2


class ChildProcess:
    """A running child. ``on_exit`` is called once, on the loop, after it was reaped and its output read."""

    _is_status_lost = False  # it has ended, and nobody can know how

    def __init__(
        self,
        name: str,
        link_fd: int,
        env: Mapping[str, str],
        output: Output,
        on_exit: Callable[[ChildProcess], None],
    ) -> None:
        self.name = name
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._has_begun = False  # our bootstrap runs in it
        self._last = LastLines()
        self._pings: deque[tuple[float, asyncio.Future[float]]] = deque()
        self._executable = executable()
        self._lane, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = -1, -1
        try:
            self._lane.setblocking(False)
            self._lane.send(first_message())
            if output != "inherit":
                reading, writing = os.pipe()

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [self._executable, *arguments(link_fd, theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=writing if writing >= 0 else None,
                    stderr=writing if writing >= 0 else None,
                    env={**os.environ, **env},
                    pass_fds=(link_fd, theirs.fileno()),
                    start_new_session=True,
                )

            try:
                self._popen = on_lasting_thread(start)
            except OSError as error:
                if error.filename == self._executable:
                    raise ActorError(f"{self._executable!r} cannot be executed ({error.strerror}): {REMEDY}") from error
                raise
            try:
                with calling("pidfd_open"):
                    self._pidfd = os.pidfd_open(self._popen.pid)
            except BaseException:
                self._popen.kill()
                self._popen.wait()
                raise
        except BaseException:
            self._lane.close()
            if reading >= 0:
                os.close(reading)
            raise
        finally:
            theirs.close()
            if writing >= 0:
                os.close(writing)
        self._output = ChildOutput(name, reading, output, self._last) if reading >= 0 else None
        self._loop.add_reader(self._pidfd, self._exited)
        self._loop.add_reader(self._lane.fileno(), self._read_pongs)

    def was_forked(self) -> None:
        """See `forks`."""
        self._popen.returncode = 0  # nothing is to be reaped, or warned of, here

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess`: negative is the signal that killed it. None while it runs, and if nobody can know it."""
        return None if self._is_status_lost else self._popen.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def abandon(self) -> None:
        """Its loop is closed, so nobody will hear of its end: kill it, reap it, and close what is held for it."""
        self._popen.kill()
        self._popen.wait()
        os.close(self._pidfd)
        self._lane.close()
        if self._output is not None:
            self._output.abandon()

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
            if message == BEGAN and not self._has_begun:
                self._has_begun = True
                continue
            sent_at, answered = self._pings.popleft()
            if not answered.done():
                answered.set_result(time.monotonic() - sent_at)

    def dump_stacks(self, report: Callable[[str], None]) -> None:
        """Make the interpreter write its threads' stacks (faulthandler), and report them as soon as they are there.

        It works while a handler holds the interpreter; a process that is stopped or deep in the kernel writes none.
        """
        self._last.begin_dump()
        self.signal(DUMP_SIGNAL)
        self._loop.call_later(DUMP_WAIT_S, self._report_dump, report)

    def _report_dump(self, report: Callable[[str], None]) -> None:
        report("\n".join(self._last.take_dump()) or f"no stacks: {self._describe_state()}")

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
        if self._is_status_lost:
            return (
                f"its process {self.pid} has ended, and its exit status is unknown: this program ignores SIGCHLD, or "
                "waits for children that are not its own"
            )
        code = self.exit_code
        if code is None:
            return "it runs"
        if code >= 0:
            summary = f"its process {self.pid} exited with code {code}"
            return summary if self._has_begun else f"{summary} before its bootstrap ran: {self._explain_executable()}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (kill -9, or the kernel out of memory)" if -code == signal.SIGKILL else ""
        return f"its process {self.pid} was killed by {name}{hint}"

    def _explain_executable(self) -> str:
        return (
            f"{self._executable!r} is no Python {sys.version_info[0]}.{sys.version_info[1]}, or cannot start. {REMEDY}"
        )

    def _exited(self) -> None:
        try:
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # somebody else has taken the status; `subprocess` would say 0
            self._is_status_lost = True
        self._popen.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._read_pongs()
        self._loop.remove_reader(self._lane.fileno())
        self._lane.close()
        for _, answered in self._pings:
            if not answered.done():
                answered.set_exception(ActorError(f"process {self.pid} of {self.name!r} ended before it answered"))
        if self._output is not None:
            self._output.end()
        self._on_exit(self)

    @property
    def tail(self) -> Sequence[str]:
        """The last lines that it wrote; none with ``output="inherit"``."""
        return self._last.tail

    @property
    def has_lines(self) -> bool:
        """It has ended, and lines of its output are still to be passed on."""
        return self._output is not None and self._output.has_lines

    def flush_output(self) -> None:
        """Pass on all lines of its output that were read."""
        if self._output is not None:
            self._output.flush()
