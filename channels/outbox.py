"""One process's sending side of one lane: the ring, a link to each reader, and the way around for large messages.

Its owner sends, flushes once per batch, pumps the links and retries when the doorbell says that there is space. It
never blocks, and it knows nothing of actors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from . import _native
from .errors import LinkError
from .link import Link
from .overflow import OVERFLOW_FRAME, RECORD_BYTES, pack_record, write_sealed
from .ring import RingStatistics, RingWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_OVERFLOWS: Final = 32  # oversized messages that some reader has not consumed yet
MAX_OVERFLOW_BYTES: Final = 256 * 1024 * 1024  # together; a single larger one goes when no other is under way


@dataclass(frozen=True, slots=True)
class _Overflow:
    """An oversized message under way: consumed when every reader in ``mask`` has come to ``position``."""

    position: int
    mask: int
    size_bytes: int


class Outbox:
    """Sends to the readers of ``ring``, each also reached by a link."""

    def __init__(self, ring: RingWriter) -> None:
        self.ring = ring
        self._max_inline = ring.max_inline
        self._links: dict[int, Link] = {}
        self._under_way: list[_Overflow] = []
        self._next_overflow = 0

    def admit(self, bell: _native.Doorbell, link: Link) -> int:
        """Admit a reader from the present position on; its slot, which is its bit in masks.

        `ReaderLimit` if all 64 slots are taken. The link stays the caller's.
        """
        slot = self.ring.admit(bell)
        self._links[slot] = link
        return slot

    def evict(self, slot: int) -> None:
        """Forget a reader that is proven dead. Space that it held is free; our own bell rings if that was awaited."""
        self.ring.evict(slot)
        del self._links[slot]

    def try_send(self, payload: Buffer | Sequence[Buffer], mask: int, type: int = 0) -> bool:
        """Send one message (several buffers are joined) to the readers in ``mask``; `flush` rings them later.

        False if the ring is full or too much oversized data is under way: our own bell rings when a retry is
        worth while. `SegmentError` if an oversized message finds no memory: nothing was sent then.
        """
        if isinstance(payload, bytes):
            if len(payload) <= self._max_inline:
                return self.ring.try_send(payload, mask, type)
            return self._try_overflow((payload,), len(payload), mask, type)
        if isinstance(payload, (list, tuple)):
            parts: Sequence[Buffer] = payload
        else:
            parts = (payload,)  # type: ignore[assignment]
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        if size_bytes <= self._max_inline:
            return self.ring.try_send_parts(parts, mask, type)
        return self._try_overflow(parts, size_bytes, mask, type)

    def flush(self) -> int:
        """Ring whoever was addressed since the last flush and is not awake; the number of system calls made."""
        return self.ring.flush()

    def links_pending(self) -> list[Link]:
        """The links with bytes left to send: pump each when its socket is writable."""
        return [link for link in self._links.values() if link.pending]

    @property
    def wants_space(self) -> bool:
        """A send was refused and its retry has not been called for yet: pass the ring to arm and wait."""
        return self.ring.wants_space

    def statistics(self) -> RingStatistics:
        """The figures of the ring."""
        return self.ring.statistics()

    def close(self) -> None:
        """Tell the readers that nothing will follow."""
        self.ring.close()

    def _try_overflow(self, parts: Sequence[Buffer], size_bytes: int, mask: int, type: int) -> bool:
        ring = self.ring
        mask &= ring.readers
        if not mask:
            return True
        if not self._has_credit(size_bytes) or not ring.make_room(RECORD_BYTES):
            return False
        number = self._next_overflow
        fd = write_sealed(parts)
        try:
            # The record goes first: its place in the ring is the message's place in the order.
            if not ring.try_send(pack_record(number, size_bytes), mask, type, _native.OVERFLOW):
                return False
            self._next_overflow += 1
            self._under_way.append(_Overflow(ring.position, mask, size_bytes))
            self._send_frames(number, fd, mask)
        finally:
            os.close(fd)
        return True

    def _send_frames(self, number: int, fd: int, mask: int) -> None:
        failures: list[OSError] = []
        for slot, link in self._links.items():
            if not mask >> slot & 1:
                continue
            try:
                link.send(OVERFLOW_FRAME, number, fds=(fd,))
            except OSError as error:
                link.close()  # the reader would wait for ever: let it see the end instead
                failures.append(error)
        if failures:
            raise LinkError(
                f"an oversized message could not be handed to {len(failures)} of its readers, "
                f"whose links are closed now: {failures[0]}"
            ) from failures[0]

    def _has_credit(self, size_bytes: int) -> bool:
        """Whether one more oversized message may be under way; if not, our bell rings when one has been consumed."""
        ring = self.ring
        while True:
            under_way = [o for o in self._under_way if ring.min_cursor(o.mask) < o.position]
            self._under_way = under_way
            total = sum(o.size_bytes for o in under_way) + size_bytes
            if not under_way or (len(under_way) < MAX_OVERFLOWS and total <= MAX_OVERFLOW_BYTES):
                return True
            if not ring.await_any([(o.position, o.mask) for o in under_way]):
                return False
