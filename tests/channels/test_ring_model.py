"""A ring, and an outbox with inboxes, against the simplest model there is: one list of messages per reader."""

from __future__ import annotations

import hypothesis.strategies as st
from channel_kit import EPOCH, WRITER_BELL, Bells, Ring
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringcast.channels import Inbox, Link, Outbox, RecordView, RingFull, RingReader
from ringcast.channels.overflow import STREAM_LIMIT_BYTES

CAPACITY = 1024
MAX_INLINE = CAPACITY // 8
SIZES = [0, 1, 31, 32, 33, 63, 64, 65, 96, 97, MAX_INLINE - 1, MAX_INLINE]
OVERSIZED = [MAX_INLINE + 1, CAPACITY, 3 * CAPACITY, STREAM_LIMIT_BYTES + 1]


class RingMachine(RuleBasedStateMachine):
    """Readers come, lag and go; nobody ever misses, doubles or swaps a record, and nobody sleeps on one."""

    def __init__(self) -> None:
        super().__init__()
        self.bells = Bells()
        self.ring = Ring(self.bells, CAPACITY, 0)
        self.outbox = Outbox(self.ring.writer)
        self.inboxes: dict[int, Inbox] = {}
        self.links: dict[int, Link] = {}
        self.expected: dict[int, list[tuple[int, bytes]]] = {}
        self.policies: dict[int, str] = {}
        self.views: dict[int, RecordView] = {}
        self.armed: set[int] = set()
        self.unflushed: set[int] = set()
        self.number = 0

    @precondition(lambda self: len(self.inboxes) < 4)
    @rule(policy=st.sampled_from(["wait", "spill", "spill", "reject"]), limit=st.sampled_from([3000, 1 << 26]))
    def admit(self, policy: str, limit: int) -> None:
        near, far = Link.pair()
        free = next(i for i in range(64) if i not in self.inboxes)
        writer = self.ring.writer
        slot = self.outbox.admit(self.bells[free], near, policy, limit)
        assert slot == free
        reader = RingReader(self.ring.segment.fd, slot, writer.position, self.bells[WRITER_BELL], EPOCH)
        self.inboxes[slot] = Inbox(reader, far)
        self.links[slot] = near
        self.expected[slot] = []
        self.policies[slot] = policy

    @precondition(lambda self: self.inboxes)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.inboxes)))
        self.end_view(slot)
        self.outbox.evict(slot)
        self.links.pop(slot).close()
        inbox = self.inboxes.pop(slot)
        inbox.close()
        inbox.link.close()
        del self.expected[slot]
        self.bells[slot].disarm()
        self.armed.discard(slot)
        self.unflushed.discard(slot)

    @rule(size=st.sampled_from(SIZES * 2 + OVERSIZED), mask=st.integers(0, 15), repeat=st.integers(1, 6))
    def send(self, size: int, mask: int, repeat: int) -> None:
        for _ in range(repeat):
            self.number += 1
            payload = (b"%d." % self.number * size)[:size]
            try:
                sent = self.outbox.try_send(payload, mask, self.number % 65536)
            except RingFull as refusal:
                assert refusal.depth_bytes > 0
                assert all(self.policies[slot] != "wait" for slot in self.inboxes if refusal.mask >> slot & 1)
                return
            if not sent:
                waited_for = [slot for slot in self.inboxes if self.policies[slot] == "wait" or slot in self.views]
                assert any(self.ring.writer.lag(slot) for slot in waited_for)
                assert self.outbox.wants_space
                return
            self.expect(mask, payload)

    def expect(self, mask: int, payload: bytes) -> None:
        for slot in self.inboxes:
            if mask >> slot & 1:
                self.expected[slot].append((self.number % 65536, payload))
                self.unflushed.add(slot)

    @rule(sizes=st.lists(st.sampled_from(SIZES + OVERSIZED[:1]), max_size=9), mask=st.integers(0, 15))
    def send_many(self, sizes: list[int], mask: int) -> None:
        self.number += 1
        payloads = [(b"%d.%d." % (self.number, i) * size)[:size] for i, size in enumerate(sizes)]
        try:
            sent = self.outbox.send_many(payloads, mask, self.number % 65536)
        except RingFull:
            return
        for payload in payloads[:sent]:
            self.expect(mask, payload)

    @rule(size=st.sampled_from(SIZES), used=st.integers(0, MAX_INLINE), mask=st.integers(0, 15), keep=st.booleans())
    def build(self, size: int, used: int, mask: int, keep: bool) -> None:
        try:
            reservation = self.outbox.reserve(size, mask, (self.number + 1) % 65536)
        except RingFull:
            return
        if reservation is None:
            return
        if not keep:
            reservation.cancel()
            return
        self.number += 1
        used = min(used, size)
        payload = (b"%d." % self.number * size)[:used]
        reservation.payload[:used] = payload
        reservation.commit(used)
        self.expect(mask, payload)

    @rule()
    def flush(self) -> None:
        calls = self.outbox.flush()
        assert calls <= len(self.armed)
        self.unflushed.clear()

    @precondition(lambda self: self.inboxes)
    @rule(data=st.data(), limit=st.integers(1, 8), read_link=st.booleans())
    def poll(self, data: st.DataObject, limit: int, read_link: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.inboxes)))
        self.take(slot, limit, read_link)

    @precondition(lambda self: self.inboxes)
    @rule(data=st.data())
    def begin_view(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.inboxes)))
        if slot in self.views or not self.expected[slot]:
            return
        view = self.inboxes[slot].view()
        if view is None:
            return
        assert (view.type, bytes(view.payload)) == self.expected[slot].pop(0)
        if isinstance(view, RecordView):
            self.views[slot] = view

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def finish_view(self, data: st.DataObject) -> None:
        self.end_view(data.draw(st.sampled_from(sorted(self.views))))

    def end_view(self, slot: int) -> None:
        if slot in self.views:
            self.views.pop(slot).release()

    def take(self, slot: int, limit: int, read_link: bool) -> None:
        self.end_view(slot)
        inbox = self.inboxes[slot]
        if slot in self.armed:
            self.bells[slot].disarm()
            self.armed.discard(slot)
        if read_link:
            self.links[slot].pump()
            assert inbox.control_frames() == []
        got = [(type_, bytes(payload)) for type_, payload in inbox.poll(limit)]
        expected = self.expected[slot][: len(got)]
        assert got == expected
        del self.expected[slot][: len(got)]

    @precondition(lambda self: self.inboxes)
    @rule(data=st.data())
    def sleep(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.inboxes)))
        self.end_view(slot)
        inbox = self.inboxes[slot]
        if self.bells[slot].arm([inbox.reader]):
            self.armed.add(slot)
            assert inbox.reader.blocked or inbox.reader.position == inbox.reader.head
        else:
            self.armed.discard(slot)

    @rule()
    def drain(self) -> None:
        for slot in self.inboxes:
            while self.expected[slot]:
                self.take(slot, 64, True)
            self.take(slot, 64, True)
        assert self.ring.writer.min_cursor() == self.ring.writer.position
        assert self.outbox.try_send(b"there is room again", 0)

    @invariant()
    def depth_stays_within_the_ring(self) -> None:
        writer = self.ring.writer
        assert writer.position - writer.min_cursor() <= CAPACITY

    @invariant()
    def nobody_sleeps_on_a_flushed_record(self) -> None:
        for slot in self.armed - self.unflushed:
            inbox = self.inboxes[slot]
            if self.expected[slot] and not inbox.reader.blocked:
                assert self.bells[slot].state == 0, f"reader {slot} sleeps on a record"

    def teardown(self) -> None:
        for slot in list(self.inboxes):
            self.end_view(slot)
            self.links.pop(slot).close()
            inbox = self.inboxes.pop(slot)
            inbox.close()
            inbox.link.close()
        self.ring.segment.close()
        self.bells.close()


RingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestRingAgainstModel = RingMachine.TestCase
