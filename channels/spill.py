"""What outbox and inbox agree on for a reader that the writer took out of the ring: its records travel over its link.

The protocol, and why nothing is lost, doubled or reordered by a switch, stands in docs/channels.md, section 4.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from . import _native
from ._native import Message
from .errors import LinkError
from .link import Link
from .overflow import unpack_record

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What becomes of a send that finds no space because this reader lags: it waits; or the reader is detached and spilled
# to; or it is refused with RingFull.
Policy = Literal["wait", "spill", "reject"]
POLICIES: Final[tuple[Policy, ...]] = ("wait", "spill", "reject")

SPILL_FRAME: Final = 2  # pieces of the stream of spilled records; id is the number of its first record
NOTICE_FRAME: Final = 4  # go on in the ring; behind every spilled record
SPILL_LIMIT_BYTES: Final = 256 * 1024 * 1024  # what a reader may have on its link; above that, sends to it are refused

_RECORD = struct.Struct("<IHBxQ")  # payload bytes, type, kind, sequence number
_NOTICE = struct.Struct("<QQ")  # position, sequence number


def weight(kind: int, payload: bytes | memoryview) -> int:
    """Bytes that a spilled record counts for; both ends count alike."""
    return len(payload) + (unpack_record(payload)[1] if kind == _native.OVERFLOW else 0)


class Spill:
    """The writer's account of one detached reader: what was put on its link and what it has taken.

    Lives from detach to attach. It pushes and counts; the outbox decides.
    """

    def __init__(self, ring: _native.RingWriter, slot: int, link: Link, limit_bytes: int) -> None:
        self._ring = ring
        self._slot = slot
        self._link = link
        self._limit_bytes = limit_bytes
        self.records, self.bytes = self._before = ring.taken(slot)  # ever spilled; all of it was taken by now
        self.since = time.monotonic()

    def push(self, kind: int, type: int, seq: int, payload: bytes | memoryview) -> None:
        """Put a record on the link, behind all others."""
        self._link.append(SPILL_FRAME, self.records, b"".join((_RECORD.pack(len(payload), type, kind, seq), payload)))
        self.records += 1
        self.bytes += weight(kind, payload)

    def depth(self) -> tuple[int, int]:
        """(bytes, records) that the reader has not taken yet."""
        records, size_bytes = self._ring.taken(self._slot)
        return self.bytes - size_bytes, self.records - records

    def has_room(self, size_bytes: int) -> bool:
        """Whether one more message may go on the link. One larger than the limit goes when all others were taken."""
        depth, records = self.depth()
        # A link that is closed keeps nothing: its reader has gone.
        return records == 0 or self._link.closed or depth + size_bytes <= self._limit_bytes

    @property
    def pushed_records(self) -> int:
        """How many records were put on the link since the reader was detached."""
        return self.records - self._before[0]

    @property
    def pushed_bytes(self) -> int:
        """The bytes of those."""
        return self.bytes - self._before[1]

    @property
    def taken(self) -> bool:
        """The reader has caught up."""
        return self._ring.taken(self._slot)[0] == self.records


def unpack_records(payload: Buffer) -> Iterator[Message]:
    """The records of a SPILL frame; `LinkError` if it makes no sense."""
    data = memoryview(payload)
    start = 0
    while start < len(data):
        if len(data) - start < _RECORD.size:
            raise LinkError("a frame of spilled records ends within a record's header")
        size, type, kind, seq = _RECORD.unpack_from(data, start)
        start += _RECORD.size
        if len(data) - start < size:
            raise LinkError(f"a spilled record of {size} bytes, of which {len(data) - start} have come")
        yield Message((type, bytes(data[start : start + size]), kind, seq))
        start += size


def pack_notice(position: int, seq: int) -> bytes:
    """The payload of a NOTICE frame."""
    return _NOTICE.pack(position, seq)


def unpack_notice(payload: bytes) -> tuple[int, int]:
    """(position, sequence number) at which the reader goes on in the ring."""
    if len(payload) != _NOTICE.size:
        raise LinkError(f"a notice of {len(payload)} bytes: expected {_NOTICE.size}")
    position, seq = _NOTICE.unpack(payload)
    return position, seq
