"""Shared-memory channels between processes: rings, doorbells, links, large messages, and the codec.

Everything public is exported here. The layer waits where it is told to and decides nothing; it imports no asyncio.
"""

from ._native import Board, Doorbell, Message, RecordView, Reservation
from .codec import Codec, message
from .errors import (
    ChannelError,
    DecodeError,
    EncodeError,
    LinkError,
    PeerDead,
    ReaderLimit,
    RingCorrupt,
    RingFull,
    RingMismatch,
    SegmentError,
)
from .inbox import Inbox
from .link import FIRST_OWNER_KIND, Frame, Link, LinkStatistics
from .outbox import Outbox
from .ring import ALL_READERS, DEFAULT_CAPACITY, ReaderStatistics, RingReader, RingStatistics, RingWriter
from .segment import Segment, create_segment, remove_stale_names
from .spill import Policy
from .statistics import OutboxStatistics, ReaderLag, StallReport
from .watch import ORPHANED, exit_with

__all__ = [
    "ALL_READERS",
    "DEFAULT_CAPACITY",
    "FIRST_OWNER_KIND",
    "ORPHANED",
    "Board",
    "ChannelError",
    "Codec",
    "DecodeError",
    "Doorbell",
    "EncodeError",
    "Frame",
    "Inbox",
    "Link",
    "LinkError",
    "LinkStatistics",
    "Message",
    "Outbox",
    "OutboxStatistics",
    "PeerDead",
    "Policy",
    "ReaderLag",
    "ReaderLimit",
    "ReaderStatistics",
    "RecordView",
    "Reservation",
    "RingCorrupt",
    "RingFull",
    "RingMismatch",
    "RingReader",
    "RingStatistics",
    "RingWriter",
    "Segment",
    "SegmentError",
    "StallReport",
    "create_segment",
    "exit_with",
    "message",
    "remove_stale_names",
]
