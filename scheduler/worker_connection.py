"""The engine core's view of its worker: is it up, and has this incarnation been initialised?

The engine core makes one and asks before each step. It restarts nothing (the supervisor does) and knows no
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import ringcast.actors as rt

from .messages import KVCacheConfig, KVCacheSpec, StepPlan, StepResult, WorkerInterface


class WorkerConnection:
    """A worker reference, and what its watch and the outcome of calls say about it.

    Both tell of a death, in either order; so each is noted for the incarnation that it concerns, and a
    `Ready` that is older than a failed call brings nothing back to life. ``wake`` is set at every change.
    """

    def __init__(self, worker: WorkerInterface, wake: asyncio.Event) -> None:
        self._worker = worker
        self._wake = wake
        self._incarnation = 0  # the latest that became ready
        self._dead_incarnation = 0  # the latest known to be dead
        self._initialised_incarnation = 0
        self.cause = "it has not started yet"  # of the last death, one line
        self.gone = False  # it will not be started again

    @property
    def is_up(self) -> bool:
        return self._incarnation > self._dead_incarnation and not self.gone

    @property
    def is_initialised(self) -> bool:
        """Up, with the KV cache and rows that `initialise` made."""
        return self.is_up and self._initialised_incarnation == self._incarnation

    async def follow(self, events: AsyncIterator[rt.Event]) -> None:
        """Take the watch's events until the last one."""
        async for event in events:
            if isinstance(event, rt.Ready):
                self._incarnation = event.incarnation
            elif isinstance(event, rt.Died):
                self._note_death(event.incarnation, event.cause)
            elif isinstance(event, rt.GaveUp):
                self.cause = first_line(event.cause)
                self.gone = True
            elif isinstance(event, rt.Stopped):
                self.cause = "it was stopped"
                self.gone = True
            self._wake.set()

    async def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """Ask for the sizes of the model and the memory."""
        incarnation = self._incarnation
        try:
            return await self._worker.kv_cache_spec(block_size)
        except rt.ActorDied as death:
            self._note_death(incarnation, death.cause)
            raise

    async def initialise(self, limits: KVCacheConfig) -> None:
        """Give the worker an empty KV cache and empty rows."""
        incarnation = self._incarnation
        try:
            await self._worker.initialize_from_config(limits)
        except rt.ActorDied as death:
            self._note_death(incarnation, death.cause)
            raise
        self._initialised_incarnation = incarnation

    async def execute(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        incarnation = self._incarnation
        try:
            return await self._worker.execute_model(plan)
        except rt.ActorDied as death:
            self._note_death(incarnation, death.cause)
            raise

    def distrust(self) -> None:
        """The worker lives, but its rows can no longer be relied on: `initialise` it again."""
        self._initialised_incarnation = 0

    def _note_death(self, incarnation: int, cause: rt.Cause) -> None:
        self._dead_incarnation = max(self._dead_incarnation, incarnation)
        self.cause = first_line(cause)


def first_line(text: object) -> str:
    """The first line of a message: what fits into an error for the user."""
    return str(text).partition("\n")[0]
