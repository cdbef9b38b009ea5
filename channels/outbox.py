"""One process's sending side of one lane: the ring, a link to each reader, and the ways around for slow readers.

Its owner sends, flushes once per batch, pumps the links and retries when the doorbell says that there is space. It
never blocks, and it knows nothing of actors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from . import _native
from .errors import LinkError, RingFull
from .large import LargeMessage
from .link import Link
from .overflow import RECORD_BYTES, Credits, OversizedPayload, join, pack_record
from .placed import PlacedRecord
from .ring import RingWriter
from .spill import NOTICE_FRAME, POLICIES, SPILL_LIMIT_BYTES, Policy, Spill, pack_notice

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .statistics import OutboxStatistics, ReaderLag, StallReport


class Outbox(_native.OutboxCore):
    """Sends to the readers of ``ring``, each also reached by a link."""

    def __new__(cls, ring: RingWriter) -> Outbox:
        return super().__new__(cls, ring)

    def __init__(self, ring: RingWriter) -> None:
        self._links: dict[int, Link] = {}
        self._policies: dict[int, Policy] = {}
        self._limits: dict[int, int] = {}
        self._spills: dict[int, Spill] = {}  # of the readers that are detached now, whose mask is _detached
        self._spilling = self._rejecting = 0  # masks of the readers with that policy
        self._credits = Credits(ring)
        self._next_overflow = 0
        self._streamed = self._sealed = self._attaches = self._refusals = 0
        self._spilled_records = self._spilled_bytes = 0  # of spills that have ended

    # Membership.

    def admit(
        self,
        bell: _native.Doorbell,
        link: Link,
        policy: Policy = "wait",
        spill_limit_bytes: int = SPILL_LIMIT_BYTES,
    ) -> int:
        """Admit a reader from the present position on; its slot, which is its bit in masks.

        ``policy`` says what becomes of sends when this reader holds the space that they need: they wait; or it is
        taken out of the ring and its records travel over its link (``spill``, up to ``spill_limit_bytes``, then
        refused); or they are refused (``reject``). `ReaderLimit` if all 64 slots are taken. The link stays the
        caller's.
        """
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}: it must be one of {', '.join(POLICIES)}")
        slot = self.ring.admit(bell)
        self._links[slot] = link
        self._limits[slot] = spill_limit_bytes
        self.set_policy(slot, policy)
        return slot

    def set_policy(self, slot: int, policy: Policy) -> None:
        """Change a reader's policy, for sends from now on."""
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}: it must be one of {', '.join(POLICIES)}")
        self._policies[slot] = policy
        self._spilling = _mask_of(self._policies, "spill")
        self._rejecting = _mask_of(self._policies, "reject")
        self._impatient = bool(self._spilling or self._rejecting)

    def evict(self, slot: int) -> None:
        """Forget a reader that is proven dead. Space that it held is free; our own bell rings if that was awaited."""
        self.ring.evict(slot)
        if slot in self._spills:
            self._end_spill(slot)
        del self._links[slot], self._limits[slot], self._policies[slot]
        self._spilling &= ~(1 << slot)
        self._rejecting &= ~(1 << slot)

    # Sending.

    def _try_send_around(self, payload: Buffer | Sequence[Buffer] | LargeMessage, mask: int, type: int = 0) -> bool:
        """`try_send` where the ring alone does not do: of parts, of what is oversized, past readers that lag."""
        if isinstance(payload, LargeMessage):
            if mask & self._detached:
                self._look_after_detached(mask, len(payload))
            payload.copy()
            return self._try_overflow((), len(payload), mask, type, payload.fileno())
        parts = payload if isinstance(payload, (list, tuple)) else (payload,)
        size_bytes = sum(memoryview(part).nbytes for part in parts)
        if mask & self._detached:
            self._look_after_detached(mask, size_bytes)
        if size_bytes > self.ring.max_inline:
            return self._try_overflow(parts, size_bytes, mask, type)
        if self._needs_ring(mask) and not self._put(lambda: self.ring.try_send_parts(parts, mask, type), size_bytes):
            return False
        if mask & self._detached:
            self._push(_native.DATA, type, join(parts), mask)
        return True

    def send_many(self, payloads: Sequence[Buffer], mask: int, type: int = 0) -> int:
        """Send several messages in order, as far as they go; how many went. Cheaper than one by one.

        The next one was refused as by `try_send`. Errors of the first are raised; those of a later one end the
        batch before it.
        """
        sent = 0
        while sent < len(payloads):
            if not mask & self._detached and memoryview(payloads[sent]).nbytes <= self.ring.max_inline:
                sent += self.ring.send_many(payloads[sent:] if sent else payloads, mask, type)
                if sent == len(payloads):
                    break
            try:
                if not self.try_send(payloads[sent], mask, type):
                    break
            except Exception:
                if sent == 0:
                    raise
                break  # the caller meets it when it goes on there
            sent += 1
        return sent

    def reserve(self, size: int, mask: int, type: int = 0) -> _native.Reservation | PlacedRecord | None:
        """Build a message of up to ``size`` bytes in place: ``with outbox.reserve(...) as place`` fills a memoryview.

        It is committed at the end of the block, or by ``commit(size)``, cancelled by an exception. None, or
        `RingFull`, as `try_send`; ``ValueError`` if ``size`` is above ``ring.max_inline``.
        """
        if mask & self._detached:
            self._look_after_detached(mask, size)
        made: _native.Reservation | None = None
        if self._needs_ring(mask):
            while (made := self.ring.reserve(size, mask, type)) is None:
                if not self._make_way(self.ring.required(size)):
                    return None
        if not mask & self._detached:
            return made
        return PlacedRecord(made, size, lambda data: self._push(_native.DATA, type, data, mask))

    def flush(self) -> int:
        """Ring whoever was addressed since the last flush and is not awake; the number of system calls made."""
        return self.ring.flush()

    def links_pending(self) -> list[Link]:
        """The links with bytes left to send: pump each when its socket is writable."""
        pending = [link for link in self._links.values() if link.pending]
        self.uses_links = bool(pending)
        return pending

    @property
    def wants_space(self) -> bool:
        """A send was refused and its retry has not been called for yet: pass the ring to arm and wait."""
        return self.ring.wants_space

    def holders(self, size_bytes: int) -> int:
        """Mask of the readers in the ring that hold the room which a message of that size would need now."""
        if size_bytes <= self.ring.max_inline:
            return self.ring.laggards(self.ring.required(size_bytes))
        held = self.ring.laggards(self.ring.required(RECORD_BYTES))
        for _, laggards in self._credits.holders():
            held |= laggards
        return held

    def close(self) -> None:
        """Tell the readers that nothing will follow. Links may still have to be pumped."""
        if self.ring.closed:
            return
        self.ring.close()
        self._push(_native.CLOSE, 0, b"", self._detached)

    # Figures.

    def lag(self, slot: int) -> ReaderLag:
        """How far a reader is behind, now."""
        from .statistics import ReaderLag

        depth_bytes, depth_records, age_s, bell_slot = self.ring.reader_lag(slot)
        spill = self._spills.get(slot)
        if spill is not None:
            depth_bytes, depth_records = spill.depth()
            age_s = time.monotonic() - spill.since
        mode: Literal["ring", "link"] = "ring" if spill is None else "link"
        return ReaderLag(slot, bell_slot, self._policies[slot], mode, depth_bytes, depth_records, age_s)

    def statistics(self) -> OutboxStatistics:
        """The figures of this moment."""
        from .statistics import OutboxStatistics

        return OutboxStatistics(
            *self.ring.counters(),
            streamed=self._streamed,
            sealed=self._sealed,
            under_way_bytes=self._credits.count_bytes(),
            spilled_records=self._spilled_records + sum(spill.pushed_records for spill in self._spills.values()),
            spilled_bytes=self._spilled_bytes + sum(spill.pushed_bytes for spill in self._spills.values()),
            attaches=self._attaches,
            refusals=self._refusals,
            readers=tuple(self.lag(slot) for slot in sorted(self._links)),
        )

    def stall(self, board: _native.Board | None = None) -> StallReport | None:
        """Whom our refused sends wait for; None if none waits. The board tells what that one is doing."""
        if not self.wants_space:
            return None
        lags = [self.lag(slot) for slot in _slots_of(self.ring.attached)]
        worst = max(lags, key=lambda lag: lag.depth_bytes, default=None)
        if worst is None or worst.depth_bytes == 0:
            return None
        from .statistics import StallReport, progress_of

        phase, progress = progress_of(board, worst.bell_slot)
        return StallReport(
            side="writer",
            reason="the ring, or the data under way beside it, is full",
            epoch=self.ring.epoch,
            slot=worst.slot,
            bell_slot=worst.bell_slot,
            lag_bytes=worst.depth_bytes,
            lag_records=worst.depth_records,
            age_s=worst.age_s,
            phase=phase,
            progress=progress,
        )

    # Oversized messages.

    def _try_overflow(self, parts: Sequence[Buffer], size_bytes: int, mask: int, type: int, copy_fd: int = -1) -> bool:
        ring = self.ring
        mask &= ring.readers
        if not mask:
            return True
        if mask & ring.attached:
            while not self._credits.grant(size_bytes):
                if not self._make_way_for_credit():
                    return False
            if not self._put(lambda: ring.make_room(RECORD_BYTES), RECORD_BYTES):
                return False
        number = self._next_overflow
        record = pack_record(number, size_bytes)
        payload = OversizedPayload(parts, size_bytes, all_lag=not mask & ring.attached, copy_fd=copy_fd)
        try:
            # The record goes first: its place in the ring is the message's place in the order.
            if mask & ring.attached:
                if not ring.try_send(record, mask, type, _native.OVERFLOW):
                    return False
                self._credits.take(ring.position, mask & ring.attached, size_bytes)
            self._push(_native.OVERFLOW, type, record, mask & self._detached)
            self._next_overflow += 1
            self._sealed += payload.sealed
            self._streamed += not payload.sealed
            self.uses_links = True
            payload.send(number, [(self._links[slot], slot in self._spills) for slot in _slots_of(mask)])
        finally:
            payload.close()
        return True

    # Readers that lag.

    def _needs_ring(self, mask: int) -> bool:
        """Whether a message is for the ring at all: one for detached readers alone must not wait for others."""
        return not mask & self._detached or bool(mask & self.ring.attached)

    def _put(self, attempt: Callable[[], bool], size: int) -> bool:
        """Try, and make way, until it is done (True) or has to wait for a reader (False)."""
        if attempt():
            return True
        while self._make_way(self.ring.required(size)):
            if attempt():
                self.ring.space_ready()  # we do not wait any more
                return True
        return False

    def _make_way(self, position: int) -> bool:
        """Take readers that have not come to the position out of the way, as far as their policies say so.

        True if a retry is worth while, False if it must wait; `RingFull` if one of them rejects.
        """
        return self._take_out(self.ring.laggards(position), position)

    def _make_way_for_credit(self) -> bool:
        return any([self._take_out(laggards, position) for position, laggards in self._credits.holders()])

    def _take_out(self, laggards: int, position: int) -> bool:
        if laggards & self._rejecting:
            raise self._refuse(laggards & self._rejecting, "its policy is reject")
        if laggards & ~self._spilling:
            return False
        for slot in _slots_of(laggards):
            records = self.ring.detach(slot, position)
            if records is None:
                continue  # it has a view open, or it has just moved on
            self.uses_links = True
            self._spills[slot] = Spill(self.ring, slot, self._links[slot], self._limits[slot])
            self._detached |= 1 << slot
            for record in records:
                self._spills[slot].push(record.kind, record.type, record.seq, record.payload)
        return not laggards & self.ring.laggards(position)

    def _look_after_detached(self, mask: int, size_bytes: int) -> None:
        """Attach those that have caught up; `RingFull` if the link of another has no room for the message."""
        full = 0
        for slot in _slots_of(mask & self._detached):
            spill = self._spills[slot]
            if spill.taken:
                self._attach(slot)
            elif not spill.has_room(size_bytes):
                full |= 1 << slot
        if full:
            raise self._refuse(full, "its link holds as much as it may")

    def _attach(self, slot: int) -> None:
        """Let a detached reader go on in the ring, and tell it behind everything that was spilled to it."""
        self._end_spill(slot)
        notice = pack_notice(*self.ring.attach(slot))
        self.uses_links = True
        try:
            self._links[slot].send(NOTICE_FRAME, 0, notice)
        except OSError as error:
            self._links[slot].close()  # it would wait for ever: let it see the end instead
            raise LinkError(f"reader slot {slot} could not be told to go on in the ring: {error}") from error
        self._attaches += 1

    def _push(self, kind: int, type: int, data: bytes, mask: int) -> None:
        """Put a record on the links of the detached readers in ``mask``."""
        for slot in _slots_of(mask & self._detached):
            self.uses_links = True
            self._spills[slot].push(kind, type, self.ring.seq, data)

    def _end_spill(self, slot: int) -> None:
        spill = self._spills.pop(slot)
        self._spilled_records += spill.pushed_records
        self._spilled_bytes += spill.pushed_bytes
        self._detached &= ~(1 << slot)

    def _refuse(self, mask: int, reason: str) -> RingFull:
        self._refusals += 1
        lag = max((self.lag(slot) for slot in _slots_of(mask)), key=lambda lag: lag.depth_bytes)
        return RingFull(
            f"reader slot {lag.slot} (board slot {lag.bell_slot}) refuses: it is {lag.depth_bytes} bytes and "
            f"{lag.depth_records} records behind, for {lag.age_s:.3f} s, and {reason}",
            slot=lag.slot,
            mask=mask,
            depth_bytes=lag.depth_bytes,
            depth_records=lag.depth_records,
            age_s=lag.age_s,
        )


def _slots_of(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


def _mask_of(policies: dict[int, Policy], policy: Policy) -> int:
    return sum(1 << slot for slot, other in policies.items() if other == policy)
