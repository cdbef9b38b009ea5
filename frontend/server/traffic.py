"""The requests that a server is answering: how many, whether new ones are let in, and when the last one has left.

One per app. `Gate` counts; drain, metrics and load look.
"""

from __future__ import annotations

import asyncio
from collections import Counter


class Traffic:
    """Belongs to the app's event loop."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.num_refused: Counter[int] = Counter()  # by HTTP status
        self.is_draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        """A request is let in."""
        self.in_flight += 1
        self._empty.clear()

    def leave(self) -> None:
        """It has been answered, or its client went away."""
        self.in_flight -= 1
        if not self.in_flight:
            self._empty.set()

    async def drain(self, timeout_s: float) -> bool:
        """Let nobody in any more; True when all have left, False if some are still there after ``timeout_s``."""
        self.is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
