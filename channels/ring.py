"""Writer and reader of a ring: the native ends, plus documented figures. The protocol stands in native/ring.h.

Made by outboxes and inboxes, or used alone. A ring end belongs to one thread: nothing here locks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import _native

DEFAULT_CAPACITY: Final = 2 * 1024 * 1024  # bytes of records; the segment has a header besides
ALL_READERS: Final = 2**64 - 1  # the mask that addresses every reader


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """What a writer did since it opened its ring."""

    records: int  # published, padding included
    bytes: int  # published, headers and padding included: the position
    full_waits: int  # times that sends began to wait for readers
    overflows: int  # oversized messages, sent over the links
    wakes_sent: int  # doorbells rung: one system call each
    wakes_suppressed: int  # doorbells that needed no ringing: the reader was awake
    evictions: int  # dead readers removed
    depth_bytes: int  # not yet consumed by the slowest attached reader, now
    depth_records: int  # the same in records, a moment old; padding and records of others included
    peak_bytes: int  # largest depth whenever the writer looked: once a lap, when full, and here
    peak_records: int  # the same in records
    detaches: int  # times that a lagging reader was taken out of the ring, its records spilling to its link


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """What a reader saw since it opened its end."""

    records: int  # delivered to this reader, out of the ring or from the link
    bytes: int  # payload bytes of those that came whole: oversized messages of the ring are not counted
    skipped: int  # records of other readers, and padding
    wakes_sent: int  # times that the writer waited for our space and had to be woken by system call
    spilled: int  # records that came over the link, while we were detached
    detaches: int  # times that the writer took us out of the ring for lagging


class RingWriter(_native.RingWriter):
    """The only writer of a ring; initialises a fresh segment of ``size_bytes(capacity)`` bytes.

    ``RingWriter(fd, own_bell, epoch=...)`` maps the segment (``fd`` stays the caller's). ``own_bell`` is rung when an
    eviction makes the space that a send waits for. Payloads go up to ``max_inline`` (an eighth of the capacity).
    `RingMismatch` if the segment already holds a ring, `ValueError` if its size fits no capacity.
    """

    __slots__ = ()

    def statistics(self) -> RingStatistics:
        """The figures of this moment."""
        return RingStatistics(*self.counters())


class RingReader(_native.RingReader):
    """One reader of a ring: ``RingReader(fd, slot, join_position, writer_bell, epoch)``.

    ``slot`` is what `RingWriter.admit` returned, ``join_position`` the writer's position then; ``writer_bell`` is
    rung when the writer waits for the space that we free. `RingMismatch` if any of it does not fit.
    """

    __slots__ = ()

    def statistics(self) -> ReaderStatistics:
        """The figures of this moment."""
        return ReaderStatistics(*self.counters())
