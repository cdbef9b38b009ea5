"""Promises of the policies: who lags is waited for, refused, or spilled to, and a spill loses and swaps nothing."""

from __future__ import annotations

import os

import pytest
from channel_kit import WRITER_BELL

from ringcast.channels import LinkError, RingCorrupt, RingFull, _native
from ringcast.channels.overflow import STREAM_LIMIT_BYTES

BIG = STREAM_LIMIT_BYTES + 1
SLOTS = 4096 // 64  # records without payload that fill a ring of 4096


def numbered(count, start=0):
    return [b"%d" % i for i in range(start, start + count)]


def send_all(x, messages, mask=1):
    for message in messages:
        assert x.outbox.try_send(message, mask)


def test_wait_is_the_default_and_refuses_nothing_but_waits(lane):
    x = lane()
    while x.outbox.try_send(b"", 1):
        pass
    assert x.outbox.wants_space
    assert x.outbox.statistics().laggard.policy == "wait"


def test_reject_names_the_laggard_its_depth_and_age(lane, monkeypatch):
    x = lane(readers=2)
    x.outbox.set_policy(1, "reject")
    send_all(x, numbered(SLOTS), 0b11)
    x.read(0)
    x.read(1, 3)
    send_all(x, [b"a", b"b", b"c"], 0b11)
    with pytest.raises(RingFull, match=r"reader slot 1 .* 4096 bytes and 64 records behind.*reject") as caught:
        x.outbox.try_send(b"d", 0b11)
    refusal = caught.value
    assert (refusal.slot, refusal.mask, refusal.depth_bytes, refusal.depth_records) == (1, 0b10, 4096, 64)
    assert refusal.age_s >= 0.0
    assert x.read(0) == [b"a", b"b", b"c"]  # nothing of the refused message went to anybody
    with pytest.raises(RingFull):
        x.outbox.try_send(b"e", 0b01)  # it holds the space of others, too
    x.read(1)
    send_all(x, [b"f"], 0b11)
    assert x.outbox.statistics().refusals == 2


def test_age_of_a_laggard_grows_while_it_stands_still(lane):
    import time

    x = lane(policy="reject")
    send_all(x, numbered(SLOTS))
    with pytest.raises(RingFull):
        x.outbox.try_send(b"", 1)
    time.sleep(0.05)
    with pytest.raises(RingFull) as caught:
        x.outbox.try_send(b"", 1)
    assert 0.03 < caught.value.age_s < 10
    moved = time.monotonic()
    x.read(0, 1)
    assert x.outbox.lag(0).age_s < time.monotonic() - moved + 0.01
    x.read(0)
    assert x.outbox.lag(0).age_s == 0.0


def test_a_waiting_reader_is_waited_for_even_beside_a_spilling_one(lane):
    x = lane(readers=2)
    x.outbox.set_policy(1, "spill")
    send_all(x, numbered(SLOTS), 0b11)
    assert not x.outbox.try_send(b"", 0b11)
    assert x.outbox.ring.attached == 0b11  # detaching the other would have helped nobody
    x.read(0)
    send_all(x, [b"on"], 0b11)
    assert x.outbox.ring.attached == 0b01


def test_spilled_reader_gets_every_record_in_order_and_stalls_nobody(lane):
    x = lane(readers=3, policy="spill")
    sent = numbered(5 * SLOTS)
    others = [[], []]
    for message in sent:
        send_all(x, [message], 0b111)
        for i in range(2):
            others[i] += x.read(i)
    assert others == [sent, sent]
    figures = x.outbox.statistics()
    assert (figures.detaches, figures.full_waits) == (1, 1)
    assert (figures.spilled_records, figures.laggard.slot, figures.laggard.mode) == (len(sent), 2, "link")
    assert figures.laggard.depth_records == len(sent)
    assert figures.laggard.depth_bytes == sum(map(len, sent))
    assert x.read(2) == sent
    assert x.inboxes[2].reader.statistics().spilled == len(sent)
    assert x.outbox.lag(2).depth_records == 0


def test_reader_that_has_caught_up_goes_on_in_the_ring_with_the_next_record(lane):
    x = lane(readers=2, policy="spill")
    for message in numbered(SLOTS + 1):
        send_all(x, [message], 0b10)
        x.read(0)
    assert x.outbox.ring.attached == 0b01
    assert x.read(1, SLOTS) == numbered(SLOTS)
    send_all(x, [b"still by link"], 0b10)  # one record was left: it has not caught up
    assert x.outbox.ring.attached == 0b01
    assert x.read(1) == [b"%d" % SLOTS, b"still by link"]
    send_all(x, [b"by ring", b"too"], 0b10)
    assert x.outbox.ring.attached == 0b11
    assert x.read(1) == [b"by ring", b"too"]
    assert not x.inboxes[1].reader.detached
    figures = x.outbox.statistics()
    assert (figures.attaches, figures.spilled_records) == (1, SLOTS + 2)


def test_records_after_the_notice_wait_for_it(lane):
    x = lane(policy="spill")
    send_all(x, numbered(SLOTS + 1))
    assert x.read(0) == numbered(SLOTS + 1)
    send_all(x, [b"behind the notice"])
    assert x.outbox.ring.attached == 1
    inbox = x.inboxes[0]
    assert inbox.poll() == [] and inbox.reader.blocked  # the link was not read yet
    assert x.read(0) == [b"behind the notice"]


def test_reader_detached_again_before_it_has_read_the_notice_loses_nothing(lane):
    x = lane(policy="spill")
    expected = numbered(4 * SLOTS)
    send_all(x, expected[: SLOTS + 1])
    assert x.read(0) == expected[: SLOTS + 1]
    send_all(x, expected[SLOTS + 1 :])  # attached, filled, detached: all without a look of the reader
    assert x.outbox.statistics().detaches == 2
    assert x.read(0) == expected[SLOTS + 1 :]


def test_message_for_a_detached_reader_alone_waits_for_nobody(lane):
    x = lane(readers=2)
    x.outbox.set_policy(1, "spill")
    sent = numbered(SLOTS + 1)
    for message in sent:
        send_all(x, [message], 0b10)
        x.read(0)
    while x.outbox.try_send(b"", 0b01):
        pass
    position = x.outbox.ring.position
    send_all(x, [b"alone"], 0b10)
    assert x.outbox.ring.position == position
    assert not x.outbox.try_send(b"both", 0b11)
    assert x.read(1) == [*sent, b"alone"]


@pytest.mark.parametrize("size", [600, BIG])
def test_oversized_messages_keep_their_place_among_spilled_records(lane, size):
    x = lane(readers=2, policy="spill")
    sent = []
    for i in range(4 * SLOTS):
        message = b"%d" % i * (size if i % 50 == 10 else 1)
        send_all(x, [message], 0b11)
        sent.append(message)
        x.read(0)
    assert x.outbox.lag(1).depth_bytes == sum(map(len, sent)) + 16 * sum(len(m) > 512 for m in sent)
    assert x.read(1) == sent
    assert x.outbox.lag(1).depth_bytes == 0


def test_oversized_message_in_the_ring_whose_frame_came_before_its_spilled_header(lane):
    x = lane(policy="spill")
    send_all(x, [b"L" * BIG, *numbered(SLOTS)])
    assert x.outbox.ring.attached == 0  # the header has been moved to the link behind its own frame
    assert x.read(0) == [b"L" * BIG, *numbered(SLOTS)]


def test_reader_blocked_at_an_oversized_message_is_detached_there(lane):
    x = lane(policy="spill")
    inbox = x.inboxes[0]
    while not x.links[0].pending:
        x.links[0].send(40, 0, bytes(1 << 20))  # stuff the socket
    send_all(x, [b"a", b"L" * BIG])
    assert [m.payload for m in inbox.poll()] == [b"a"]
    assert inbox.reader.blocked and not inbox.reader.detached
    send_all(x, numbered(SLOTS))
    assert x.read(0) == [b"L" * BIG, *numbered(SLOTS)]


def test_credit_of_oversized_messages_is_not_held_by_a_spilled_reader(lane):
    x = lane(readers=2, capacity=65536, policy="spill")
    sent = [b"%d" % (i % 10) * BIG for i in range(100)]
    for message in sent:
        send_all(x, [message], 0b11)
        assert x.read(0) == [message]
    assert x.outbox.lag(1).mode == "link"
    assert x.outbox.lag(1).depth_bytes == 100 * (BIG + 16)
    assert len(os.listdir("/proc/self/fd")) < 100  # memory is kept for the laggard, not descriptors
    assert x.read(1) == sent


def test_link_holds_a_bounded_amount_and_then_sends_to_that_reader_are_refused(lane):
    x = lane(readers=2, policy="spill", spill_limit_bytes=100_000)
    sent = 0
    with pytest.raises(RingFull, match=r"reader slot 1 .*its link holds as much as it may") as caught:
        while True:
            send_all(x, [b"%500d" % sent], 0b11)
            sent += 1
            x.read(0)
    assert 100_000 - 500 < caught.value.depth_bytes <= 100_000
    assert (caught.value.slot, caught.value.mask) == (1, 0b10)
    for i in range(100):
        send_all(x, [b"%d" % i], 0b01)  # the others go on
        assert x.read(0) == [b"%d" % i]
    assert x.read(1, 10) == [b"%500d" % i for i in range(10)]
    send_all(x, [b"room again"], 0b11)
    assert x.read(1) == [*(b"%500d" % i for i in range(10, sent)), b"room again"]


def test_open_view_forbids_detaching(lane, bells):
    x = lane(policy="spill")
    send_all(x, numbered(SLOTS))
    with x.inboxes[0].view() as record:
        assert not x.outbox.try_send(b"", 1)
        assert x.outbox.ring.attached == 1
        assert bytes(record.payload) == b"0"
        assert bells[WRITER_BELL].arm([], [x.outbox.ring])
    x.inboxes[0].poll(20)
    assert os.eventfd_read(bells[WRITER_BELL].fileno()) == 1
    bells[WRITER_BELL].disarm()
    send_all(x, [b"on"])
    assert x.read(0) == [*numbered(SLOTS - 21, 21), b"on"]


def test_reads_of_a_detached_reader_are_dropped_even_when_the_bytes_still_look_good(lane):
    x = lane(policy="spill")
    send_all(x, numbered(SLOTS))
    moved = x.outbox.ring.detach(0, x.outbox.ring.position)
    assert [m.payload for m in moved] == numbered(SLOTS)
    reader = x.inboxes[0].reader
    assert reader.poll() == [] and reader.detached and reader.blocked
    assert reader.view() is None and reader.poll_payloads() == [] and reader.poll_into(bytearray(64), 2) == 0
    assert reader.position == 0
    assert not reader.ready()


@pytest.mark.parametrize("read", ["poll", "poll_payloads", "view", "step", "poll_into"])
def test_every_way_to_read_notices_that_it_is_detached(lane, read):
    x = lane(policy="spill")
    send_all(x, [b"xy"])
    x.outbox.ring.detach(0, 64)
    reader = x.inboxes[0].reader
    assert reader.ready()
    assert not getattr(reader, read)(*((bytearray(64), 2) if read == "poll_into" else ()))
    assert reader.detached and not reader.ready()


def test_garbage_behind_a_detached_reader_is_not_called_corrupt(lane):
    x = lane(policy="spill")
    send_all(x, numbered(3))
    x.outbox.ring.detach(0, 64)
    os.pwrite(x.ring.segment.fd, b"\xff" * 4096, _native.HEADER_BYTES)  # as if the bytes were reused
    assert x.inboxes[0].reader.poll() == []
    assert x.inboxes[0].reader.detached


def test_closing_ends_the_stream_of_a_detached_reader_behind_its_records(lane):
    x = lane(policy="spill")
    sent = numbered(SLOTS + 1)
    send_all(x, sent)
    x.outbox.close()
    x.outbox.close()
    assert x.read(0, 10) == sent[:10]
    assert not x.inboxes[0].finished
    assert x.read(0) == sent[10:]
    assert x.inboxes[0].finished and x.inboxes[0].closed


def test_writers_death_leaves_a_detached_reader_what_was_on_its_link(lane):
    x = lane(policy="spill")
    sent = numbered(SLOTS + 5)
    send_all(x, sent)
    x.links[0].close()
    assert x.read(0, 10) == sent[:10]
    assert x.inboxes[0].dead and not x.inboxes[0].finished
    assert x.read(0) == sent[10:]
    assert x.inboxes[0].finished


def test_writers_death_between_detaching_and_spilling_ends_the_stream_there(lane):
    x = lane(policy="spill")
    send_all(x, numbered(SLOTS))
    assert x.read(0, 3) == numbered(3)
    x.outbox.ring.detach(0, x.outbox.ring.position)
    x.links[0].close()
    assert x.read(0) == []
    assert x.inboxes[0].dead and x.inboxes[0].finished


def test_evicted_while_detached_its_slot_serves_a_new_reader(lane):
    x = lane(readers=2, policy="spill")
    for message in numbered(2 * SLOTS):
        send_all(x, [message], 0b11)
        x.read(0)
    x.outbox.evict(1)
    x.links[1].close()
    x.inboxes[1].link.close()
    assert x.admit("spill") == 1
    more = numbered(2 * SLOTS, 1000)
    for message in more:
        send_all(x, [message], 0b11)
        x.read(0)
    assert x.read(2) == more


def test_late_opened_reader_that_was_detached_before_its_first_look(lane):
    from ringcast.channels import Inbox, RingReader

    x = lane(policy="spill")
    sent = numbered(SLOTS + 1)
    send_all(x, sent)
    x.inboxes[0] = Inbox(RingReader(x.ring.segment.fd, 0, 0, None, 7), x.inboxes[0].link)
    assert x.read(0) == sent


def test_a_gap_in_the_spilled_stream_is_an_error_not_a_loss(lane):
    x = lane()
    x.links[0].send(2, 5, b"")
    with pytest.raises(LinkError, match="spilled record 5 has come, expected 0"):
        x.inboxes[0].control_frames()


@pytest.mark.parametrize(
    ("kind", "payload", "error", "what"),
    [
        (2, b"short", LinkError, "within a record's header"),
        (2, (100).to_bytes(4, "little") + bytes(12) + b"x", LinkError, "100 bytes, of which 1"),
        (4, bytes(15), LinkError, "notice of 15 bytes"),
    ],
)
def test_malformed_frames_are_errors(lane, kind, payload, error, what):
    x = lane()
    x.links[0].send(kind, 0, payload)
    with pytest.raises(error, match=what):
        x.inboxes[0].control_frames()


def test_notice_to_go_on_backwards_is_refused(lane):
    x = lane(policy="spill")
    send_all(x, numbered(SLOTS + 1))
    x.read(0)
    x.links[0].send(4, 0, bytes(16))
    with pytest.raises(RingCorrupt, match="makes no sense"):
        x.read(0)


def test_unknown_policy_is_named(lane):
    x = lane()
    with pytest.raises(ValueError, match="'drop': it must be one of wait, spill, reject"):
        x.outbox.set_policy(0, "drop")


def test_detached_reader_holding_records_is_ready_and_an_empty_one_sleeps(lane, bells):
    x = lane(policy="spill")
    send_all(x, numbered(SLOTS + 1))
    inbox = x.inboxes[0]
    assert not bells[0].arm([inbox.reader])  # unread bytes: it has to look
    assert inbox.poll() == []
    assert bells[0].arm([inbox.reader])
    bells[0].disarm()
    x.carry(0)
    assert not bells[0].arm([inbox.reader])
    assert len(inbox.poll(10)) == 10
    assert not bells[0].arm([inbox.reader])
    assert len(inbox.poll()) == SLOTS - 9
    assert bells[0].arm([inbox.reader])
