"""Whether worker and engine core make progress with the requests that they have: what `Engine` says about its health.

Once a tick the engine core is asked whether it waits for the worker, and the worker's progress is read off the board. A
core that does not answer, or an awaited worker whose progress stands still, is stalled. It runs only while there are
requests, or a stall: an idle engine sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import ringcast.actors as rt
from ringcast.scheduler.engine_core import EngineCore
from ringcast.scheduler.messages import WorkerInterface

log = logging.getLogger("ringcast.frontend")

_MAX_TICK_S = 1.0
_TICKS = 5  # at least, before an actor counts as stalled
_LATE_TICKS = 2.0  # in ticks: what a look that came late counts for at most


@dataclass(frozen=True, slots=True)
class Stall:
    """An actor that has made no progress for longer than it may."""

    actor: str
    where: str  # "handler 'execute_model'"
    since_s: float  # Unix time
    waited_s: float

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since_s))
        return f"{self.actor} has made no progress in {self.where} for {self.waited_s:.0f} s (since {since})"


class StallClock:
    """How long one actor has made no progress while somebody waits for it.

    Time is counted in looks, one every ``tick_s``: a look that comes late, because this process or the whole machine
    was suspended or overloaded, counts for two at most. So it never blames an actor for time in which nobody ran.
    """

    def __init__(self, actor: str, limit_s: float, tick_s: float) -> None:
        self.actor = actor
        self.waited_s = 0.0
        self._limit_s = limit_s
        self._tick_s = tick_s
        self._progress: object = None
        self._where = ""
        self._since_s = 0.0  # Unix time of the look that saw progress last
        self._looked_at: float | None = None

    def look(self, *, is_awaited: bool, progress: object, where: str, now_s: float) -> None:
        """Note what is seen: whether somebody waits for the actor, and a value that changes with its progress."""
        elapsed_s = 0.0 if self._looked_at is None else min(now_s - self._looked_at, _LATE_TICKS * self._tick_s)
        self._looked_at = now_s
        self._where = where
        if not is_awaited or progress != self._progress:
            self._progress = progress
            self._since_s = time.time()
            self.waited_s = 0.0
        else:
            self.waited_s += elapsed_s

    def reset(self) -> None:
        """The actor is down, or another incarnation: whatever was seen of it is void."""
        self.waited_s = 0.0
        self._progress = self._looked_at = None

    @property
    def stall(self) -> Stall | None:
        """Its stall, if it has one."""
        if self.waited_s < self._limit_s:
            return None
        return Stall(self.actor, self._where, self._since_s, self.waited_s)


class StallMonitor:
    """See the module.

    ``stall_after_s``: without progress for longer, an actor is stalled; that is logged once, with its stacks.
    ``restart_after_s``: it is killed then, and its supervisor starts it again (None: never).

    ``has_work`` says whether there are requests, ``is_up`` whether the actor of that name serves.
    """

    def __init__(
        self,
        system: rt.System,
        worker: tuple[str, WorkerInterface],
        core: tuple[str, EngineCore],
        *,
        stall_after_s: float,
        restart_after_s: float | None,
        has_work: Callable[[], bool],
        is_up: Callable[[str], bool],
    ) -> None:
        self._system = system
        self._worker_name, self._worker = worker
        self._core_name, self._core = core
        self._restart_after_s = restart_after_s
        self._has_work = has_work
        self._is_up = is_up
        self._tick_s = min(_MAX_TICK_S, min(stall_after_s, restart_after_s or stall_after_s) / _TICKS)
        self._refs: dict[str, object] = {self._worker_name: self._worker, self._core_name: self._core}
        self._clocks = {name: StallClock(name, stall_after_s, self._tick_s) for name in self._refs}
        self._answer: asyncio.Future[bool] | None = None  # of the core: whether it waits for the worker
        self._num_answers = 0
        self._wake = asyncio.Event()
        self._reported: dict[str, asyncio.Task[None]] = {}  # of the stalls that have been logged, or are about to be

    @property
    def stalls(self) -> dict[str, Stall]:
        """The actors that are stalled now, by name."""
        return {name: stall for name, clock in self._clocks.items() if (stall := clock.stall) is not None}

    def wake(self) -> None:
        """There is a request."""
        self._wake.set()

    async def run(self) -> None:
        """Look once a tick while there are requests; for ever, until it is cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._has_work() or any(clock.waited_s for clock in self._clocks.values()):
                    await asyncio.sleep(self._tick_s)
                    self._look()
                for clock in self._clocks.values():
                    clock.reset()
        finally:
            if self._answer is not None:
                self._answer.cancel()
            for task in self._reported.values():
                task.cancel()

    def _look(self) -> None:
        if not self._is_up(self._core_name):
            self._clocks[self._core_name].reset()
            self._clocks[self._worker_name].reset()
            self._answer = None
        else:
            self._look_at_both()
        for name, clock in self._clocks.items():
            self._report(name, clock.stall)
            if self._restart_after_s is not None and clock.waited_s >= self._restart_after_s:
                self._restart(name, clock)

    def _look_at_both(self) -> None:
        waits_for_worker = None
        if self._answer is not None and self._answer.done():
            if not self._answer.cancelled() and self._answer.exception() is None:
                waits_for_worker = self._answer.result()
            self._num_answers += 1  # an error is one, too: it died, or is about to be attached to
            self._answer = None
        if self._answer is None:
            self._answer = asyncio.ensure_future(self._core.waits_for_worker())
        self._look_at(self._core_name, is_awaited=True, num_answers=self._num_answers)
        if not self._is_up(self._worker_name):
            self._clocks[self._worker_name].reset()
        elif waits_for_worker is not None:
            self._look_at(self._worker_name, is_awaited=waits_for_worker)

    def _look_at(self, name: str, *, is_awaited: bool, num_answers: int = 0) -> None:
        clock = self._clocks[name]
        try:
            count, handler = self._system.progress(self._refs[name])
        except rt.ActorError:  # it died a moment ago
            clock.reset()
            return
        # The core's own count stands still while its loop waits for the worker: only its answers are its progress.
        progress = num_answers if name == self._core_name else count
        where = f"handler {handler!r}" if handler else "its loop, outside any handler"
        clock.look(is_awaited=is_awaited, progress=progress, where=where, now_s=time.monotonic())

    def _report(self, name: str, stall: Stall | None) -> None:
        if stall is not None and name not in self._reported:
            self._reported[name] = asyncio.create_task(self._log(stall))
        elif stall is None and name in self._reported:
            self._reported.pop(name)
            if self._is_up(name):
                log.warning("%s makes progress again", name)

    async def _log(self, stall: Stall) -> None:
        try:
            stacks = await self._system.stacks(self._refs[stall.actor])
        except rt.ActorError as error:
            stacks = f"no stacks: {error}"
        hint = "" if self._restart_after_s is not None else "; --restart-stalled SECONDS would restart it"
        log.warning("%s: requests wait%s\n%s", stall, hint, stacks)

    def _restart(self, name: str, clock: StallClock) -> None:
        try:
            self._system.kill(
                self._refs[name], f"no progress for {clock.waited_s:.1f} s, restart_stalled={self._restart_after_s:g}"
            )
        except rt.ActorError as error:
            log.debug("%s need not be killed: %s", name, error)
        clock.reset()
