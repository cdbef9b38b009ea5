"""What a simulation raises. Each names its seed, and the end of its trace stands in the message."""

from __future__ import annotations


class SimulationFailed(AssertionError):
    """Base: the simulated program, or the runtime, did something wrong. The same seed does it again."""

    def __init__(self, what: str, seed: int, trace_tail: str) -> None:
        super().__init__(f"{what}\n(seed {seed})\n--- the end of the trace:\n{trace_tail}")
        self.what = what
        self.seed = seed


class Deadlock(SimulationFailed):
    """Nothing can happen any more, and the program has not ended."""


class InvariantViolated(SimulationFailed):
    """The runtime broke one of its promises."""


class Endless(SimulationFailed):
    """The program did not end within the simulation's limits."""


class NotSimulated(Exception):
    """The test's mistake: the simulated program waits for something outside of the simulation, or misuses it."""


class ProcessExit(BaseException):
    """Unwinds a simulated process that has ended. Not for users to catch."""
