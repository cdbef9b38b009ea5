"""Writer and reader of a ring: the native ends. The protocol stands in native/ring.h.

Made by outboxes and inboxes, or used alone. A ring end belongs to one thread: nothing here locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import _native

if TYPE_CHECKING:
    from .statistics import ReaderStatistics, RingStatistics

DEFAULT_CAPACITY: Final = 2 * 1024 * 1024  # bytes of records; the segment has a header besides
ALL_READERS: Final = 2**64 - 1  # the mask that addresses every reader


class RingWriter(_native.RingWriter):
    """The only writer of a ring; initialises a fresh segment of ``size_bytes(capacity)`` bytes.

    ``RingWriter(fd, own_bell, epoch=...)`` maps the segment (``fd`` stays the caller's). ``own_bell`` is rung when an
    eviction makes the space that a send waits for. Payloads go up to ``max_inline`` (an eighth of the capacity).
    `RingMismatch` if the segment already holds a ring, `ValueError` if its size fits no capacity.
    """

    __slots__ = ()

    def statistics(self) -> RingStatistics:
        """The figures of this moment."""
        from .statistics import RingStatistics

        return RingStatistics(*self.counters())


class RingReader(_native.RingReader):
    """One reader of a ring: ``RingReader(fd, slot, join_position, writer_bell, epoch)``.

    ``slot`` is what `RingWriter.admit` returned, ``join_position`` the writer's position then; ``writer_bell`` is
    rung when the writer waits for the space that we free. `RingMismatch` if any of it does not fit.
    """

    __slots__ = ()

    def statistics(self) -> ReaderStatistics:
        """The figures of this moment."""
        from .statistics import ReaderStatistics

        return ReaderStatistics(*self.counters())
