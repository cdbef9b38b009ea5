"""What a watcher of an actor is told, in order. `System.watch` and `Context.watch` yield these."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast.channels.codec import message

from .errors import Cause


@message(17)
@dataclass(frozen=True, slots=True)
class Ready:
    """The actor serves calls. ``incarnation`` counts its starts from 1."""

    incarnation: int


@message(18)
@dataclass(frozen=True, slots=True)
class Died:
    """The actor is gone; calls in flight have failed."""

    incarnation: int
    cause: Cause


@message(19)
@dataclass(frozen=True, slots=True)
class Restarting:
    """The supervisor will start it again after ``delay_s`` seconds. ``attempt`` counts within the period."""

    attempt: int
    delay_s: float


@message(20)
@dataclass(frozen=True, slots=True)
class GaveUp:
    """It will not be started again: its policy forbids it, or it died too often. The last event."""

    cause: Cause


@message(24)
@dataclass(frozen=True, slots=True)
class Stalled:
    """The actor has been busy in one handler for longer than it declares (``stall_after_s``). It is not dead.

    ``stacks`` are its threads' stacks, or why there are none. What follows is its policy's decision.
    """

    incarnation: int
    where: str  # "handler 'step'", "phase 'load weights'"
    stacks: str


@message(21)
@dataclass(frozen=True, slots=True)
class Stopped:
    """It was stopped on purpose. The last event."""


Event = Ready | Died | Restarting | Stalled | GaveUp | Stopped
