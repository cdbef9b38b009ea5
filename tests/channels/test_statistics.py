"""Promises of figures and reports: they say what happened, and a stall names side, reader, lag, phase and age."""

from __future__ import annotations

import time

from channel_kit import WRITER_BELL, Bells

from ringcast.channels import Link
from ringcast.channels.overflow import STREAM_LIMIT_BYTES

BIG = STREAM_LIMIT_BYTES + 1


def test_outbox_counts_ways_and_names_its_laggard(lane):
    x = lane(readers=3)
    x.outbox.set_policy(2, "spill")
    for data in (b"small", bytes(1000), bytes(BIG)):
        assert x.outbox.try_send(data, 0b111)
    figures = x.outbox.statistics()
    assert (figures.records, figures.overflows, figures.streamed, figures.sealed) == (3, 2, 1, 1)
    assert figures.under_way_bytes == 1000 + BIG
    assert [reader.depth_bytes for reader in figures.readers] == [192] * 3
    assert [reader.depth_records for reader in figures.readers] == [3] * 3
    x.read(0)
    x.read(1, 1)
    while x.outbox.ring.attached == 0b111:
        assert x.outbox.try_send(b"", 0b111)
        for i in range(2):
            x.read(i)
    assert x.outbox.try_send(b"by link", 0b100)
    figures = x.outbox.statistics()
    assert (figures.detaches, figures.attaches, figures.refusals) == (1, 0, 0)
    assert figures.under_way_bytes == 0  # a detached reader has an account of its own
    slow = figures.laggard
    assert slow is not None
    assert (slow.slot, slow.bell_slot, slow.policy, slow.mode) == (2, 2, "spill", "link")
    assert slow.depth_records == figures.spilled_records == 3 + 61 + 1 + 1
    assert slow.depth_bytes == figures.spilled_bytes == 5 + 1000 + BIG + 32 + 7
    assert slow.age_s >= 0.0
    assert figures.peak_bytes == 4096 and figures.depth_bytes <= 64
    x.read(2)
    x.outbox.try_send(b"attached again", 0b100)
    assert x.outbox.statistics().attaches == 1
    assert x.outbox.lag(2).mode == "ring"


def test_depth_is_in_bytes_and_records_and_has_a_peak(ring):
    r = ring(4096, readers=2)
    r.writer.send_many([b""] * 10, 0b11)
    r.readers[0].poll()
    r.readers[1].poll(4)
    figures = r.writer.statistics()
    assert (figures.depth_bytes, figures.depth_records) == (384, 6)
    r.readers[1].poll()
    figures = r.writer.statistics()
    assert (figures.depth_bytes, figures.depth_records) == (0, 0)
    assert (figures.peak_bytes, figures.peak_records) == (384, 6)


def test_onlooker_reads_the_figures_out_of_the_segment(ring):
    import os
    import struct

    r = ring()
    r.writer.send_many([b""] * 3, 1)
    r.writer.flush()
    records, size_bytes = struct.unpack("<QQ", os.pread(r.segment.fd, 16, 0x180))
    assert (records, size_bytes) == (3, 192)


def test_link_counts_frames_bytes_and_waits(nothing_left):
    one, other = Link.pair()
    one.send(40, 1, b"abc")
    assert [f.payload for f in other.receive()] == [b"abc"]
    sent, received = one.statistics(), other.statistics()
    assert (sent.frames_sent, sent.bytes_sent, sent.full_waits) == (1, 27, 0)
    assert (received.frames_received, received.bytes_received) == (1, 27)
    one.send(40, 2, bytes(1 << 20))
    one.append(40, 3, b"x" * 10)
    one.append(40, 4, b"y" * 10)
    waiting = one.statistics()
    assert (waiting.frames_sent, waiting.pending_frames, waiting.full_waits) == (1, 2, 1)
    assert 0 < waiting.pending_bytes == one.pending_bytes == waiting.peak_pending_bytes
    frames = []
    while one.pending:
        one.pump()
        frames += other.receive()
    frames += other.receive()
    assert [(f.id, f.payload) for f in frames] == [(2, bytes(1 << 20)), (3, b"x" * 10 + b"y" * 10)]
    done = one.statistics()
    assert (done.frames_sent, done.pending_frames, done.pending_bytes) == (3, 0, 0)
    assert done.bytes_sent == other.statistics().bytes_received == 27 + 24 + (1 << 20) + 24 + 20
    one.close()
    other.close()


def test_joined_frames_stay_small_and_apart_from_other_kinds(nothing_left):
    one, other = Link.pair()
    one.send(40, 0, bytes(1 << 20))
    for i in range(100):
        one.append(41, i, b"z" * 2000)
    one.send(42, 7, b"between")
    one.append(41, 100, b"last")
    frames = []
    while one.pending:
        one.pump()
        frames += other.receive()
    frames += other.receive()
    kinds = [f.kind for f in frames]
    assert kinds == [40, 41, 41, 41, 41, 42, 41]
    assert all(len(f.payload) <= 66_000 for f in frames[1:5])
    assert b"".join(f.payload for f in frames[1:5]) == b"z" * 200_000
    assert [f.id for f in frames if f.kind == 41] == [0, 33, 66, 99, 100]
    one.close()
    other.close()


def test_stall_of_a_writer_names_whom_it_waits_for(lane, bells: Bells):
    x = lane(readers=2)
    assert x.outbox.stall(bells.board) is None
    for _ in range(3):
        bells.board.advance(1, 12)
    while x.outbox.try_send(b"", 0b11):
        x.read(0)
    time.sleep(0.03)
    report = x.outbox.stall(bells.board)
    assert report is not None
    assert (report.side, report.epoch, report.slot, report.bell_slot) == ("writer", 7, 1, 1)
    assert (report.lag_bytes, report.lag_records, report.phase, report.progress) == (4096, 64, 12, 3)
    assert 0.01 < report.age_s < 10
    assert "the writer of the ring of epoch 7" in str(report)
    assert "reader slot 1 is 4096 bytes and 64 records behind; board slot 1 is in phase 12, progress 3" in str(report)
    assert "phase unknown" in str(x.outbox.stall())
    x.read(1)
    assert x.outbox.ring.space_ready()
    assert x.outbox.stall(bells.board) is None


def test_stall_of_a_reader_names_the_writer_whose_bytes_are_missing(lane, bells: Bells):
    x = lane()
    inbox = x.inboxes[0]
    bells.board.advance(WRITER_BELL, 4)
    while not x.links[0].pending:
        x.links[0].send(40, 0, bytes(1 << 20))
    x.outbox.try_send(bytes(BIG), 1)
    assert inbox.stall(bells.board) is None
    inbox.poll()
    report = inbox.stall(bells.board)
    assert report is not None
    assert (report.side, report.slot, report.bell_slot, report.phase) == ("reader", 0, WRITER_BELL, 4)
    assert report.lag_bytes == 64 and report.age_s >= 0.0
    assert "bytes of an oversized message have not come" in str(report)
    assert x.read(0) == [bytes(BIG)]
    assert inbox.stall(bells.board) is None
