"""The engine core's view of its worker: is it up, and has this incarnation been initialised?

The engine core makes one, asks before each step and sends plans through it. It restarts nothing (the supervisor
does) and knows no requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TypeVar

import ringcast.actors as rt

from .messages import KVCacheConfig, KVCacheSpec, StepPlan, StepResult, WorkerInterface

T = TypeVar("T")

log = logging.getLogger("ringcast.scheduler")


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A plan that was sent, to whom, and the answer to come."""

    plan: StepPlan
    incarnation: int
    answer: asyncio.Future[StepResult]


class WorkerConnection:
    """A worker reference, the plans that it has not answered, and what watch and calls say about it.

    Both tell of a death, in either order; so each is noted for the incarnation that it concerns, and a
    `Ready` that is older than a failed call brings nothing back to life. ``wake`` is set at every change.
    """

    def __init__(self, worker: WorkerInterface, wake: asyncio.Event) -> None:
        self._worker = worker
        self._wake = wake
        self._submitted: deque[_Submitted] = deque()
        self._num_waits = 0  # of ours, for an answer of the worker
        self._incarnation = 0  # the latest that became ready
        self._dead_incarnation = 0  # the latest known to be dead
        self._initialised_incarnation = 0
        self.cause = "it has not started yet"  # of the last death, one line
        self.was_killed_from_outside = False  # the last death: then no request can be the cause
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
            elif isinstance(event, rt.Restarting) and event.planned:
                self._note_death(self._incarnation, rt.Cause(f"it is restarted: {event.reason}", from_outside=True))
            elif isinstance(event, rt.GaveUp):
                self.cause = first_line(event.cause)
                self.gone = True
            elif isinstance(event, rt.Stopped):
                self.cause = "it was stopped"
                self.gone = True
            self._wake.set()

    @property
    def is_awaited(self) -> bool:
        """The worker owes an answer."""
        return self._num_waits > 0 or any(not submitted.answer.done() for submitted in self._submitted)

    async def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """Ask for the sizes of the model and the memory."""
        return await self._wait_for(self._worker.kv_cache_spec(block_size), self._incarnation)

    async def initialise(self, limits: KVCacheConfig) -> None:
        """Give the worker an empty KV cache and empty rows."""
        incarnation = self._incarnation
        await self._wait_for(self._worker.initialize_from_config(limits), incarnation)
        self._initialised_incarnation = incarnation

    async def _wait_for(self, call: Awaitable[T], incarnation: int) -> T:
        self._num_waits += 1
        try:
            return await call
        except rt.ActorDied as death:
            self._note_death(incarnation, death.cause)
            raise
        finally:
            self._num_waits -= 1

    @property
    def num_in_flight(self) -> int:
        """Plans that were submitted and whose results were not taken."""
        return len(self._submitted)

    def submit(self, plan: StepPlan) -> None:
        """Send a plan; the worker runs it behind those that it has."""
        answer = asyncio.ensure_future(self._worker.execute_model(plan))
        self._submitted.append(_Submitted(plan, self._incarnation, answer))

    async def result(self) -> StepResult:
        """The answer to the oldest plan in flight, which is so no more. Raises what the call raised."""
        submitted = self._submitted.popleft()
        return await self._wait_for(submitted.answer, submitted.incarnation)

    async def drop_results(self) -> None:
        """Wait until nothing is in flight. What comes is of no use: an earlier plan failed."""
        while self._submitted:
            try:
                await self.result()
            except rt.ActorError as error:
                log.debug("a plan behind one that failed: %s", error)

    def cancel(self) -> None:
        """Nobody waits for results any more."""
        while self._submitted:
            self._submitted.popleft().answer.cancel()

    def distrust(self) -> None:
        """The worker lives, but its rows can no longer be relied on: `initialise` it again."""
        self._initialised_incarnation = 0

    def _note_death(self, incarnation: int, cause: rt.Cause) -> None:
        self._dead_incarnation = max(self._dead_incarnation, incarnation)
        self.cause = first_line(cause)
        self.was_killed_from_outside = cause.from_outside


def first_line(text: object) -> str:
    """The first line of a message: what fits into an error for the user."""
    return str(text).partition("\n")[0]
