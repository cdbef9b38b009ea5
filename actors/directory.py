"""Every actor of a system by its id: where it is, why it is down, who watches it.

Owned by `System`, filled by supervisors, asked by the root's node. It starts and stops nothing. Of an actor that has
ended for good it keeps the last event only, for the last thousand of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from . import platform
from .context import Watch
from .errors import ActorError, Cause
from .events import Event, GaveUp, Stopped
from .ref import NUMBER_BITS, Ref, number_of

if TYPE_CHECKING:
    from .record import Record

KEPT_ENDS: Final = 1000


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
        self._by_name: dict[str, Record] = {}  # those that have not ended
        self._ends: dict[int, tuple[Event, Cause]] = {}  # the oldest first
        # Ids are unique across systems: a call's chain of waiting actors may lead through several of them.
        self._before_first = platform.current().random().randrange(1, 1 << 31) << NUMBER_BITS
        self._last_actor_id = self._before_first

    def enter(self, make: Callable[[int], Record]) -> Record:
        """Make and keep a record under a new id; `ActorError` if its name is taken by a living actor."""
        record = make(self._last_actor_id + 1)
        self.take_name(record)
        self._last_actor_id += 1
        self._records[self._last_actor_id] = record
        return record

    def take_name(self, record: Record) -> None:
        """From now on the name is this actor's; `ActorError` if it is a living actor's already."""
        if record.name in self._by_name:
            raise ActorError(f"there is an actor named {record.name!r} already: choose another name")
        self._by_name[record.name] = record

    def name_is_free(self, record: Record) -> None:
        """The actor has ended: another one may be called so."""
        if self._by_name.get(record.name) is record:
            del self._by_name[record.name]

    def forget(self, record: Record) -> None:
        """The actor has ended for good; what became of it is kept while it is one of the last thousand."""
        self.name_is_free(record)
        if self._records.pop(record.child.actor_id, None) is None:
            return
        if record.last_event is not None:
            self._ends[record.child.actor_id] = (record.last_event, record.cause)
        while len(self._ends) > KEPT_ENDS:
            del self._ends[next(iter(self._ends))]

    def record(self, ref: Ref) -> Record | None:
        """The actor behind a reference; None if it has ended for good, or is not of this system."""
        return self._records.get(ref._actor_id)

    def named(self, name: str) -> Record:
        """The actor of that name; `ActorError`, with the names that are like it, if none is alive."""
        if not isinstance(name, str):
            raise TypeError(f"an actor's name is a string, not {name!r}")
        record = self._by_name.get(name)
        if record is not None:
            return record
        from difflib import get_close_matches

        near = get_close_matches(name, self._by_name, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"{len(self._by_name)} others are"
        raise ActorError(f"no actor named {name!r} is alive in this system; {hint}")

    def locate(self, actor_id: int) -> Place | Cause:
        """Where an actor that is up lives, or why it is down."""
        record = self._records.get(actor_id)
        return self._end_of(actor_id)[1] if record is None else record.place()

    def end_of(self, ref: Ref) -> Cause:
        """Why an actor that has no record has none."""
        return self._end_of(ref._actor_id)[1]

    def subscribe(self, actor_id: int, tell: Callable[[Event], None]) -> Callable[[], None]:
        """Tell the actor's present state and every later event, until the returned function is called."""
        record = self._records.get(actor_id)
        if record is None:
            tell(self._end_of(actor_id)[0])
            return lambda: None
        return record.subscribe(tell)

    def last_event(self, actor_id: int) -> Event | None:
        """The event that reports the actor's present state."""
        record = self._records.get(actor_id)
        return self._end_of(actor_id)[0] if record is None else record.last_event

    def watch(self, ref: Ref) -> Watch:
        """The events of an actor, for a watcher in this process."""
        return watching(lambda tell: self.subscribe(ref._actor_id, tell))

    def suspect(self, actor_id: int, progress: int) -> None:
        """Somebody saw an actor busy in one handler for longer than it declares."""
        record = self._records.get(actor_id)
        if record is not None:
            record.suspect(progress)

    def _end_of(self, actor_id: int) -> tuple[Event, Cause]:
        """The last event of an actor that is not alive, and why calls to it fail."""
        end = self._ends.get(actor_id)
        if end is not None:
            return end
        if self._before_first < actor_id <= self._last_actor_id:
            return Stopped(), Cause(
                f"it has ended; why is no longer known, since {KEPT_ENDS} others have ended after it"
            )
        unknown = Cause(f"there is no actor #{number_of(actor_id)} in this system")
        return GaveUp(unknown), unknown


def watching(subscribe: Callable[[Callable[[Event], None]], Callable[[], None]]) -> Watch:
    """A watch of what ``subscribe`` tells."""
    watch = Watch()
    watch.unsubscribe = subscribe(watch.put)
    return watch
