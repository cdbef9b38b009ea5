"""What the request side of the frontend needs of an engine, and what an engine tells it.

`engine.Engine` is the real one, over actors; tests have fakes. Requests know no actors, the engine knows no
texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from ringcast.scheduler.messages import AddRequest, EngineInfo, SchedulerStatistics, StepOutputs

from .errors import EngineDead

EngineState = Literal["starting", "ready", "stalled", "restarting", "dead"]


@dataclass(frozen=True, slots=True)
class Health:
    """``ready`` is the only state that takes requests for sure; ``detail`` says in one line what is going on.

    ``stalled``: a part is up, a request needs it, and it has made no progress for ``EngineArgs.stall_after`` seconds.
    """

    state: EngineState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RingFigures:
    """What went over the rings of all processes of an engine since it started."""

    messages: int
    overflows: int


@dataclass(frozen=True, slots=True)
class ActorFigures:
    """One actor of an engine: how it is, and what its process sent over its ring since it started."""

    name: str
    is_up: bool
    num_deaths: int  # since the engine started
    messages_sent: int = 0
    bytes_sent: int = 0
    overflows: int = 0  # messages too large for the ring
    full_waits: int = 0  # times that its ring was full
    mailbox_depth: int = 0  # messages that wait for it now
    stalled_s: float = 0.0  # for how long it has made no progress, if it is stalled
    has_answered: bool = True  # in time; else what its process sent, and its mailbox, are not known


class EngineSink(Protocol):
    """The receiver of an engine's news. Called on the engine's loop; must not block."""

    def on_outputs(self, outputs: StepOutputs) -> None:
        """A step's tokens."""

    def on_death(self, error: EngineDead) -> None:
        """The engine is dead for good: every request that was added is lost."""


class EngineClient(Protocol):
    """An engine. All methods belong to the loop that called ``start``."""

    async def start(self, sink: EngineSink) -> None:
        """Start, and return when ready. `EngineStartFailed` says why not."""

    async def wait_dead(self) -> str:
        """Return when it is dead for good, and why."""

    async def close(self) -> None:
        """Stop everything. Safe to call in any state, and twice."""

    def health(self) -> Health:
        """The truth, now."""

    def info(self) -> EngineInfo:
        """The limits that admission checks. `EngineNotReady` before the start and after the end, not in a restart."""

    async def add(self, requests: list[AddRequest]) -> None:
        """Hand requests over; their outputs come, through whatever restarts, until each has ended. Their ids are new.

        Waits while the engine restarts, but not for ever: then, and when it is dead for good, `EngineNotReady`.
        """

    def abort(self, request_ids: list[str]) -> None:
        """End requests; unknown ids are fine."""

    async def statistics(self) -> SchedulerStatistics:
        """The scheduler's accounts."""

    async def ring_figures(self) -> RingFigures:
        """What went over the rings."""

    async def actors(self) -> list[ActorFigures]:
        """Every actor, those that are down too. One that is busy for long is there without figures (`has_answered`)."""
