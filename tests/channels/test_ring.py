"""Promises of one ring: order, masks, boundaries, back-pressure, membership, damage."""

from __future__ import annotations

import os
import struct

import pytest
from channel_kit import WRITER_BELL

from ringcast.channels import (
    ALL_READERS,
    Inbox,
    Outbox,
    ReaderLimit,
    RingCorrupt,
    RingMismatch,
    RingReader,
    RingWriter,
    _native,
    create_segment,
)

RECORD, HEADER = _native.RECORD_BYTES, _native.HEADER_BYTES


def payloads(messages):
    return [bytes(m.payload) for m in messages]


def test_records_arrive_in_order_with_type_and_payload(ring):
    r = ring()
    for i in range(5):
        assert r.writer.try_send(b"message %d" % i, 1, type=100 + i)
    assert [tuple(m) for m in r.readers[0].poll()] == [(100 + i, b"message %d" % i) for i in range(5)]
    assert r.readers[0].poll() == []


def test_an_outbox_takes_its_ring_by_name_and_nothing_else(ring):
    r = ring()
    assert Outbox(ring=r.writer).ring is r.writer
    with pytest.raises(TypeError, match="made of a RingWriter"):
        Outbox(r.readers[0])
    with pytest.raises(TypeError, match="made of a RingReader"):
        Inbox(r.writer, None)


def test_message_unpacks_as_type_and_payload_and_names_kind_and_seq(ring):
    r = ring()
    r.writer.try_send(b"x", 1, 3)
    r.writer.try_send(b"y", 1, 4)
    first, second = r.readers[0].poll()
    type_, payload = second
    assert (type_, payload, second.type, second.payload) == (4, b"y", 4, b"y")
    assert (first.seq, second.seq, first.kind) == (0, 1, _native.DATA)


def test_each_reader_sees_only_records_addressed_to_it_in_the_writers_order(ring):
    r = ring(readers=3)
    masks = [0b001, 0b010, 0b111, 0b101, 0b110, 0b000, 0b011]
    for i, mask in enumerate(masks):
        assert r.writer.try_send(bytes([i]), mask)
    for slot, reader in enumerate(r.readers):
        assert payloads(reader.poll()) == [bytes([i]) for i, mask in enumerate(masks) if mask >> slot & 1]
    assert r.readers[0].statistics().skipped == 3


def test_poll_returns_at_most_max_records_and_goes_on_there(ring):
    r = ring()
    for i in range(10):
        r.writer.try_send(bytes([i]), 1)
    assert payloads(r.readers[0].poll(4)) == [bytes([i]) for i in range(4)]
    assert payloads(r.readers[0].poll(max_records=100)) == [bytes([i]) for i in range(4, 10)]


@pytest.mark.parametrize("capacity", [1024, 4096, 65536])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, "max_inline - 1", "max_inline"])
def test_every_size_wraps_at_every_offset(ring, capacity, size):
    r = ring(capacity)
    if isinstance(size, str):
        size = r.writer.max_inline - (1 if "1" in size else 0)
    sent = 0
    for shift in (0, 1, 33, 65):  # moves the wrap by other record sizes in between
        for lap in range(2 * capacity // (size + RECORD) + 2):
            data = bytes((lap + i) & 0xFF for i in range(size))
            assert r.writer.try_send(data, 1)
            assert payloads(r.readers[0].poll()) == [data]
            sent += 1
        assert r.writer.try_send(b"\xee" * min(shift, r.writer.max_inline), 1)
        assert len(r.readers[0].poll()) == 1
    assert r.writer.position > capacity
    assert r.writer.position == r.readers[0].position


def test_payload_larger_than_max_inline_is_refused_with_its_size(ring):
    r = ring(4096)
    assert r.writer.max_inline == 512
    for size in (513, 4096, 100_000):
        with pytest.raises(ValueError, match=rf"{size} bytes.*max_inline, 512"):
            r.writer.try_send(bytes(size), 1)
    assert r.writer.position == 0


def test_parts_are_joined_in_order(ring):
    r = ring()
    parts = [b"head", bytearray(b"-body-"), memoryview(b"xtailx")[1:5], b""]
    assert r.writer.try_send_parts(parts, 1, type=9)
    assert r.writer.try_send_parts([b"%d," % i for i in range(50)], 1)
    assert r.writer.try_send_parts([], 1)
    messages = r.readers[0].poll()
    assert payloads(messages) == [b"head-body-tail", b"".join(b"%d," % i for i in range(50)), b""]
    assert messages[0].type == 9
    with pytest.raises(ValueError, match="max_inline"):
        r.writer.try_send_parts([bytes(300), bytes(300)], 1)
    with pytest.raises(TypeError):
        r.writer.try_send_parts([b"good", "text"], 1)


def test_full_ring_refuses_and_takes_again_after_the_reader_has_read(ring):
    r = ring(1024)
    sent = 0
    while r.writer.try_send(bytes([sent]), 1):
        sent += 1
    assert sent == 1024 // 64
    assert r.writer.wants_space and not r.writer.space_ready()
    assert r.writer.statistics().full_waits == 1
    assert payloads(r.readers[0].poll()) == [bytes([i]) for i in range(sent)]
    assert r.writer.space_ready() and not r.writer.wants_space
    assert r.writer.try_send(b"more", 1)
    assert payloads(r.readers[0].poll()) == [b"more"]


def test_space_comes_with_hysteresis_not_with_every_record(ring):
    r = ring(1024)
    while r.writer.try_send(b"", 1):
        pass
    r.readers[0].poll(2)
    assert not r.writer.space_ready()
    r.readers[0].poll(3)  # a quarter of the ring is free now, and the refused record fits besides
    assert r.writer.space_ready()


def test_reader_that_frees_the_awaited_space_rings_the_writer(ring, bells):
    r = ring(1024)
    while r.writer.try_send(b"", 1):
        pass
    bell = bells[WRITER_BELL]
    assert bell.arm([], [r.writer])
    r.readers[0].poll(2)
    assert bell.state == _native.ARMED
    r.readers[0].poll(3)
    assert bell.state == _native.AWAKE
    assert os.eventfd_read(bell.fileno()) == 1
    assert r.readers[0].statistics().wakes_sent == 1


def test_full_path_rings_a_laggard_outside_the_mask(ring, bells):
    r = ring(1024, readers=2)
    assert bells[1].arm([r.readers[1]])
    while r.writer.try_send(b"", 0b01):
        r.readers[0].poll()
    assert os.eventfd_read(bells[1].fileno()) == 1  # nothing was addressed to it, and nobody flushed
    bells[1].disarm()
    assert r.readers[1].poll() == []
    assert r.writer.space_ready() and r.writer.try_send(b"", 0b01)


def test_flush_rings_a_sleeper_outside_the_mask_before_the_ring_is_full(ring, bells):
    r = ring(1024, readers=2)
    assert bells[1].arm([r.readers[1]])
    for _ in range(1024 // 64 // 2):
        r.writer.try_send(b"", 0b01)
        assert r.writer.flush() == 0
    r.writer.try_send(b"", 0b01)
    assert r.writer.flush() == 1
    assert os.eventfd_read(bells[1].fileno()) == 1


def test_flush_makes_one_system_call_per_sleeping_destination_and_none_for_the_awake(ring, bells):
    r = ring(readers=3)
    assert bells[0].arm([r.readers[0]]) and bells[2].arm([r.readers[2]])
    for _ in range(10):
        r.writer.try_send(b"x", 0b011)
    assert r.writer.flush() == 1  # 0 slept, 1 was awake, 2 was not addressed
    assert r.writer.flush() == 0
    assert bells[2].state == _native.ARMED
    assert (r.writer.statistics().wakes_sent, r.writer.statistics().wakes_suppressed) == (1, 1)


def test_slow_reader_holds_the_ring_and_its_eviction_frees_it_and_wakes_the_writer(ring, bells):
    r = ring(1024, readers=2)
    while r.writer.try_send(b"", ALL_READERS):
        r.readers[0].poll()
    assert r.writer.lag(0) == 0 and r.writer.lag(1) == 1024
    assert bells[WRITER_BELL].arm([], [r.writer])
    r.writer.evict(1)
    assert os.eventfd_read(bells[WRITER_BELL].fileno()) == 1
    assert r.writer.readers == 0b01
    assert r.writer.space_ready() and r.writer.try_send(b"on", ALL_READERS)
    assert payloads(r.readers[0].poll()) == [b"on"]
    assert r.writer.statistics().evictions == 1
    with pytest.raises(ValueError, match="slot 1"):
        r.writer.lag(1)


def test_without_readers_nothing_is_ever_full(ring):
    r = ring(1024, readers=0)
    for _ in range(100):
        assert r.writer.try_send(b"into the void", ALL_READERS)
    assert r.writer.min_cursor() == r.writer.position


def test_late_reader_sees_records_from_its_join_position_on(ring):
    r = ring(1024)
    for i in range(30):  # more than one lap, so that the late one joins at a sequence number of its own
        r.writer.try_send(bytes([i]), ALL_READERS)
        r.readers[0].poll()
    late = r.admit()
    r.writer.try_send(b"new", ALL_READERS)
    assert payloads(late.poll()) == [b"new"]


def test_slot_of_an_evicted_reader_is_used_again(ring):
    r = ring(readers=2)
    r.writer.try_send(b"old", ALL_READERS)
    r.writer.evict(0)
    again = r.admit()
    assert again.slot == 0
    r.writer.try_send(b"new", ALL_READERS)
    assert payloads(again.poll()) == [b"new"]
    assert payloads(r.readers[1].poll()) == [b"old", b"new"]


def test_sixty_four_readers_and_no_more(ring, bells):
    r = ring(65536, readers=64)
    assert r.writer.readers == ALL_READERS
    r.writer.try_send(b"all", ALL_READERS)
    assert all(payloads(reader.poll()) == [b"all"] for reader in r.readers)
    r.writer.try_send(b"last", 1 << 63)
    assert [payloads(reader.poll()) for reader in r.readers] == [[]] * 63 + [[b"last"]]
    with pytest.raises(ReaderLimit, match="64"):
        r.writer.admit(bells[0])


def test_close_is_the_last_record_and_ends_the_stream(ring):
    r = ring(readers=2)
    r.writer.try_send(b"x", 0b01)
    r.writer.close()
    r.writer.close()
    x, end = r.readers[0].poll()
    assert x.payload == b"x" and end.kind == _native.CLOSE
    assert r.readers[0].closed and not r.readers[0].ready()
    assert [m.kind for m in r.readers[1].poll()] == [_native.CLOSE]
    with pytest.raises(ValueError, match="closed"):
        r.writer.try_send(b"", 1)


def test_close_of_a_full_ring_wakes_and_ends_the_stream_too(ring, bells):
    r = ring(1024)
    sent = 0
    while r.writer.try_send(b"", 1):
        sent += 1
    r.writer.close()
    assert len(r.readers[0].poll()) == sent
    assert r.readers[0].ready()  # the end itself is news
    assert r.readers[0].poll() == [] and r.readers[0].closed
    assert bells[0].arm(r.readers)


def test_statistics_count_what_happened(ring):
    r = ring(1024)
    for _ in range(3):
        r.writer.try_send(bytes(100), 1)
    figures = r.writer.statistics()
    assert (figures.records, figures.bytes, figures.depth_bytes, figures.peak_bytes) == (3, 576, 576, 576)
    r.readers[0].poll()
    figures = r.writer.statistics()
    assert (figures.depth_bytes, figures.peak_bytes, figures.full_waits, figures.overflows) == (0, 576, 0, 0)
    seen = r.readers[0].statistics()
    assert (seen.records, seen.bytes, seen.skipped) == (3, 300, 0)


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [
        (8, struct.pack("<Q", 77), "sequence number is 77, expected 1"),
        (0, struct.pack("<I", 1 << 31), "bytes of the record"),
        (0, struct.pack("<I", 65), "bytes of the record"),
        (4, b"\x09", "kind of the record"),
    ],
)
def test_damaged_record_raises_after_the_good_ones_and_never_reads_outside(ring, offset, value, what):
    r = ring(1024)
    r.writer.try_send(b"good", 1)
    r.writer.try_send(b"bad", 1)
    os.pwrite(r.segment.fd, value, HEADER + 64 + offset)
    assert payloads(r.readers[0].poll()) == [b"good"]
    for _ in range(2):
        with pytest.raises(RingCorrupt, match=what):
            r.readers[0].poll()
    assert r.readers[0].position == 64


def test_damaged_head_raises(ring):
    r = ring(1024)
    os.pwrite(r.segment.fd, struct.pack("<Q", 5000), 0x80)
    with pytest.raises(RingCorrupt, match="5000, expected 1024"):
        r.readers[0].poll()


def test_reader_refuses_a_ring_that_is_not_the_expected_one(ring, bells):
    r = ring()
    fd, bell = r.segment.fd, bells[WRITER_BELL]
    with pytest.raises(RingMismatch, match="epoch 7, expected 8"):
        RingReader(fd, 0, 0, bell, 8)
    with pytest.raises(RingMismatch, match="slot 5 was not admitted"):
        RingReader(fd, 5, 0, bell, 7)
    with pytest.raises(RingMismatch, match="not admitted at position 64"):
        RingReader(fd, 0, 64, bell, 7)
    with pytest.raises(RingMismatch, match="holds no ring"):
        RingReader(bells.segment.fd, 0, 0, bell, 7)
    os.pwrite(fd, struct.pack("<I", 99), 8)
    with pytest.raises(RingMismatch, match="layout 99"):
        RingReader(fd, 0, 0, bell, 7)


def test_writer_refuses_a_used_segment_and_a_wrong_size(ring):
    r = ring()
    with pytest.raises(RingMismatch, match="new segment"):
        RingWriter(r.segment.fd, None, epoch=8)
    segment = create_segment(12288 + 3000)
    with pytest.raises(ValueError, match="fits no ring"):
        RingWriter(segment.fd, None, epoch=1)
    segment.close()
    for capacity in (0, 256, 1000, 1 << 40):
        with pytest.raises(ValueError, match="power of two"):
            RingWriter.size_bytes(capacity)


def test_bad_arguments_are_named(ring, bells):
    r = ring()
    with pytest.raises(ValueError, match="mask"):
        r.writer.try_send(b"", -1)
    with pytest.raises(ValueError, match="mask"):
        r.writer.try_send(b"", 1 << 64)
    with pytest.raises(ValueError, match="type is 65536"):
        r.writer.try_send(b"", 1, 65536)
    with pytest.raises(TypeError):
        r.writer.try_send("text", 1)
    with pytest.raises(TypeError, match="misses the argument 'mask'"):
        r.writer.try_send(b"")
    with pytest.raises(TypeError, match="'colour'"):
        r.writer.try_send(b"", 1, colour=3)
    with pytest.raises(TypeError, match="Doorbell"):
        r.writer.admit(None)
    with pytest.raises(TypeError, match="epoch"):
        RingWriter(r.segment.fd, None)
    assert r.writer.position == 0


def test_forked_child_gets_an_error_instead_of_a_crash(ring):
    r = ring()
    pid = os.fork()
    if pid == 0:
        try:
            r.writer.try_send(b"", 1)
        except RuntimeError:
            try:
                r.readers[0].poll()
            except RuntimeError:
                os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
