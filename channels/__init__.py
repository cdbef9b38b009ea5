"""Shared-memory channels between processes: rings, doorbells, links, large messages, and the codec.

Everything public is exported here; what a program does not use, it does not load. The layer waits where it is told to
and decides nothing; it imports no asyncio.
"""

import sys
from typing import TYPE_CHECKING

from ._native import Board, Doorbell, DoorbellStatistics, Message, RecordView, Reservation
from .codec import Codec, message
from .errors import (
    ChannelError,
    DecodeError,
    EncodeError,
    EndOfRing,
    LinkError,
    NameMismatch,
    NameRefused,
    NameTaken,
    NameUnknown,
    PeerDead,
    ReaderLimit,
    RingCorrupt,
    RingFull,
    RingMismatch,
    SegmentError,
)
from .watch import ORPHANED, end_with_parent, exit_with

# A free-threaded Python has switched the lock on for the import above, with a warning. It cannot if that was forbidden.
if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():
    raise ImportError(
        "ringcast needs the global interpreter lock, and this free-threaded Python was told to run without it "
        "(PYTHON_GIL=0 or -X gil=0). Leave that out: Python then enables the lock when ringcast is imported"
    )

if TYPE_CHECKING:
    from .blocking import Receiver, Sender
    from .cores import core_quota
    from .inbox import Inbox
    from .link import FIRST_OWNER_KIND, Frame, Link, LinkStatistics
    from .named import NamedReader, NamedWriter, create, open
    from .outbox import Outbox
    from .ring import ALL_READERS, DEFAULT_CAPACITY, RingReader, RingWriter
    from .segment import Segment, create_segment
    from .spill import Policy
    from .statistics import OutboxStatistics, ReaderLag, ReaderStatistics, RingStatistics, StallReport
else:
    _MODULES = {
        "blocking": ("Receiver", "Sender"),
        "cores": ("core_quota",),
        "inbox": ("Inbox",),
        "link": ("FIRST_OWNER_KIND", "Frame", "Link", "LinkStatistics"),
        "named": ("NamedReader", "NamedWriter", "create", "open"),
        "outbox": ("Outbox",),
        "ring": (
            "ALL_READERS",
            "DEFAULT_CAPACITY",
            "RingReader",
            "RingWriter",
        ),
        "segment": ("Segment", "create_segment"),
        "spill": ("Policy",),
        "statistics": ("OutboxStatistics", "ReaderLag", "ReaderStatistics", "RingStatistics", "StallReport"),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> object:
        """Load what is used for the first time."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        return value


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
    "NameMismatch",
    "NameRefused",
    "NameTaken",
    "NameUnknown",
    "NamedReader",
    "NamedWriter",
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
    "core_quota",
    "create",
    "create_segment",
    "end_with_parent",
    "exit_with",
    "message",
    "open",
]
