"""Promises of outbox and inbox: large messages keep their place in the ring's order and cost one copy."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
from pathlib import Path

import pytest
from channel_kit import WRITER_BELL

from ringcast.channels import LinkError, RingCorrupt, SegmentError, _native
from ringcast.channels.overflow import STREAM_LIMIT_BYTES

LARGE = 5000  # over the max_inline of 512 of a ring of 4096: the bytes go over the links
BIG = STREAM_LIMIT_BYTES + 1  # they go in a memfd


def test_large_messages_arrive_in_ring_order_between_small_ones_for_every_reader(lane):
    x = lane(readers=3)
    sent = [b"one", b"2" * BIG, b"three", b"4" * (10 * BIG), b"5" * 513, b"6" * LARGE, b"seven"]
    masks = [0b111, 0b111, 0b011, 0b101, 0b110, 0b111, 0b111]
    for data, mask in zip(sent, masks, strict=True):
        assert x.outbox.try_send(data, mask)
    for i in range(3):
        assert x.read(i) == [data for data, mask in zip(sent, masks, strict=True) if mask >> i & 1]
    figures = x.outbox.statistics()
    assert (figures.overflows, figures.sealed, figures.streamed) == (4, 2, 2)


@pytest.mark.parametrize("size", [511, 512, 513, 4096, 4097, STREAM_LIMIT_BYTES, STREAM_LIMIT_BYTES + 1, 3_000_000])
def test_sizes_around_the_border_between_ring_and_overflow(lane, size):
    x = lane()
    data = os.urandom(size)
    assert x.outbox.try_send(data, 1, type=12)
    assert x.outbox.try_send([data[: size // 2], bytearray(data[size // 2 :])], 1)
    x.carry(0)
    first, second = x.inboxes[0].poll()
    assert first.type == 12 and bytes(first.payload) == bytes(second.payload) == data
    assert isinstance(first.payload, bytes if size <= STREAM_LIMIT_BYTES else memoryview)
    assert x.outbox.statistics().overflows == (0 if size <= 512 else 2)


@pytest.mark.parametrize("size", [LARGE, BIG])
def test_nothing_overtakes_a_large_message_whose_bytes_are_not_there_yet(lane, size):
    x = lane()
    inbox = x.inboxes[0]
    for data in (b"before", b"L" * size, b"after"):
        x.outbox.try_send(data, 1)
    assert [bytes(m.payload) for m in inbox.poll()] == [b"before"]
    assert inbox.poll() == [] and inbox.reader.blocked
    assert x.ring.bells[0].arm([inbox.reader])  # it may sleep: the link will tell
    x.ring.bells[0].disarm()
    assert inbox.control_frames() == []
    assert not x.ring.bells[0].arm([inbox.reader])
    assert [bytes(m.payload) for m in inbox.poll()] == [b"L" * size, b"after"]


@pytest.mark.parametrize("size", [LARGE, BIG])
def test_the_ring_record_is_published_before_the_frame_is_sent(lane, size):
    x = lane()
    while not x.links[0].pending:
        x.links[0].send(40, 0, bytes(1 << 20))  # stuff the socket: the frame will have to wait
    assert x.outbox.try_send(b"L" * size, 1)
    assert x.outbox.links_pending() == x.links
    assert x.inboxes[0].poll() == [] and x.inboxes[0].reader.blocked
    assert x.read(0) == [b"L" * size]
    assert x.outbox.links_pending() == []


def test_payload_is_a_sealed_read_only_mapping_that_lives_as_long_as_its_views(lane):
    x = lane()
    x.outbox.try_send(b"L" * BIG, 1)
    (frame,) = x.inboxes[0].link.receive()
    seals = fcntl.fcntl(frame.fds[0], fcntl.F_GET_SEALS)
    assert seals == fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    with pytest.raises(PermissionError):
        os.pwrite(frame.fds[0], b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(frame.fds[0], 0)
    x.inboxes[0].feed(frame)
    ((_, view),) = x.inboxes[0].poll()
    assert view.readonly and view.nbytes == BIG
    piece = view[100:200]
    del view
    gc.collect()
    assert bytes(piece) == b"L" * 100
    assert "ringcast-overflow" in Path("/proc/self/maps").read_text()
    del piece
    gc.collect()
    assert "ringcast-overflow" not in Path("/proc/self/maps").read_text()


def test_at_most_32_are_under_way_and_their_consumption_wakes_the_writer(lane, bells):
    x = lane(readers=2, capacity=65536)
    big = bytes(10_000)
    sent = 0
    while x.outbox.try_send(big, 0b11):
        sent += 1
    assert sent == 32
    assert x.outbox.wants_space
    assert x.outbox.try_send(b"small ones go on", 0b11)
    assert bells[WRITER_BELL].arm([], [x.ring.writer])
    assert len(x.read(0)) == 33
    assert not x.outbox.try_send(big, 0b11)  # the other reader has not come so far
    x.carry(1)
    assert len(x.inboxes[1].poll(1)) == 1
    assert os.eventfd_read(bells[WRITER_BELL].fileno()) >= 1
    bells[WRITER_BELL].disarm()
    assert not bells[WRITER_BELL].arm([], [x.ring.writer])
    assert x.outbox.try_send(big, 0b11)
    assert not x.outbox.try_send(big, 0b11)


def test_a_reader_that_stands_still_does_not_stop_large_messages_to_others(lane, bells):
    x = lane(readers=2, capacity=65536)
    big = bytes(10_000)
    assert x.outbox.try_send(big, 0b01)
    for _ in range(31):
        assert x.outbox.try_send(big, 0b10)
    assert not x.outbox.try_send(big, 0b10)
    assert bells[WRITER_BELL].arm([], [x.ring.writer])
    assert len(x.read(1)) == 31
    assert os.eventfd_read(bells[WRITER_BELL].fileno()) >= 1
    assert x.outbox.try_send(big, 0b10)


def test_bytes_under_way_are_bounded_but_one_message_of_any_size_goes(lane, monkeypatch):
    from ringcast.channels import overflow

    monkeypatch.setattr(overflow, "MAX_OVERFLOW_BYTES", 100_000)
    x = lane()
    assert x.outbox.try_send(bytes(300_000), 1)
    assert not x.outbox.try_send(bytes(1_000), 1)
    assert len(x.read(0)) == 1
    assert x.outbox.try_send(bytes(60_000), 1)
    assert x.outbox.try_send(bytes(40_000), 1)
    assert not x.outbox.try_send(bytes(1_000), 1)
    assert len(x.read(0)) == 2


def test_large_message_into_a_full_ring_is_refused_like_any_other(lane):
    x = lane()
    while x.outbox.try_send(b"", 1):
        pass
    assert not x.outbox.try_send(bytes(BIG), 1)
    assert x.outbox.statistics().overflows == 0
    x.read(0)
    assert x.outbox.try_send(bytes(BIG), 1)
    assert x.read(0) == [bytes(BIG)]


def test_evicted_reader_gives_its_credit_back(lane):
    x = lane(readers=2, capacity=65536)
    while x.outbox.try_send(bytes(10_000), 0b11):
        pass
    x.read(0)
    assert not x.outbox.try_send(bytes(10_000), 0b11)
    x.outbox.evict(1)
    assert x.outbox.try_send(bytes(10_000), 0b11)
    assert x.read(0) == [bytes(10_000)]


def test_large_message_to_nobody_is_no_work(lane):
    x = lane()
    assert x.outbox.try_send(bytes(BIG), 0b10)
    assert x.outbox.statistics().overflows == 0


def test_lack_of_memory_is_an_error_and_nothing_was_sent(lane, monkeypatch):
    x = lane()

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", refuse)
    with pytest.raises(SegmentError, match=f"{BIG} bytes"):
        x.outbox.try_send(bytes(BIG), 1)
    monkeypatch.undo()
    assert x.outbox.try_send(b"next", 1)
    assert x.read(0) == [b"next"]


def test_other_frames_on_the_link_are_left_to_the_owner_in_order(lane):
    x = lane()
    x.links[0].send(40, 1, b"a")
    x.outbox.try_send(bytes(BIG), 1)
    x.links[0].send(41, 2, b"b")
    assert [(f.kind, f.payload) for f in x.inboxes[0].control_frames()] == [(40, b"a"), (41, b"b")]
    assert [bytes(m.payload) for m in x.inboxes[0].poll()] == [bytes(BIG)]


def test_foreign_frame_is_refused_and_its_descriptors_closed(lane):
    x = lane()
    x.links[0].send(1, 5, b"", (0, 0))
    with pytest.raises(LinkError, match="no frame of a channel"):
        x.inboxes[0].control_frames()


def test_unsealed_memory_is_refused_after_the_good_messages(lane):
    x = lane()
    x.outbox.try_send(b"good", 1)
    fd = os.memfd_create("evil", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, BIG)
    x.ring.writer.try_send(bytes(8) + BIG.to_bytes(8, "little"), 1, 0, _native.OVERFLOW)
    x.links[0].send(1, 0, b"", (fd,))
    os.close(fd)
    x.inboxes[0].control_frames()
    assert [m.payload for m in x.inboxes[0].poll()] == [b"good"]
    with pytest.raises(RingCorrupt, match="sealed"):
        x.inboxes[0].poll()


def test_after_the_writers_end_everything_committed_is_delivered_then_finished(lane):
    x = lane()
    inbox = x.inboxes[0]
    for data in (b"a", bytes(BIG), b"c"):
        x.outbox.try_send(data, 1)
    x.links[0].close()
    assert not inbox.dead
    inbox.control_frames()
    assert inbox.dead and not inbox.finished
    assert [bytes(m.payload) for m in inbox.poll()] == [b"a", bytes(BIG), b"c"]
    assert inbox.finished


def test_large_message_cut_off_by_the_writers_death_ends_the_stream_there(lane):
    x = lane()
    inbox = x.inboxes[0]
    x.outbox.try_send(b"a", 1)
    while not x.links[0].pending:
        x.links[0].send(40, 0, bytes(1 << 20))
    x.outbox.try_send(bytes(BIG), 1)
    x.links[0].close()  # dies with the frame still in its queue
    inbox.control_frames()
    assert [m.payload for m in inbox.poll()] == [b"a"]
    assert inbox.poll() == [] and inbox.dead and inbox.finished


def test_proof_of_death_counts_even_while_a_leaked_descriptor_keeps_the_link_open(lane):
    x = lane()
    inbox = x.inboxes[0]
    x.outbox.try_send(b"a", 1)
    inbox.control_frames()
    inbox.peer_died()
    assert inbox.dead and not inbox.finished
    assert [m.payload for m in inbox.poll()] == [b"a"]
    assert inbox.finished


def test_closed_ring_finishes_without_anybody_dying(lane):
    x = lane()
    x.outbox.try_send(b"a", 1)
    x.outbox.close()
    assert [m.payload for m in x.inboxes[0].poll()] == [b"a"]
    assert x.inboxes[0].finished and not x.inboxes[0].dead


def test_map_sealed_survives_the_descriptor_and_checks_the_size():
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(fd, b"z" * mmap.PAGESIZE)
    with pytest.raises(RingCorrupt, match="seals"):
        _native.map_sealed(fd, mmap.PAGESIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK)
    with pytest.raises(RingCorrupt, match="expected 4097"):
        _native.map_sealed(fd, mmap.PAGESIZE + 1)
    view = _native.map_sealed(fd, mmap.PAGESIZE)
    os.close(fd)
    assert bytes(view) == b"z" * mmap.PAGESIZE
    with pytest.raises(TypeError):
        view[0] = 1
