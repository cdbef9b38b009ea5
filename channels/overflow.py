"""What outbox and inbox agree on for a message too large for its ring: record, frame, and sealed memory.

The record in the ring stands for the message and fixes its place in the order; a frame with the same number brings
its bytes as a memfd that nobody can change or shrink any more.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from .errors import RingCorrupt, SegmentError

if TYPE_CHECKING:
    from typing_extensions import Buffer

OVERFLOW_FRAME: Final = 1  # the kind of the frame that brings the memfd; its id is the overflow's number
RECORD_BYTES: Final = 16

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
