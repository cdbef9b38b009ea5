"""Figures and reports of a lane: what its ends did, how far its readers are behind, and who waits for whom.

Ring, outbox and inbox load this module and fill them in when they are asked; nothing here looks at a ring by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ._native import Board
    from .spill import Policy


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


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """How far one reader is behind its writer."""

    slot: int  # its bit in masks
    bell_slot: int  # its process's place on the board
    policy: Policy
    mode: Literal["ring", "link"]  # where its next record comes from: "link" while it is detached
    depth_bytes: int  # not consumed: of the ring everything behind its cursor, of the link what was put there for it
    depth_records: int  # the same in records; in the ring padding and records of others count
    age_s: float  # how long it was seen to stand at its cursor, or has been detached; 0 if it keeps up


@dataclass(frozen=True, slots=True)
class OutboxStatistics(RingStatistics):
    """What an outbox did since it was made, and where its readers are: the ring's figures, and these."""

    streamed: int  # oversized messages whose bytes went over the links
    sealed: int  # oversized messages that went in a memfd
    under_way_bytes: int  # of oversized messages that some attached reader has not consumed, now
    spilled_records: int  # put on the links of detached readers
    spilled_bytes: int  # payloads of those, oversized messages included
    attaches: int  # times that a detached reader had caught up and went on in the ring
    refusals: int  # times that RingFull was raised
    readers: tuple[ReaderLag, ...]

    @property
    def laggard(self) -> ReaderLag | None:
        """The reader that is behind by most bytes; None without readers."""
        return max(self.readers, key=lambda reader: reader.depth_bytes, default=None)


@dataclass(frozen=True, slots=True)
class StallReport:
    """Who waits for whom, and how far behind the reader is. ``str()`` is one line for a log."""

    side: Literal["writer", "reader"]  # the one that waits
    reason: str
    epoch: int  # of the ring
    slot: int  # of the reader
    bell_slot: int  # of the one that is waited for, on the board; -1 if it has none
    lag_bytes: int  # not consumed by the reader
    lag_records: int
    age_s: float  # how long, at least
    phase: int | None  # what the one that is waited for is doing, by its word on the board; None without a board
    progress: int | None  # how often it has said so: the same number later means that it stands still

    def __str__(self) -> str:
        doing = "phase unknown" if self.phase is None else f"phase {self.phase}, progress {self.progress}"
        return (
            f"the {self.side} of the ring of epoch {self.epoch} has waited {self.age_s:.3f} s: {self.reason}; "
            f"reader slot {self.slot} is {self.lag_bytes} bytes and {self.lag_records} records behind; "
            f"board slot {self.bell_slot} is in {doing}"
        )


def progress_of(board: Board | None, bell_slot: int) -> tuple[int | None, int | None]:
    """(phase, progress) of a process, for a report."""
    if board is None or not 0 <= bell_slot < board.slots:
        return None, None
    progress, phase = board.progress(bell_slot)
    return phase, progress
