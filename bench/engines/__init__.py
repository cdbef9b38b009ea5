"""Engines side by side: each in a process of its own, started once, asked in turn. Used by `bench.throughput`.

A driver is a script that runs under the engine's own interpreter, so none but ringcast's imports ringcast. It
speaks JSON lines: it says "ready", then answers each task with seconds and tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts as token ids, to be run at the same time, and how many tokens each generates."""

    prompts: Sequence[Sequence[int]]
    new_tokens: int


@dataclass(slots=True)
class Engine:
    """One engine with one form of the weights."""

    label: str
    driver: str  # name of the script
    model: Path
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    most_streams: int = 1 << 30  # llama.cpp's Python binding runs one sequence
    facts: dict[str, Any] = field(default_factory=dict)  # what the driver says of itself when it is ready
    _process: subprocess.Popen[str] | None = None

    def start(self, threads: int) -> None:
        """Load the model. `RuntimeError` with the engine's last words if that fails."""
        command = [
            self.python,
            str(_FOLDER / f"{self.driver}_driver.py"),
            str(self.model),
            str(threads),
            *self.arguments,
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self._receive()

    def run(self, task: Task) -> float:
        """Seconds that the task took."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": task.prompts, "new_tokens": task.new_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._receive()
        expected = len(task.prompts) * task.new_tokens
        if answer["tokens"] != expected:
            raise RuntimeError(f"{self.label} generated {answer['tokens']} tokens instead of {expected}")
        return float(answer["seconds"])

    def stop(self) -> None:
        """End the driver: its input ends, and it leaves."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        # Engines print what they like; a driver's lines begin with a mark.
        for line in self._process.stdout:
            if line.startswith("@bench "):
                answer: dict[str, Any] = json.loads(line.removeprefix("@bench "))
                return answer
        raise RuntimeError(f"{self.label} ended with exit code {self._process.wait()}; its messages are above")
