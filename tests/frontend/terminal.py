"""A program at a terminal, and what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time


class Terminal:
    """Python with a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._fd, theirs = pty.openpty()
        self._seen = ""
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def write(self, data: bytes) -> None:
        os.write(self._fd, data)

    def read_until(self, text: str, timeout_s: float = 60.0) -> None:
        """Read on, past the next ``text``."""
        deadline = time.monotonic() + timeout_s
        while text not in self._seen:
            readable, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"no {text!r} in {self._seen!r}"
            self._seen += os.read(self._fd, 4096).decode(errors="replace")
        self._seen = self._seen.partition(text)[2]

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
