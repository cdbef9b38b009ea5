"""How long the orderly stops of one system may take, and the means to shorten all of them at once.

Owned by the root's node; hosts wait inside `Patience.limit`. Leaving the system, and being cancelled while it is left,
cut it short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Patience:
    """See the module."""

    def __init__(self) -> None:
        self._until = float("inf")  # on the loop's clock: nothing is waited for longer
        self._limits: set[tuple[asyncio.Timeout, float]] = set()  # in force, each with the moment it lasts at least to

    def cut(self, to_s: float) -> None:
        """From now on no stop may take longer than that, those under way included."""
        self._until = min(self._until, asyncio.get_running_loop().time() + to_s)
        for timeout, at_least in self._limits:
            if not timeout.expired():
                timeout.reschedule(self._moment(timeout.when(), at_least))

    @asynccontextmanager
    async def limit(self, timeout_s: float, at_least_s: float = 0.0) -> AsyncIterator[None]:
        """``TimeoutError`` if it takes longer than ``timeout_s`` or `cut` allows, but not before ``at_least_s``."""
        now = asyncio.get_running_loop().time()
        at_least = now + at_least_s
        async with asyncio.timeout_at(self._moment(now + timeout_s, at_least)) as timeout:
            entry = (timeout, at_least)
            self._limits.add(entry)
            try:
                yield
            finally:
                self._limits.discard(entry)

    def _moment(self, when: float | None, at_least: float) -> float:
        return max(min(float("inf") if when is None else when, self._until), at_least)
