"""Shared-memory channels between processes: rings, doorbells, links, large messages, and the codec.

Everything public is exported here. The layer waits where it is told to and decides nothing; it imports no asyncio.
"""

from ._native import Board, Doorbell, DoorbellStatistics, Message, RecordView, Reservation
from .blocking import Receiver, Sender
from .codec import Codec, message
from .cores import available_cores
from .errors import (
    ChannelError,
    DecodeError,
    EncodeError,
    EndOfRing,
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
    "DoorbellStatistics",
    "EncodeError",
    "EndOfRing",
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
    "Receiver",
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
    "Sender",
    "StallReport",
    "available_cores",
    "create_segment",
    "exit_with",
    "message",
    "remove_stale_names",
]
