"""The simulated machine: virtual time, the processes and threads that share it, and every choice between them.

Owned by a `Simulation`. One thing runs at a time; what runs next, when a descriptor is noticed and how long it takes
is drawn from the seed. It knows nothing of actors: `process` and `observer` do.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from .descriptors import Descriptors
from .errors import Deadlock, Endless, InvariantViolated
from .faults import Faults
from .ledger import Ledger
from .trace import START_S, Trace, TraceEvent

if TYPE_CHECKING:
    from .process import Process

PREEMPTION = 0.05  # how many steps do not happen because the process loses the processor for a while
STEP_S = 10e-6  # at most, of the virtual time that a step takes
QUIET_LIMIT_S = 2.0  # virtual: how long a world that never comes to rest is given for messages under way


class Strand(ABC):
    """Something of a process that takes one step at a time: an event loop or a thread."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @abstractmethod
    def is_runnable(self, now: float) -> bool:
        """Whether a step can be taken."""

    @abstractmethod
    def wake_at(self) -> float | None:
        """When a step can be taken by the passing of time alone; None: never."""

    @abstractmethod
    def step(self) -> None:
        """Take one: a callback, or until a thread waits for something."""

    @abstractmethod
    def unwind(self) -> None:
        """The simulation is over: end what is suspended."""


class World:
    """See the module. ``now`` is the virtual monotonic clock in seconds."""

    def __init__(self, seed: int, faults: Faults, max_steps: int, limit_s: float) -> None:
        self.seed = seed
        self.faults = faults
        self.random = random.Random(seed)
        self.cores = self.random.choice((1, 4, 64))  # of the machine: with enough of them nodes spin before they sleep
        self.now = START_S
        self.steps = 0
        self.kills = 0
        self.trace = Trace()
        self.ledger = Ledger(self)
        self.descriptors = Descriptors(self)
        self.processes: list[Process] = []  # all that ever were
        self.running: list[Process] = []
        self.current: Process | None = None
        self._max_steps = max_steps
        self._limit_s = limit_s
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    # For whoever is simulated.

    def note(self, process: Process | None, what: str) -> None:
        """Add to the trace."""
        label = "-" if process is None else process.label
        self.trace.append(TraceEvent(round(self.now - START_S, 9), label, what))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something of the machine's own, such as telling a parent of a death."""
        heapq.heappush(self._agenda, (self.now + delay_s, next(self._serial), action))

    def chance(self, probability: float) -> bool:
        """Whether a fault of that probability happens now."""
        return probability > 0.0 and self.random.random() < probability

    def latency_s(self) -> float:
        """How long it takes the machine to notice something: nothing, microseconds, rarely milliseconds."""
        kind = self.random.random()
        return 0.0 if kind < 0.3 else self.random.uniform(0, 50e-6 if kind < 0.9 else 2e-3)

    # Running.

    def run(self, until: Callable[[], bool]) -> None:
        """Let things happen until the condition holds; `Deadlock`, `Endless` or `InvariantViolated` otherwise."""
        while not until():
            if not self._advance():
                pending = self.ledger.open_calls() or ["no call is pending"]
                raise Deadlock(
                    "nothing can happen any more, but the program has not ended. Calls in flight:\n  "
                    + "\n  ".join(pending),
                    self.seed,
                    self.trace.tail(),
                )

    def come_to_rest(self) -> bool:
        """Let things happen until only timers are left, if that is soon; whether the world is at rest."""
        limit = self.now + QUIET_LIMIT_S
        while self.now < limit:
            if not self._agenda and not self._runnable() and not self.descriptors.is_anything_ready():
                return True
            if not self._advance():
                return True
        return False

    def check_rest(self) -> None:
        """Come to rest, and see that nothing was lost."""
        is_at_rest = self.come_to_rest()
        self.ledger.check_rest(is_at_rest=is_at_rest, patience_s=QUIET_LIMIT_S / 2)
        self._check()

    def check_end(self, app: Process) -> None:
        """The system has stopped: see that nothing is left."""
        self.ledger.check_end(app)
        self._check()

    def fail(self, what: str) -> InvariantViolated:
        """The error for a broken promise."""
        return InvariantViolated(what, self.seed, self.trace.tail())

    def _advance(self) -> bool:
        """One step, or the passing of time until one is possible; False if nothing will ever happen."""
        while self._agenda and self._agenda[0][0] <= self.now:
            heapq.heappop(self._agenda)[2]()
            self._check()
        self.descriptors.look()  # after whatever may have made one ready
        runnable = self._runnable()
        if runnable:
            self._step(self._choose(runnable))
            return True
        moments = [strand.wake_at() for process in self.running for strand in process.strands]
        moments.append(self.descriptors.next_notice())
        moments.append(self._agenda[0][0] if self._agenda else None)
        coming = min((at for at in moments if at is not None), default=float("inf"))
        if coming == float("inf"):
            return False
        self.now = max(self.now, coming)
        if self.now - START_S > self._limit_s:
            raise Endless(f"the program did not end within {self._limit_s} virtual s", self.seed, self.trace.tail())
        return True

    def _check(self) -> None:
        if self.ledger.violations:
            raise self.fail("\n".join(self.ledger.violations))

    def _runnable(self) -> list[Strand]:
        now = self.now
        return [
            strand
            for process in self.running
            if process.frozen_until <= now
            for strand in process.strands
            if strand.is_runnable(now)
        ]

    def _choose(self, runnable: list[Strand]) -> Strand:
        if len(runnable) == 1:
            return runnable[0]
        return self.random.choices(runnable, [strand.process.weight for strand in runnable])[0]

    def _step(self, strand: Strand) -> None:
        process = strand.process
        if self.random.random() < PREEMPTION:  # others get the processor
            process.pause(self.latency_s())
            return
        if process.is_child and self._strike(process):
            return
        self.steps += 1
        if self.steps > self._max_steps:
            raise Endless(f"the program did not end within {self._max_steps} steps", self.seed, self.trace.tail())
        self.current = process
        try:
            strand.step()
        finally:
            self.current = None
        self.now += STEP_S * self.random.random()
        process.close_if_ended()
        self._check()

    def _strike(self, process: Process) -> bool:
        """Inject what happens to a process as a whole; whether it loses its step."""
        faults = self.faults
        if self.kills < faults.max_kills and self.chance(faults.kill):
            self.kills += 1
            process.kill()
            return True
        if self.chance(faults.slow_reader):
            process.freeze(self.random.uniform(0, faults.delay_s))
            return True
        return False

    def release(self) -> None:
        """The simulation is over. What still unwinds has nobody to tell: its log goes nowhere."""
        level = logging.root.manager.disable
        logging.disable()
        try:
            self._release()
        finally:
            logging.disable(level)

    def _release(self) -> None:
        for process in list(self.running):
            process.exit_code = 0
            process.close()
        self.running.clear()
        self._agenda.clear()
        for process in self.processes:
            process.release()
