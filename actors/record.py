"""One actor through all its incarnations: its state, its host, its watchers. Made and driven by a `Supervisor`.

It starts and stops its actor and notices its death; what follows from a death is its supervisor's decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from .actor import Actor
from .directory import Directory, Place
from .errors import Cause
from .events import Died, Event, GaveUp, Ready, Restarting, Stalled, Stopped
from .host import Child, ExitCallback, Host
from .local_host import TaskHost, ThreadHost
from .placement import process
from .process_host import ProcessHost
from .root_node import RootNode
from .spare import SpareKeeper

log = logging.getLogger("ringcast.actors")

STOP_STARTED_TIMEOUT_S = 5.0  # for an actor that was stopped for good while it started


class State(Enum):
    """Where an actor is in its life."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"  # dead or stopped, and to be started again
    STOPPED = "stopped"
    FAILED = "failed"  # dead, and given up


class Budget:
    """How often something may die: at most ``max_deaths`` times within ``within_s`` seconds."""

    def __init__(self, max_deaths: int, within_s: float) -> None:
        self.max_deaths = max_deaths
        self.within_s = within_s
        self._deaths: deque[float] = deque()

    def spend(self) -> int:
        """Count a death; how many there are within the period."""
        self._deaths.append(time.monotonic())
        return self.num_spent()

    def num_spent(self) -> int:
        """How many deaths were counted within the period."""
        begin = time.monotonic() - self.within_s
        while self._deaths and self._deaths[0] < begin:
            self._deaths.popleft()
        return len(self._deaths)


class Parent(Protocol):
    """What a record needs of its supervisor."""

    def child_died(self, record: Record, clean: bool) -> None:
        """The actor ended by itself; ``record.cause`` says why, ``clean`` whether with exit code 0."""


class Record:
    """See the module."""

    def __init__(self, child: Child, root: RootNode, directory: Directory, parent: Parent) -> None:
        self.child = child
        self.name = child.name
        self.state = State.STARTING
        self.incarnation = 0
        self.host: Host | None = None
        self.cause = Cause("it has not started")
        self.budget = Budget(child.restart.max_restarts, child.restart.within_s)
        self.handoff: object = None  # of an incarnation that was stopped in order, for the next one
        self._root = root
        self._directory = directory
        self._parent = parent
        self._capacity_bytes = 0
        self._reported_progress = -1
        self._last_event: Event | None = None
        self._watchers: list[Callable[[Event], None]] = []
        self._early_exit: tuple[Cause, bool] | None = None  # it died between READY and our hearing of that
        self._turn = asyncio.Lock()  # one start or end at a time, whoever wants it
        self._starting: asyncio.Future[int] | None = None
        self._ending: asyncio.Task[None] | None = None  # it is being stopped for good
        self._spares: SpareKeeper | None = None
        if isinstance(child.where, process) and child.where.spare:
            self._spares = SpareKeeper(child.name, lambda: self._process_host(self.incarnation + 1))

    @property
    def has_ended(self) -> bool:
        """It will not be started again."""
        return self.state in (State.STOPPED, State.FAILED)

    @property
    def is_excused(self) -> bool:
        """Its last death does not count against it."""
        return self.cause.from_outside and self.child.restart.outside_kills == "ignore"

    def place(self) -> Place | Cause:
        """Where it is, or why it is not."""
        if self.state is not State.READY or self.host is None:
            return self.cause
        stall_after_s = self.child.spec.cls.stall_after_s
        return Place(self.name, self.host.slot, self._capacity_bytes, stall_after_s)

    def subscribe(self, tell: Callable[[Event], None]) -> Callable[[], None]:
        """See `Directory.subscribe`."""
        self._watchers.append(tell)
        if self._last_event is not None:
            tell(self._last_event)
        return lambda: self._watchers.remove(tell)

    async def start(self) -> None:
        """Start the next incarnation and wait until it is READY; `StartFailed` if it does not get there.

        Nothing to do if somebody else has started it meanwhile, or if it was stopped for good.
        """
        async with self._turn:
            if self.state in (State.STARTING, State.DOWN):
                await self._start()

    async def _start(self) -> None:
        self.incarnation += 1
        incarnation = self.incarnation
        handoff, self.handoff = self.handoff, None
        self._early_exit = None
        host = self.host = self._make_host(incarnation)
        starting = self._starting = asyncio.ensure_future(host.start(handoff))
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:
            starting.cancel()
            await asyncio.wait([starting])
            raise
        finally:
            self._starting = None
        if self.has_ended:  # it was stopped while it started
            if not starting.cancelled() and starting.exception() is None:
                await host.stop(self.cause.summary, STOP_STARTED_TIMEOUT_S)
            return
        self._capacity_bytes = starting.result()
        self.state = State.READY
        self.tell(Ready(incarnation))
        if self._spares is not None:
            self._spares.begin(incarnation)
        early_exit: tuple[Cause, bool] | None = self._early_exit  # set while we waited
        if early_exit is not None:
            self._on_exit(*early_exit)

    async def stop(self, reason: str, timeout_s: float) -> None:
        """Stop it for good, in order, and kill it at the deadline. It ends even if the caller does not wait for it."""
        if not self.has_ended:
            was_ready = self.state is State.READY
            self.state = State.STOPPED
            self.cause = Cause(f"it was stopped: {reason}")
            end = self._end_for_good(reason, timeout_s if was_ready else None)
            self._ending = asyncio.create_task(end, name=f"{self.name}: stop")
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end_for_good(self, reason: str, timeout_s: float | None) -> None:
        """End it, or the start or stop that is under way (``timeout_s`` is None)."""
        try:
            if self._starting is not None:
                self._starting.cancel()
            spare = self._spares.drop() if self._spares is not None else None
            async with self._turn:
                if timeout_s is not None:
                    await self._end(reason, timeout_s)
            if spare is not None:
                await spare.wait_gone()
        finally:
            self.tell(Stopped())
            self._ending = None  # the record is kept, for who asks what became of it

    async def stop_for_restart(self, reason: str, timeout_s: float) -> None:
        """Stop it in order, to be started again; its hand-off is kept."""
        if self.state is not State.READY:
            return
        # A start may be waiting for its turn, too: were we down before it is ours, that one would run beside us.
        async with self._turn:
            if self.state is State.READY:
                self.state = State.DOWN
                try:
                    await self._end(reason, timeout_s)
                finally:
                    self.tell(Died(self.incarnation, self.cause))

    def tell_restarting(self, attempt: int, delay_s: float) -> None:
        """It is down and going to be started again, unless it was stopped for good meanwhile."""
        assert self.state is not State.READY, f"{self.name!r} is up: a second incarnation would run beside it"
        if not self.has_ended:
            self.state = State.DOWN
            self.tell(Restarting(attempt, delay_s))

    def start_failed(self, cause: Cause) -> None:
        """A restart that was asked for did not succeed: its supervisor decides, as in a death."""
        self.cause = cause
        self._parent.child_died(self, clean=False)

    def give_up(self, cause: Cause) -> None:
        """It is dead and stays so."""
        if self.has_ended:
            return
        self.state = State.FAILED
        self.cause = cause
        if self._spares is not None:
            self._spares.drop()
        if self.child.restart.kind != "temporary":
            log.error("actor %r is given up: %s", self.name, cause.summary)
        self.tell(GaveUp(cause))

    def suspect(self, progress: int) -> None:
        """Verify a report that it is stalled in a handler, and act on it once."""
        host = self.host
        if self.state is not State.READY or not isinstance(host, ProcessHost) or progress == self._reported_progress:
            return
        handler = host.busy_since(progress)
        if handler is not None:
            self._reported_progress = progress
            self._stalled(host, f"handler {handler!r}")

    def _stalled(self, host: ProcessHost, where: str) -> None:
        """Say so, with its stacks, and kill it if its policy says that."""

        def report(stacks: str) -> None:
            if self.host is not host:
                return
            log.warning("actor %r is stalled in %s:\n%s", self.name, where, stacks)
            self.tell(Stalled(self.incarnation, where, stacks), is_state=False)
            if self.child.restart.on_stall == "kill":
                host.kill(f"it was stalled in {where}, and killed by its policy")

        host.dump_stacks(report)

    def tell(self, event: Event, *, is_state: bool = True) -> None:
        """Tell the watchers; an event that is a state is told to later watchers, too."""
        if is_state:
            self._last_event = event
        for tell in list(self._watchers):
            tell(event)

    async def _end(self, reason: str, timeout_s: float) -> None:
        self.cause = Cause(f"it was stopped: {reason}")
        host, self.host = self.host, None
        try:
            if host is not None:
                self.handoff = await host.stop(reason, timeout_s)  # it ends the calls that it has
        finally:
            self._root.route_down(self.child.actor_id, self.cause)

    def _make_host(self, incarnation: int) -> Host:
        child = self.child
        if isinstance(child.where, process):
            spare = self._spares.take() if self._spares is not None else None
            return spare or self._process_host(incarnation)
        if issubclass(child.spec.cls, Actor):
            return TaskHost(self._root, self._directory, child, incarnation, self._exit_of(incarnation))
        return ThreadHost(self._root, self._directory, child, incarnation)

    def _process_host(self, incarnation: int) -> ProcessHost:
        host = ProcessHost(self._root, self.child, incarnation, self._exit_of(incarnation))
        host.on_phase_stalled = lambda phase: self._stalled(host, f"phase {phase!r}")
        return host

    def _exit_of(self, incarnation: int) -> ExitCallback:
        def on_exit(cause: Cause, clean: bool) -> None:
            if self.incarnation == incarnation:
                self._on_exit(cause, clean)

        return on_exit

    def _on_exit(self, cause: Cause, clean: bool) -> None:
        if self.state in (State.STARTING, State.DOWN):
            self._early_exit = (cause, clean)
            return
        if self.state is not State.READY:
            return
        log.warning("actor %r died: %s", self.name, cause.summary)
        self.cause = cause
        self.host = None
        self.state = State.DOWN
        self._root.route_down(self.child.actor_id, cause)
        self.tell(Died(self.incarnation, cause))
        self._parent.child_died(self, clean)
