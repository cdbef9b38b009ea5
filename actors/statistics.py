"""What a node and its mailboxes count, as `System.statistics` returns it. A child loads it when it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.channels.codec import message

if TYPE_CHECKING:
    from .node import Node


@message(25)
@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """Figures of one actor's mailbox since the actor started. Times in seconds unless said otherwise."""

    depth: int  # messages that wait now
    peak_depth: int
    oldest_age_s: float  # how long the first of them has waited; 0 if none waits
    handled: int  # messages whose handler ended, whatever way
    failed: int  # of those, whose handler raised
    expired: int  # calls found too late when it was their turn; those that their caller gave up before have left
    queue_time_s: float  # the sum over all messages taken
    handling_time_s: float  # the sum over all messages handled
    queue_time_histogram: list[int]  # by powers of two of a microsecond, see mailbox_meter.BUCKETS
    handling_time_histogram: list[int]


@message(23)
@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """Figures of one process since it started."""

    messages_sent: int  # records in its ring
    bytes_sent: int  # their payloads, overflowing ones included
    overflows: int  # messages too large for the ring
    full_waits: int  # times that the ring was full
    wakes_sent: int  # doorbells that cost a system call
    wakes_suppressed: int  # doorbells that cost none: the reader was awake
    late_replies: int  # replies that came after their call had ended
    dropped_casts: int  # casts whose actor was gone when they could have left
    undecodable: int  # messages that no registered type fits
    mailboxes: dict[str, MailboxStatistics]  # of the actors that live there, by their names


def node_statistics(node: Node) -> NodeStatistics:
    """The node's figures now."""
    ring = node.outbox.statistics()
    return NodeStatistics(
        messages_sent=ring.records,
        bytes_sent=ring.bytes,
        overflows=ring.overflows,
        full_waits=ring.full_waits,
        wakes_sent=ring.wakes_sent,
        wakes_suppressed=ring.wakes_suppressed,
        late_replies=node.counters.late_replies,
        dropped_casts=node.counters.dropped_casts,
        undecodable=node.counters.undecodable,
        mailboxes={cell.name: cell.meter.statistics(cell.queue) for cell in node.cells.values()},
    )
