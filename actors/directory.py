"""Every actor of a system by its id: where it is, why it is down, who watches it.

Owned by `System`, filled by supervisors, asked by the root's node. It starts and stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import platform
from .context import Watch
from .errors import ActorError, Cause
from .events import Event, GaveUp
from .ref import NUMBER_BITS, Ref, number_of

if TYPE_CHECKING:
    from .record import Record


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor lives and what its callers must know of it."""

    name: str
    slot: int  # of its process
    capacity_bytes: int  # of its mailbox, for each process that sends to it
    stall_after_s: float | None  # busy in one handler for longer, it is to be reported


class Directory:
    """See the module. References are looked up here, so they survive restarts."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        # Ids are unique across systems: a call's chain of waiting actors may lead through several of them.
        self._last_actor_id = platform.current().random().randrange(1, 1 << 31) << NUMBER_BITS

    def enter(self, make: Callable[[int], Record]) -> Record:
        """Make and keep a record under a new id; `ActorError` if its name is taken by a living actor."""
        record = make(self._last_actor_id + 1)
        if any(other.name == record.name and not other.has_ended for other in self._records.values()):
            raise ActorError(f"there is an actor named {record.name!r} already: choose another name")
        self._last_actor_id += 1
        self._records[self._last_actor_id] = record
        return record

    def remove(self, record: Record) -> None:
        """Forget an actor that nobody has a reference to."""
        del self._records[record.child.actor_id]

    def record(self, ref: Ref) -> Record | None:
        """The actor behind a reference; None if it is not of this system."""
        return self._records.get(ref._actor_id)

    def records(self) -> list[Record]:
        """All of them, in the order in which they were first started."""
        return list(self._records.values())

    def locate(self, actor_id: int) -> Place | Cause:
        """Where an actor that is up lives, or why it is down."""
        record = self._records.get(actor_id)
        return _unknown(actor_id) if record is None else record.place()

    def subscribe(self, actor_id: int, tell: Callable[[Event], None]) -> Callable[[], None]:
        """Tell the actor's present state and every later event, until the returned function is called."""
        record = self._records.get(actor_id)
        if record is None:
            tell(GaveUp(_unknown(actor_id)))
            return lambda: None
        return record.subscribe(tell)

    def watch(self, ref: Ref) -> Watch:
        """The events of an actor, for a watcher in this process."""
        watch = Watch()
        watch.unsubscribe = self.subscribe(ref._actor_id, watch.put)
        return watch

    def suspect(self, actor_id: int, progress: int) -> None:
        """Somebody saw an actor busy in one handler for longer than it declares."""
        record = self._records.get(actor_id)
        if record is not None:
            record.suspect(progress)


def _unknown(actor_id: int) -> Cause:
    return Cause(f"there is no actor #{number_of(actor_id)} in this system")
