"""Promises of views and reservations: no copy, no use after the end, no byte visible before its time."""

from __future__ import annotations

import gc
import os

import pytest
from channel_kit import WRITER_BELL

from ringcast.channels import RingCorrupt, _native
from ringcast.channels.overflow import STREAM_LIMIT_BYTES


def payloads(messages):
    return [bytes(m.payload) for m in messages]


# Views.


def test_view_shows_the_ring_itself_and_its_end_consumes_the_record(ring):
    r = ring()
    reader = r.readers[0]
    r.writer.try_send(b"first", 1, 7)
    r.writer.try_send(b"second", 1)
    with reader.view() as record:
        assert (record.type, record.seq, bytes(record.payload)) == (7, 0, b"first")
        assert record.payload.readonly
        os.pwrite(r.segment.fd, b"F", _native.HEADER_BYTES + _native.RECORD_BYTES)
        assert bytes(record.payload) == b"First"
        assert r.writer.lag(0) == 128
    assert r.writer.lag(0) == 64
    assert payloads(reader.poll()) == [b"second"]
    assert reader.statistics().records == 2


def test_using_a_view_after_its_end_raises(ring):
    r = ring()
    r.writer.try_send(b"x" * 10, 1)
    with r.readers[0].view() as record:
        payload = record.payload
    with pytest.raises(ValueError, match="released"):
        payload[0]
    with pytest.raises(ValueError, match="released"):
        bytes(record.payload)
    record.release()


def test_slice_that_outlives_the_view_keeps_the_space_and_is_reported(ring):
    r = ring()
    reader = r.readers[0]
    r.writer.try_send(b"abcdef", 1)
    r.writer.try_send(b"next", 1)
    view = reader.view()
    piece = view.payload[2:4]
    with pytest.raises(BufferError, match="1 slices or arrays"):
        view.release()
    assert bytes(piece) == b"cd"
    assert r.writer.lag(0) == 128
    with pytest.raises(BufferError, match="a view of the next record is open"):
        reader.poll()
    del piece
    assert r.writer.lag(0) == 64
    assert payloads(reader.poll()) == [b"next"]


def test_while_a_view_is_open_nothing_else_is_read(ring):
    r = ring()
    reader = r.readers[0]
    r.writer.try_send(b"ab", 1)
    view = reader.view()
    for read in (
        reader.poll,
        reader.view,
        reader.step,
        reader.poll_payloads,
        lambda: reader.poll_into(bytearray(8), 2),
    ):
        with pytest.raises(BufferError, match="view"):
            read()
    view.release()
    assert reader.poll() == []


def test_forgotten_view_ends_by_itself(ring):
    r = ring()
    r.writer.try_send(b"ab", 1)
    view = r.readers[0].view()
    payload = view.payload
    del view
    gc.collect()
    with pytest.raises(ValueError, match="released"):
        bytes(payload)
    assert r.writer.lag(0) == 0


def test_view_outlives_its_reader_object(ring):
    r = ring()
    r.writer.try_send(b"abc", 1)
    view = r.readers.pop().view()
    gc.collect()
    assert bytes(view.payload) == b"abc"
    view.release()


def test_end_of_a_view_wakes_a_writer_that_waits_for_its_space(ring, bells):
    r = ring(1024)
    while r.writer.try_send(bytes(64), 1):
        pass
    r.readers[0].poll(2)
    with r.readers[0].view():
        assert bells[WRITER_BELL].arm([], [r.writer])
    assert os.eventfd_read(bells[WRITER_BELL].fileno()) == 1


def test_view_passes_over_padding_and_records_of_others(ring):
    r = ring(1024, readers=2)
    for i in range(40):
        r.writer.try_send(b"%d" % i * 20, 1 << (i % 2))
        with r.readers[i % 2].view() as record:
            assert bytes(record.payload) == b"%d" % i * 20
        assert r.readers[0].view() is None and r.readers[1].view() is None
    assert r.writer.position > 1024


def test_view_of_a_damaged_ring_is_an_error_and_pins_nothing(ring):
    r = ring()
    r.writer.try_send(b"bad", 1)
    os.pwrite(r.segment.fd, b"\x09", _native.HEADER_BYTES + 4)
    with pytest.raises(RingCorrupt, match="kind"):
        r.readers[0].view()
    with pytest.raises(RingCorrupt, match="kind"):
        r.readers[0].poll()


def test_view_sees_the_end_of_the_stream_as_poll_does(ring):
    r = ring()
    r.writer.close()
    assert r.readers[0].view() is None  # CLOSE is no message
    assert [m.kind for m in r.readers[0].poll()] == [_native.CLOSE]
    assert r.readers[0].view() is None and r.readers[0].closed


@pytest.mark.parametrize("size", [600, STREAM_LIMIT_BYTES + 1])
def test_inbox_views_messages_wherever_they_lie(lane, size):
    x = lane(readers=2, policy="spill")
    sent = [b"%d" % i * (size if i == 3 else 5) for i in range(150)]
    for message in sent:
        assert x.outbox.try_send(message, 0b11, type=5)
        for i in range(2):
            if i == 0 or x.outbox.ring.attached != 0b11:
                x.carry(i)
        x.inboxes[0].poll()
    seen = []
    x.carry(1)
    while (view := x.inboxes[1].view()) is not None:
        with view as record:
            assert record.type == 5
            seen.append(bytes(record.payload))
        with pytest.raises(ValueError, match="released"):
            bytes(record.payload)
    assert seen == sent
    assert x.outbox.statistics().detaches == 1


# Reservations.


def test_reserved_record_is_built_in_place_and_invisible_before_its_commit(ring):
    r = ring()
    with r.writer.reserve(11, 1, 9) as place:
        place[:5] = b"hello"
        assert r.readers[0].poll() == []
        place[5:] = b" world"
        assert os.pread(r.segment.fd, 11, _native.HEADER_BYTES + _native.RECORD_BYTES) == b"hello world"
    assert [tuple(m) for m in r.readers[0].poll()] == [(9, b"hello world")]


def test_commit_may_take_less_than_was_reserved_at_every_offset(ring):
    r = ring(1024)
    sent = []
    for i in range(200):
        size = i % 129
        reservation = r.writer.reserve(128, 1)
        reservation.payload[:size] = bytes([i]) * size
        reservation.commit(size)
        sent.append(bytes([i]) * size)
        assert payloads(r.readers[0].poll()) == [sent[-1]]
    with pytest.raises(ValueError, match="size is 129"):
        r.writer.reserve(128, 1).commit(129)


def test_exception_in_the_block_cancels(ring):
    r = ring()
    with pytest.raises(KeyError), r.writer.reserve(5, 1) as place:
        place[:] = b"wrong"
        raise KeyError
    assert r.writer.position == 0
    r.writer.try_send(b"right", 1)
    assert payloads(r.readers[0].poll()) == [b"right"]


def test_place_cannot_be_written_after_the_commit(ring):
    r = ring()
    reservation = r.writer.reserve(5, 1)
    place = reservation.payload
    piece = place[1:3]
    with pytest.raises(BufferError, match=r"commit\(\) while 1 slices"):
        reservation.commit()
    assert r.writer.position == 0
    piece.release()
    reservation.commit()
    with pytest.raises(ValueError, match="released"):
        place[0] = 1
    with pytest.raises(ValueError, match="committed or cancelled"):
        reservation.commit()
    assert len(r.readers[0].poll()) == 1


def test_nothing_else_is_sent_while_a_reservation_is_open(ring):
    r = ring()
    reservation = r.writer.reserve(5, 1)
    for send in (
        lambda: r.writer.try_send(b"", 1),
        lambda: r.writer.try_send_parts([b""], 1),
        lambda: r.writer.send_many([b""], 1),
        lambda: r.writer.send_records(b"x", 1, 1),
        lambda: r.writer.reserve(1, 1),
        lambda: r.writer.close(),
    ):
        with pytest.raises(RuntimeError, match="being built"):
            send()
    reservation.cancel()
    reservation.cancel()
    assert r.writer.try_send(b"", 1)


def test_dropped_reservation_is_cancelled_once_nobody_can_write_there(ring):
    r = ring()
    reservation = r.writer.reserve(5, 1)
    piece = reservation.payload[1:]
    del reservation
    gc.collect()
    with pytest.raises(RuntimeError, match="being built"):
        r.writer.try_send(b"", 1)
    del piece
    assert r.writer.try_send(b"on", 1)
    assert payloads(r.readers[0].poll()) == [b"on"]


def test_reservation_in_a_full_ring_is_refused_like_a_send(ring):
    r = ring(1024)
    while r.writer.try_send(b"", 1):
        pass
    assert r.writer.reserve(1, 1) is None and r.writer.wants_space
    with pytest.raises(ValueError, match="max_inline"):
        r.writer.reserve(129, 1)


def test_outbox_builds_once_for_ring_and_links(lane):
    x = lane(readers=2, policy="spill")
    sent = []
    for i in range(100):
        with x.outbox.reserve(40, 0b11, type=3) as place:
            place[:] = b"%40d" % i
        sent.append(b"%40d" % i)
        assert x.read(0) == [sent[-1]]
    x.outbox.reserve(10, 0b11).cancel()
    placed = x.outbox.reserve(10, 0b10)  # for the detached reader alone: no ring is involved
    position = x.outbox.ring.position
    placed.payload[:3] = b"abc"
    with pytest.raises(ValueError, match="size is 11"):
        placed.commit(11)
    placed.commit(3)
    with pytest.raises(ValueError, match="committed"):
        placed.commit()
    assert x.outbox.ring.position == position
    assert x.read(1) == [*sent, b"abc"]
