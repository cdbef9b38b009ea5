"""What outbox and inbox agree on for a message too large for its ring: record, frames, and sealed memory.

The record in the ring stands for the message and fixes its place in the order; a frame with the same number brings
its bytes, or a memfd of them that nobody can change or shrink any more.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import LinkError, RingCorrupt, SegmentError
from .link import MAX_FRAME_BYTES, Link

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .ring import RingWriter

OVERFLOW_FRAME: Final = 1  # the frame that brings a memfd; its id is the overflow's number
STREAM_FRAME: Final = 3  # the frame that brings the bytes themselves; the same id

# Up to here the bytes go over the links, above it in one memfd for all readers. Writer and readers together, in a
# 2-core virtual machine (Linux 6, Python 3.11), microseconds by link and by memfd: to one reader 18 and 62 for 64 KiB,
# 96 and 96 for 128 KiB, 231 and 166 for 256 KiB; to four readers 71 and 129, 113 and 186, 209 and 291. A larger one
# would not fit into the socket's buffer (208 KiB) either: the writer would have to come back for each reader.
STREAM_LIMIT_BYTES: Final = 128 * 1024

RECORD_BYTES: Final = 16
MAX_OVERFLOWS: Final = 32  # oversized messages that some attached reader has not consumed yet
MAX_OVERFLOW_BYTES: Final = 256 * 1024 * 1024  # together; a single larger one goes when no other is under way

_RECORD = struct.Struct("<QQ")  # overflow number, size in bytes
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAX_PARTS = 1024  # IOV_MAX of Linux


def pack_record(overflow_id: int, size_bytes: int) -> bytes:
    """The payload of an OVERFLOW record."""
    return _RECORD.pack(overflow_id, size_bytes)


def unpack_record(payload: bytes | memoryview) -> tuple[int, int]:
    """(overflow number, size in bytes) of an OVERFLOW record."""
    if len(payload) != RECORD_BYTES:
        raise RingCorrupt(f"an OVERFLOW record of {len(payload)} bytes: expected {RECORD_BYTES}")
    number, size_bytes = _RECORD.unpack(payload)
    return number, size_bytes


def write_sealed(parts: Sequence[Buffer]) -> int:
    """A sealed memfd that holds the parts one after another; the descriptor is the caller's.

    `SegmentError` if memory runs out.
    """
    views = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
    size_bytes = sum(view.nbytes for view in views)
    fd = -1
    try:
        fd = os.memfd_create("ringcast-overflow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        while views:
            written = os.writev(fd, views[:_MAX_PARTS])
            done = 0
            while done < len(views) and written >= views[done].nbytes:
                written -= views[done].nbytes
                done += 1
            del views[:done]
            if written:
                views[0] = views[0][written:]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise SegmentError(
            f"no memory for an oversized message of {size_bytes} bytes: {error}. "
            "Free memory, raise the container's memory limit or the limit of open files, or send less at once"
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


class OversizedPayload:
    """The bytes of one oversized message on their way to several links: one copy of them, whatever their number.

    Made before anything is sent, so that a lack of memory (`SegmentError`) leaves nothing behind. Close it in any case.
    """

    def __init__(self, parts: Sequence[Buffer], size_bytes: int, all_lag: bool, copy_fd: int = -1) -> None:
        """``copy_fd``: of sealed memory that holds the parts already; it stays the caller's."""
        self.sealed = copy_fd >= 0 or size_bytes > (MAX_FRAME_BYTES if all_lag else STREAM_LIMIT_BYTES)
        self._parts = parts
        self._size_bytes = size_bytes
        self._is_ours = copy_fd < 0
        self._fd = copy_fd if copy_fd >= 0 else write_sealed(parts) if self.sealed else -1
        self._data: bytes | None = None

    def send(self, number: int, links: Iterable[tuple[Link, bool]]) -> None:
        """Queue the frame on each link; with each goes whether its reader lags.

        A laggard gets the bytes themselves, as long as a frame can hold them: many descriptors on their way to a
        process that does not take them would use up ours; what is in sealed memory already stays there.
        `LinkError` names how many links could not take the frame; those are closed.
        """
        failures: list[OSError] = []
        for link, lags in links:
            try:
                if self.sealed and not (lags and self._is_ours and self._size_bytes <= MAX_FRAME_BYTES):
                    link.send(OVERFLOW_FRAME, number, fds=(self._fd,))
                    continue
                if self._data is None:
                    self._data = join(self._parts)
                link.send(STREAM_FRAME, number, self._data)
            except OSError as error:
                link.close()  # the reader would wait for ever: let it see the end instead
                failures.append(error)
        if failures:
            raise LinkError(
                f"an oversized message could not be handed to {len(failures)} of its readers, "
                f"whose links are closed now: {failures[0]}"
            ) from failures[0]

    def close(self) -> None:
        """Let go of the memory; the readers keep what they were sent."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._is_ours:
            os.close(fd)


class _UnderWay(NamedTuple):
    """An oversized message: consumed when every attached reader in ``mask`` has come to ``position``."""

    position: int
    mask: int
    size_bytes: int


class Credits:
    """How much oversized data may be under way to attached readers. Detached ones have their own account."""

    def __init__(self, ring: RingWriter) -> None:
        self._ring = ring
        self._under_way: list[_UnderWay] = []

    def grant(self, size_bytes: int) -> bool:
        """Whether one more message may go; if not, our own bell rings when one has been consumed."""
        while True:
            under_way = self._still_under_way()
            if not under_way:
                return True
            if len(under_way) < MAX_OVERFLOWS and _bytes_of(under_way) + size_bytes <= MAX_OVERFLOW_BYTES:
                return True
            if not self._ring.await_any([(o.position, o.mask) for o in under_way]):
                return False

    def take(self, position: int, mask: int, size_bytes: int) -> None:
        """A message was sent to the attached readers in ``mask``; its record ends at ``position``."""
        self._under_way.append(_UnderWay(position, mask, size_bytes))

    def holders(self) -> list[tuple[int, int]]:
        """(position, mask of the readers that have not come there) of each message under way."""
        return [(o.position, o.mask & self._ring.laggards(o.position)) for o in self._still_under_way()]

    def count_bytes(self) -> int:
        """Of all messages under way, now."""
        return _bytes_of(self._still_under_way())

    def _still_under_way(self) -> list[_UnderWay]:
        ring = self._ring
        self._under_way = [o for o in self._under_way if ring.min_cursor(o.mask) < o.position]
        return self._under_way


def _bytes_of(under_way: list[_UnderWay]) -> int:
    return sum(message.size_bytes for message in under_way)


def join(parts: Sequence[Buffer]) -> bytes:
    """The parts as one bytes object; the part itself if it is one already."""
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]
    return b"".join(parts)
