"""Promises of the blocking ends: None waits for ever, a time-out says for whom, and waiting never stops the reading."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from channel_kit import EPOCH, WRITER_BELL, Peer, Ring
from test_processes import bell_arguments, fds_of

from ringcast.channels import EndOfRing, Inbox, Link, Outbox, PeerDead, Receiver, RingFull, RingReader, Sender
from ringcast.channels.overflow import STREAM_LIMIT_BYTES


@pytest.fixture
def receiver(bells):
    return lambda x, i=0: Receiver(x.inboxes[i], bells[i], spin_s=0.0)


@pytest.fixture
def sender(bells):
    return lambda x, **more: Sender(x.outbox, bells[WRITER_BELL], spin_s=0.0, **more)


def in_thread(call):
    """Start it; returns (thread, list that will hold its result)."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_read_without_timeout_waits_until_there_is_a_message(lane, receiver, sender):
    x = lane()
    thread, results = in_thread(receiver(x).read)
    thread.join(0.3)
    assert thread.is_alive()
    sender(x).send(b"at last", 1, 5)
    thread.join(10)
    assert [tuple(m) for m in results] == [(5, b"at last")]


def test_read_times_out(lane, receiver):
    x = lane()
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no message within 0\.05 s"):
        receiver(x).read(0.05)
    assert time.monotonic() - start >= 0.05
    x.outbox.try_send(b"x", 1)
    assert receiver(x).read(0).payload == b"x"


def test_iteration_gives_every_message_of_every_kind_and_ends_with_the_ring(lane, receiver, sender):
    x = lane(policy="spill")
    sent = [b"%d" % i * (600 if i % 40 == 5 else STREAM_LIMIT_BYTES if i == 50 else 3) for i in range(200)]
    to, seen = sender(x), []
    thread, _ = in_thread(lambda: seen.extend(bytes(m.payload) for m in receiver(x)))
    for message in sent:
        to.send(message, 1)
    x.outbox.close()
    to.finish(10)
    thread.join(10)
    assert seen == sent
    with pytest.raises(EndOfRing, match=f"epoch {EPOCH} was closed"):
        receiver(x).read(0)


def test_view_waits_too_and_lies_in_the_ring(lane, receiver):
    x = lane()
    with pytest.raises(TimeoutError):
        receiver(x).view(0.01)
    thread, results = in_thread(receiver(x).view)
    x.outbox.try_send(b"in place", 1)
    x.outbox.flush()
    thread.join(10)
    with results[0] as record:
        assert bytes(record.payload) == b"in place"
        assert x.outbox.ring.lag(0) == 64
    assert x.outbox.ring.lag(0) == 0


def test_messages_read_in_advance_come_before_those_polled_later(lane, receiver):
    x = lane()
    x.outbox.send_many([b"a", b"b", b"c", b"d"], 1)
    r = receiver(x)
    assert r.read().payload == b"a"
    assert [m.payload for m in r.poll(2)] == [b"b", b"c"]
    with r.view() as record:
        assert bytes(record.payload) == b"d"
    assert r.poll() == []


def test_peer_dead_is_raised_after_everything_was_read_and_names_the_epoch(lane, receiver):
    x = lane()
    x.outbox.send_many([b"a", b"b"], 1)
    x.links[0].send(40, 9, b"owner's")
    x.links[0].close()
    r = receiver(x)
    assert [r.read().payload, r.read().payload] == [b"a", b"b"]
    with pytest.raises(PeerDead, match=rf"epoch {EPOCH} \(board slot {WRITER_BELL}\) is dead") as caught:
        r.read()
    assert caught.value.epoch == EPOCH
    with pytest.raises(PeerDead):
        list(r)
    assert [f.payload for f in r.frames] == [b"owner's"]


def test_pidfd_proves_the_death_of_a_writer_whose_link_stays_open(ring, bells):
    r = ring(4096, readers=0)
    near, far = Link.pair()
    arguments = bell_arguments(bells, WRITER_BELL, 0)
    from ringcast.channels import RingWriter, create_segment

    segment = create_segment(RingWriter.size_bytes(4096))
    peer = Peer(
        "stream", fds_of(arguments, segment.fd, far.fileno()),
        outward=segment.fd, link=far.fileno(), big_every=1 << 30, **arguments,
    )  # fmt: skip
    assert peer.line() == "ready"
    pidfd = os.pidfd_open(peer.process.pid)
    receiver = Receiver(
        Inbox(RingReader(segment.fd, 0, 0, bells[WRITER_BELL], EPOCH), near), bells[0], pidfd=pidfd, spin_s=0.0
    )
    numbers = [int(bytes(receiver.read(10).payload[:8])) for _ in range(500)]
    assert peer.end(signal.SIGKILL) == -signal.SIGKILL  # far is open here still: no EOF
    with pytest.raises(PeerDead):
        while True:
            numbers.append(int(bytes(receiver.read(10).payload[:8])))
    assert numbers == list(range(len(numbers)))
    assert not near.eof
    receiver.inbox.close()
    near.close()
    far.close()
    os.close(pidfd)
    segment.close()
    del r


def test_send_without_timeout_waits_until_the_reader_makes_room(lane, sender):
    x = lane(capacity=1024)
    while x.outbox.try_send(b"", 1):
        pass
    thread, results = in_thread(lambda: sender(x).send(b"waited", 1))
    thread.join(0.3)
    assert thread.is_alive()
    x.inboxes[0].poll()
    thread.join(10)
    assert results == [None]
    assert [m.payload for m in x.inboxes[0].poll()] == [b"waited"]


def test_send_times_out_naming_the_laggard_and_sends_nothing(lane, sender):
    x = lane(readers=2, capacity=1024)
    while x.outbox.try_send(b"", 0b11):
        x.read(0)
    with pytest.raises(TimeoutError, match=r"no space within 0\.02 s: the writer of the ring of .*slot 1 is 1024"):
        sender(x).send(b"late", 0b11, timeout_s=0.02)
    assert x.read(0) == []
    assert set(x.read(1)) == {b""}


def test_send_is_refused_by_a_rejecting_reader_at_once(lane, sender):
    x = lane(capacity=1024, policy="reject")
    while True:
        try:
            sender(x).send(b"", 1)
        except RingFull:
            break
    assert len(x.read(0)) == 16


def test_two_full_rings_that_face_each_other_do_not_stand_still(bells):
    """Each side sends far more than a ring holds before it reads at leisure: it must read while it waits."""
    count = 3000
    there, back = Ring(bells, 1024, 0), Ring(bells, 1024, 0)
    (a, a_far), (b, b_far) = Link.pair(), Link.pair()
    sides = []
    for ring, bell, link, other_bell, reader_link in (
        (there, WRITER_BELL, a, 0, b_far), (back, 0, b, WRITER_BELL, a_far),
    ):  # fmt: skip
        sides.append([ring, bell, link, other_bell, reader_link])
    outboxes = {}
    for ring, bell, link, other_bell, _ in sides:
        outboxes[bell] = Outbox(ring.writer)
        outboxes[bell].admit(bells[other_bell], link)
    got = {WRITER_BELL: [], 0: []}

    def run(bell, inward, inward_link):
        inbox = Inbox(RingReader(inward.segment.fd, 0, 0, bells[0 if bell else WRITER_BELL], EPOCH), inward_link)

        def drain():
            inbox.control_frames()
            got[bell].extend(bytes(m.payload) for m in inbox.poll())

        to = Sender(outboxes[bell], bells[bell], inboxes=[inbox], drain=drain, spin_s=0.0)
        for i in range(count):
            to.send(b"%d" % i, 1, timeout_s=30)
        while len(got[bell]) < count:
            drain()
        return inbox

    threads = [
        in_thread(lambda: run(WRITER_BELL, back, b_far)),
        in_thread(lambda: run(0, there, a_far)),
    ]
    for thread, _ in threads:
        thread.join(60)
    assert got == {bell: [b"%d" % i for i in range(count)] for bell in (0, WRITER_BELL)}
    for link in (a, a_far, b, b_far):
        link.close()
    for ring in (there, back):
        ring.segment.close()


def test_inboxes_without_drain_are_refused(lane, bells):
    x = lane()
    with pytest.raises(ValueError, match="drain"):
        Sender(x.outbox, bells[WRITER_BELL], inboxes=x.inboxes)


def test_waiting_send_pumps_its_links_and_finish_waits_for_them(lane, sender, bells):
    x = lane(readers=2, capacity=1024, policy="wait")
    x.outbox.set_policy(1, "spill")
    sent = [b"%d" % i * 30 for i in range(3000)]
    to = sender(x)
    thread, _ = in_thread(lambda: [to.send(message, 0b11) for message in sent])
    first, second = [], []
    while len(first) < len(sent):
        bells[0].wait([x.inboxes[0].reader], [], [], 0.1, 0.0)
        first += [m.payload for m in x.inboxes[0].poll()]
    thread.join(10)
    with pytest.raises(TimeoutError, match="bytes are left on the links"):
        to.finish(0.01)
    thread, results = in_thread(lambda: to.finish())
    while len(second) < len(sent):
        x.inboxes[1].control_frames()
        second += [m.payload for m in x.inboxes[1].poll()]
    thread.join(10)
    assert results == [None] and first == second == sent


def test_signal_handler_that_raises_ends_a_wait(lane, receiver):
    def interrupt(*_):
        raise KeyboardInterrupt

    x = lane()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            receiver(x).read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
