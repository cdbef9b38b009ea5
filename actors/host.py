"""Where an incarnation of an actor lives, as its supervisor sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import Cause
from .parcel import Parcel
from .placement import Restart, Spec, Where


@dataclass(frozen=True, slots=True)
class Child:
    """What a supervisor keeps of one actor for all its incarnations."""

    actor_id: int
    name: str
    spec: Spec[Any] | Parcel = field(repr=False)  # a parcel: of an actor that another process spawned
    where: Where
    restart: Restart

    @property
    def local_spec(self) -> Spec[Any]:
        """The spec of an actor that was spawned in this process."""
        assert not isinstance(self.spec, Parcel)
        return self.spec

    @property
    def stall_after_s(self) -> float | None:
        return self.spec.stall_after_s if isinstance(self.spec, Parcel) else self.spec.cls.stall_after_s

    @property
    def handlers(self) -> list[str]:
        """Their names, in the order of their numbers."""
        return self.spec.handlers if isinstance(self.spec, Parcel) else list(self.spec.cls.handlers())


class Host(Protocol):
    """One incarnation. Its owner is told of its end once, after `start` has returned, through a callback."""

    slot: int  # of the process that it lives in

    async def start(self, handoff: object) -> int:
        """Start the actor and wait until it is READY; its mailbox's bound in bytes. `StartFailed` otherwise.

        There is no time limit: a slow start is fine as long as the process lives. Cancelling ends it.
        """

    async def abandon(self) -> None:
        """A start that failed or was cancelled has ended: end what it left."""

    def begin_run(self) -> None:
        """Watchers were told READY: let the actor's ``run`` begin, which may ask its own actor."""

    async def stop(self, reason: str, timeout_s: float) -> object:
        """Stop in order; what has not ended after ``timeout_s`` seconds is killed. Its hand-off, when it is gone."""


# Tells the supervisor that an incarnation ended: (cause, whether it ended by itself with exit code 0).
ExitCallback = Callable[[Cause, bool], None]
