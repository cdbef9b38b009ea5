"""Starts the two processes of a transport on cores of their own and tells them what to measure.

Used by the sections of a benchmark; `bench.worker` is the other side. It measures nothing, and sleeps while they do.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .report import ROOT

ANSWER_WITHIN_S: Final = 180.0


class WorkerFailed(Exception):
    """A measuring process raised, died or fell silent. The message names it and shows its traceback."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the two sides run; None: wherever the system puts them."""

    near: int | None
    far: int | None

    @classmethod
    def choose(cls, pin: bool) -> Cores:
        """The first two cores that we may use; with just one there is nothing to choose."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(allowed[0], allowed[1]) if pin and len(allowed) > 1 else cls(None, None)


class Worker:
    """One measuring process: takes calls one at a time, answers each."""

    def __init__(
        self, endpoint: str, side: str, peer_fd: int, core: int | None, python: str, tracer: Sequence[str]
    ) -> None:
        self.name = f"{endpoint.rpartition(':')[2]}, {side} side"
        command = [
            *tracer,
            python,
            "-m",
            "bench.worker",
            endpoint,
            side,
            str(peer_fd),
            str(-1 if core is None else core),
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, pass_fds=(peer_fd,), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def pid(self) -> int:
        """Of the process started (the tracer's, if there is one)."""
        return self._process.pid

    def post(self, method: str, *arguments: object) -> None:
        """Start a call."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([method, arguments]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(f"{self.name}: ended with status {self._process.wait()} before {method}()") from None

    def answer(self) -> Any:
        """What the call returned."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)[0]:
            raise WorkerFailed(f"{self.name}: no answer within {ANSWER_WITHIN_S:.0f} s; did the other side fail?")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name}: ended with status {self._process.wait()} instead of answering")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.name} raised:\n{answer['error']}")
        return answer["value"]

    def send_signal(self, number: int) -> None:
        """SIGSTOP and SIGCONT, for sections about slow readers."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End the process, gently at first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(3)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Pair:
    """Both ends of one transport, connected and waiting."""

    def __init__(
        self, endpoint: str, cores: Cores, python: str = sys.executable, tracers: Sequence[Sequence[str]] = ((), ())
    ) -> None:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, other:
            self.near = Worker(endpoint, "near", one.fileno(), cores.near, python, tracers[0])
            self.far = Worker(endpoint, "far", other.fileno(), cores.far, python, tracers[1])
        try:
            for worker in (self.near, self.far):
                worker.answer()
        except BaseException:
            self.close()
            raise

    def call(self, near: tuple[Any, ...], far: tuple[Any, ...]) -> Any:
        """One call on each side at the same time, each (method, *arguments); the near side's result."""
        self.far.post(*far)
        self.near.post(*near)
        result = self.near.answer()
        self.far.answer()
        return result

    def call_counted(self, near: tuple[Any, ...], far: tuple[Any, ...]) -> list[dict[str, int]]:
        """The same inside `counting.counted`: its result for the near side and for the far side."""
        self.far.post("counted", *far)
        self.near.post("counted", *near)
        return [self.near.answer(), self.far.answer()]

    def close(self) -> None:
        """End both processes."""
        self.near.close()
        self.far.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
