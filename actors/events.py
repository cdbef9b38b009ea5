"""The events that a watcher of an actor or of a supervisor gets, in order, from `System.watch` or `Context.watch`.

The order is the same for both: ``Ready`` opens an incarnation; ``Died``, or ``Restarting(planned=True)``, closes it.
``Restarting`` comes before every ``Ready`` but the first, ``Died`` before every ``GaveUp``. docs/supervision.md has the
sequence for every kind of death.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ringcast.channels.codec import message

from .errors import Cause


@message(17)
@dataclass(frozen=True, slots=True)
class Ready:
    """The actor serves calls; all members of the supervisor are up.

    ``incarnation`` counts its starts from 1.
    """

    incarnation: int


@message(18)
@dataclass(frozen=True, slots=True)
class Died:
    """The actor is gone and calls in flight have failed; or it did not become READY when it was started again.

    ``incarnation`` is the one that is gone, ``cause`` why. Of a supervisor: it failed, and its members are down.
    """

    incarnation: int
    cause: Cause


@message(19)
@dataclass(frozen=True, slots=True)
class Restarting:
    """It will be started again.

    ``attempt`` counts its deaths within the period of its policy; in a planned restart it is that of the member whose
    death the restart is for, 0 if there is none. ``delay_s`` is how long the supervisor waits before it starts it.
    ``planned``: its incarnation has not died, but was stopped in order for this restart (`System.restart`, or a member
    that died in a group that is restarted together), and there is no `Died`; but calls in flight have failed.
    ``reason`` is one line that says why it is restarted.
    """

    attempt: int
    delay_s: float
    planned: bool = False
    reason: str = ""


@message(20)
@dataclass(frozen=True, slots=True)
class GaveUp:
    """It will not be started again: its policy forbids it, or it died too often. The last event.

    ``cause`` is the last death's, with the reason why there is no restart. `System.revive` can bring it back.
    """

    cause: Cause


@message(24)
@dataclass(frozen=True, slots=True)
class Stalled:
    """The actor has been busy in one handler for longer than it declares (``stall_after_s``). It is not dead.

    ``incarnation`` is the one that is stalled, ``where`` in what: "handler 'step'", "phase 'load weights'".
    ``stacks`` are its threads' stacks, or why there are none. What follows is its policy's decision.
    """

    incarnation: int
    where: str
    stacks: str


@message(21)
@dataclass(frozen=True, slots=True)
class Stopped:
    """It was stopped for good, on purpose. The last event.

    ``reason`` is what the stop was given; it is not compared.
    """

    reason: str = field(default="", compare=False)


Event = Ready | Died | Restarting | Stalled | GaveUp | Stopped
