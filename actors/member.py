"""What a supervisor supervises, an actor or a further supervisor: its state, its budget, its events.

`Record` and `Supervisor` derive from it. All events of a life are sent from here, so that one place decides on
their order: see `events`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum

from .errors import ActorError, Cause
from .events import Died, Event, GaveUp, Ready, Restarting, Stalled, Stopped
from .placement import Restart


class State(Enum):
    """Where a member is in its life."""

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

    def renew(self) -> None:
        """Forget what was spent."""
        self._deaths.clear()


class Member(ABC):
    """See the module. ``incarnation`` counts the starts from 1, ``cause`` says why it is down while it is."""

    def __init__(self, name: str, restart: Restart) -> None:
        self.name = name
        self.restart = restart
        self.state = State.STARTING
        self.incarnation = 0
        self.cause = Cause("it has not started")
        self.budget = Budget(restart.max_restarts, restart.within_s)
        self.last_event: Event | None = None  # the present state, which a new watcher gets first
        self._watchers: dict[int, Callable[[Event], None]] = {}
        self._last_watcher = 0
        self._num_died = 0  # the last incarnation of which watchers were told that it died

    @property
    def has_ended(self) -> bool:
        """It will not be started again, unless somebody revives it."""
        return self.state in (State.STOPPED, State.FAILED)

    @property
    def is_excused(self) -> bool:
        """Its last death does not count against it."""
        return False

    @abstractmethod
    async def start(self) -> None:
        """Start the next incarnation and wait until it is READY; `StartFailed` if it does not get there.

        Nothing to do if somebody else has started it meanwhile, or if it was stopped for good. A caller that is
        cancelled has ended what was started before the cancellation leaves.
        """

    @abstractmethod
    async def stop(self, reason: str, timeout_s: float) -> None:
        """Stop it for good, in order, and kill it at the deadline. It ends even if the caller does not wait for it."""

    @abstractmethod
    async def stop_for_restart(self, reason: str, timeout_s: float, plan: Restarting | None) -> None:
        """Stop it in order if it is up, to be started again; a caller that is cancelled waits for the end all the same.

        Watchers get ``plan``; without one they get `Died`.
        """

    # Events.

    def subscribe(self, tell: Callable[[Event], None]) -> Callable[[], None]:
        """Tell the present state and every later event, until the returned function is called."""
        self._last_watcher += 1
        number = self._last_watcher
        self._watchers[number] = tell
        if self.last_event is not None:
            tell(self.last_event)
        return lambda: void(self._watchers.pop(number, None))

    def announce(self, event: Restarting, *, again: bool = False) -> None:
        """It is down and will be started: report that, once for a start unless ``again`` is true."""
        assert self.state is not State.READY, f"{self.name!r} is up: a second incarnation would run beside it"
        if not self.has_ended and (again or not isinstance(self.last_event, Restarting)):
            self._tell(event)

    def give_up(self, cause: Cause) -> None:
        """It is dead and stays so."""
        if self.has_ended:
            return
        self._tell_died(self.cause)
        self.state = State.FAILED
        self.cause = cause
        self._tell(GaveUp(cause))

    def revive(self) -> None:
        """It was given up, and is to be started again with a fresh budget."""
        if self.state is not State.FAILED:
            raise ActorError(f"{self.name!r} cannot be revived: it is not given up, but {self.state.value}")
        self.state = State.DOWN
        self.budget.renew()
        self._tell(Restarting(0, 0.0, planned=True, reason="revived"))

    def _tell_ready(self) -> None:
        self.state = State.READY
        if self.incarnation > 1 and not isinstance(self.last_event, Restarting):
            self._tell(Restarting(0, 0.0, reason=self.cause.summary))
        self._tell(Ready(self.incarnation))

    def _tell_died(self, cause: Cause) -> None:
        """The incarnation is gone. Told once; also of one that was only stopped, before it is given up."""
        if self._num_died < self.incarnation:
            self._num_died = self.incarnation
            self._tell(Died(self.incarnation, cause))

    def _tell_stopped(self, reason: str) -> None:
        self._tell(Stopped(reason))
        self._watchers.clear()

    def _tell_stalled(self, event: Stalled) -> None:
        """No state: later watchers are not told."""
        for tell in list(self._watchers.values()):
            tell(event)

    def _tell(self, event: Event) -> None:
        self.last_event = event
        for tell in list(self._watchers.values()):
            tell(event)


def void(_: object) -> None:
    """A statement made of an expression."""
