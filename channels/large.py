"""A message with large buffers on its way out: they are its sender's own memory until they have been copied, once.

Made by the codec, sent by the outbox, which hands the copy's descriptor to the readers. Whoever copies decides when,
and on which thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ._native import map_sealed
from .overflow import write_sealed

if TYPE_CHECKING:
    from typing_extensions import Buffer


COPIED_AT_ONCE_BYTES: Final = 4 << 20  # of one message: 1 to 2 ms; starting a thread and hearing of its end take 0.2


class LargeMessage:
    """What `Codec.encode_out` makes of a value too large for a ring; its length is its size in bytes.

    `copy` is called once, by any thread, and lets go of the sender's memory. The copy goes with the object.
    """

    __slots__ = ("_fd", "_parts", "_size_bytes")

    def __init__(self, parts: Sequence[Buffer], size_bytes: int) -> None:
        self._fd = -1
        self._parts = parts
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    @property
    def is_copied(self) -> bool:
        """Whether the sender may change its memory again."""
        return self._fd >= 0

    def copy_at_once(self) -> bool:
        """Copy what takes no longer than handing it to a thread; whether it is copied now."""
        if self._size_bytes <= COPIED_AT_ONCE_BYTES:
            self.copy()
        return self.is_copied

    def copy(self) -> None:
        """Copy the buffers into sealed memory. `SegmentError` if there is none; then this may be tried again."""
        if self._fd < 0:
            self._fd = write_sealed(self._parts)
            self._parts = ()

    def fileno(self) -> int:
        """The copy's descriptor, which stays this object's; -1 if there is none yet."""
        return self._fd

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def map_copy(fd: int, size_bytes: int) -> memoryview:
    """A message's copy where it arrives: `Codec.decode` makes arrays of it without another copy. Closes ``fd``."""
    try:
        return map_sealed(fd, size_bytes)
    finally:
        os.close(fd)
