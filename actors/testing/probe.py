"""An actor for tests: remembers what it is told, and can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..actor import Actor, call


class Probe(Actor):
    """Spawn it in the test's own process and give its reference to the actors under test.

    They tell it something (``probe.tell.cast(x)`` or ``await probe.tell(x)``); the test looks at ``await
    probe.told()`` or waits: ``await probe.until(lambda told: len(told) == 3)``. A time limit is the test's affair:
    ``async with rt.deadline(5)``; in a simulation, waiting in vain is a `Deadlock`.
    """

    def __init__(self) -> None:
        self._told: list[Any] = []
        self._waiting: list[tuple[Callable[[list[Any]], bool], asyncio.Future[None]]] = []

    @call
    async def tell(self, what: object) -> None:
        """Remember something."""
        self._told.append(what)
        for condition, future in self._waiting:
            if not future.done() and condition(list(self._told)):
                future.set_result(None)

    @call
    async def told(self) -> list[Any]:
        """All of it, in order of arrival."""
        return list(self._told)

    @call(concurrent=True)
    async def until(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        """Wait until the condition holds of all that was told; then that. Functions do not travel: ask from here."""
        if not condition(list(self._told)):
            entry = (condition, asyncio.get_running_loop().create_future())
            self._waiting.append(entry)
            try:
                await entry[1]
            finally:
                self._waiting.remove(entry)
        return list(self._told)
