"""What a node counts, as `System.statistics` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast.channels.codec import message

from .mailbox_meter import MailboxStatistics

if TYPE_CHECKING:
    from .node import Node


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
