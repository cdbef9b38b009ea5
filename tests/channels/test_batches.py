"""Promises of batches: the same records as one by one, in order, as far as they go, and one flush for all."""

from __future__ import annotations

import pytest

from ringcast.channels import RingCorrupt, RingFull, _native
from ringcast.channels.overflow import STREAM_LIMIT_BYTES


def test_batch_arrives_as_the_same_records_and_takes_one_flush(ring, bells):
    r = ring(65536)
    assert bells[0].arm(r.readers)
    sent = [b"%d" % i * (i % 50) for i in range(200)]
    assert r.writer.send_many(sent, 1, type=4) == 200
    assert bells[0].state == _native.ARMED
    assert r.writer.flush() == 1
    assert [tuple(m) for m in r.readers[0].poll()] == [(4, data) for data in sent]


def test_batch_goes_as_far_as_the_ring_and_tells_how_far(ring):
    r = ring(4096)
    sent = [b"%d" % i for i in range(100)]
    assert r.writer.send_many(sent, 1) == 64
    assert r.writer.wants_space
    assert r.readers[0].poll_payloads(1000) == sent[:64]
    assert r.writer.send_many(sent[64:], 1) == 36
    assert r.readers[0].poll_payloads() == sent[64:]


def test_readers_rung_by_a_batch_that_ran_full_see_all_that_went(ring, bells):
    r = ring(4096)
    assert bells[0].arm(r.readers)
    assert r.writer.send_many([b""] * 65, 1) == 64
    assert bells[0].state == _native.AWAKE
    assert len(r.readers[0].poll()) == 64


def test_error_of_a_later_payload_ends_the_batch_before_it_and_is_raised_next(ring):
    r = ring(4096)
    batch = [b"a", bytearray(b"b"), "text", b"d"]
    assert r.writer.send_many(batch, 1) == 2
    with pytest.raises(TypeError):
        r.writer.send_many(batch[2:], 1)
    assert r.writer.send_many([b"e", bytes(513)], 1) == 1
    with pytest.raises(ValueError, match="max_inline"):
        r.writer.send_many([bytes(513)], 1)
    assert r.writer.send_many([], 1) == 0
    assert r.readers[0].poll_payloads() == [b"a", b"b", b"e"]


@pytest.mark.parametrize("size", [1, 32, 33, 64, 512])
def test_equal_records_go_out_of_one_buffer_and_into_one(ring, size):
    r = ring(4096)
    data = bytes(i % 251 for i in range(size * 300))
    out = bytearray(size * 300)
    sent = received = 0
    while received < 300:
        sent += r.writer.send_records(memoryview(data)[sent * size :], size, 1, type=2)
        count = r.readers[0].poll_into(memoryview(out)[received * size :], size)
        assert count > 0
        received += count
    assert sent == received == 300
    assert out == data


def test_poll_ends_after_64_kib_so_that_the_writer_gets_space_early(ring):
    r = ring(1 << 20)
    assert r.writer.send_many([bytes(10_000)] * 20, 1) == 20
    assert len(r.readers[0].poll()) == 7
    assert r.writer.lag(0) == 13 * 10_048
    assert len(r.readers[0].poll_payloads()) == 7 and len(r.readers[0].poll(3)) == 3
    assert r.writer.try_send(bytes(1 << 17), 1)
    assert len(r.readers[0].poll()) == 4  # one larger than that comes, too
    assert r.readers[0].poll() == []


def test_equal_records_need_a_whole_number_of_them(ring):
    r = ring()
    with pytest.raises(ValueError, match="10 bytes are no whole number of records of 3"):
        r.writer.send_records(bytes(10), 3, 1)
    with pytest.raises(ValueError, match="record"):
        r.writer.send_records(bytes(10), 0, 1)
    with pytest.raises(ValueError, match="2 bytes for records of 3"):
        r.readers[0].poll_into(bytearray(2), 3)
    with pytest.raises(BufferError, match="not writable"):
        r.readers[0].poll_into(bytes(8), 2)


def test_poll_into_ends_before_a_record_of_another_size(ring):
    r = ring()
    r.writer.send_many([b"aa", b"bb", b"ccc", b"dd"], 1)
    out = bytearray(100)
    assert r.readers[0].poll_into(out, 2) == 2 and out[:4] == b"aabb"
    with pytest.raises(ValueError, match="next record has 3 bytes, not 2"):
        r.readers[0].poll_into(out, 2)
    assert r.readers[0].poll_payloads(1) == [b"ccc"]
    assert r.readers[0].poll_into(out, 2) == 1 and out[:2] == b"dd"


def test_cheap_polls_end_before_an_oversized_record_and_at_the_close(ring):
    r = ring()
    r.writer.try_send(b"ab", 1)
    r.writer.try_send(bytes(16), 1, 0, _native.OVERFLOW)
    r.writer.try_send(b"cd", 1)
    reader = r.readers[0]
    assert reader.poll_payloads() == [b"ab"] and reader.poll_payloads() == []
    assert reader.poll_into(bytearray(8), 2) == 0 and reader.ready()
    assert [m.kind for m in reader.poll()] == [_native.OVERFLOW]
    assert reader.step()
    r.writer.close()
    assert reader.poll_payloads() == [b"cd"]
    assert reader.closed and reader.poll_payloads() == []


def test_cheap_polls_report_damage_after_the_good_records(ring):
    import os

    r = ring(1024)
    for data in (b"go", b"no"):
        r.writer.try_send(data, 1)
    os.pwrite(r.segment.fd, b"\x09", _native.HEADER_BYTES + 64 + 4)
    assert r.readers[0].poll_payloads() == [b"go"]
    with pytest.raises(RingCorrupt):
        r.readers[0].poll_payloads()
    with pytest.raises(RingCorrupt):
        r.readers[0].poll_into(bytearray(8), 2)


@pytest.mark.parametrize("size", [600, STREAM_LIMIT_BYTES + 1])
def test_outbox_batch_may_hold_oversized_messages(lane, size):
    x = lane(capacity=4096)
    sent = [b"%d" % i * (size if i % 7 == 3 else 2) for i in range(30)]
    assert x.outbox.send_many(sent, 1) == 30
    assert x.read(0) == sent


def test_outbox_batch_spills_and_is_refused_like_single_sends(lane):
    x = lane(readers=2, policy="spill", spill_limit_bytes=5000)
    sent = [b"%50d" % i for i in range(500)]
    done = 0
    while (count := x.outbox.send_many(sent[done : done + 30], 0b11)) == 30:
        done += 30
        x.read(0)
    done += count
    assert x.outbox.lag(1).depth_bytes <= 5000 < x.outbox.lag(1).depth_bytes + 50
    with pytest.raises(RingFull):
        x.outbox.send_many(sent[done:], 0b11)
    assert x.read(1) == sent[:done]
    assert x.outbox.send_many(sent[done:][:20], 0b11) == 20
    assert x.read(1) == sent[done:][:20]
