"""Promises between processes: no lost wake-up, back-pressure, kill -9 of either side, ends without the GIL."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time

import pytest
from channel_kit import EPOCH, WRITER_BELL, Peer

from ringcast.channels import ALL_READERS, Inbox, Link, Outbox, RingReader, RingWriter, create_segment, exit_with


def payload(number):
    """What the message with that number says; lengths wander around the boundaries of small rings."""
    return b"%08d" % number + bytes(number * 7 % 57)


def bell_arguments(bells, own, other):
    """The descriptors and arguments with which a peer opens its bell and one other."""
    assert bells[own] and bells[other]
    return {
        "board": bells.segment.fd,
        "own": bells.eventfds[own],
        "own_slot": own,
        "other": bells.eventfds[other],
        "other_slot": other,
    }


def fds_of(arguments, *more):
    return [arguments["board"], arguments["own"], arguments["other"], *more]


@pytest.mark.parametrize("spin_s", [0.0, 20e-6])
def test_no_wakeup_is_lost_in_a_ping_pong_of_sleeping_processes(ring, bells, spin_s):
    count = 20_000
    there, back = ring(4096), create_segment(RingWriter.size_bytes(4096))
    arguments = bell_arguments(bells, 0, WRITER_BELL)
    peer = Peer(
        "echo", fds_of(arguments, there.segment.fd, back.fd),
        inward=there.segment.fd, outward=back.fd, count=count, spin_s=spin_s, **arguments,
    )  # fmt: skip
    assert peer.line() == "ready"
    reader = RingReader(back.fd, 0, 0, bells[0], EPOCH)
    for i in range(count):
        assert there.writer.try_send(payload(i), 1)
        there.writer.flush()
        while not (messages := reader.poll()):
            bells[WRITER_BELL].wait([reader], [], [], 30.0, spin_s)
        assert [m.payload for m in messages] == [payload(i)]
    assert peer.end() == 0
    back.close()


def test_three_sleeping_readers_keep_up_with_a_writer_that_runs_full_all_the_time(ring, bells):
    count = 30_000
    r = ring(1024, readers=3)
    peers = []
    for slot in range(3):
        arguments = bell_arguments(bells, slot, WRITER_BELL)
        peers.append(
            Peer("collect", fds_of(arguments, r.segment.fd), inward=r.segment.fd, slot=slot, count=count, **arguments)
        )
    assert [peer.line() for peer in peers] == ["ready"] * 3
    digest = hashlib.sha256()
    for i in range(count):
        digest.update(payload(i))
        while not r.writer.try_send(payload(i), ALL_READERS):
            bells[WRITER_BELL].wait([], [r.writer], [], 30.0, 0.0)
        if i % 3 == 0:
            r.writer.flush()
    r.writer.flush()
    assert [peer.line() for peer in peers] == [f"{count} {digest.hexdigest()}"] * 3
    assert [peer.end() for peer in peers] == [0, 0, 0]
    assert r.writer.statistics().full_waits > 0


def test_everything_that_a_killed_writer_committed_arrives_and_then_the_stream_ends(bells):
    segment = create_segment(RingWriter.size_bytes(65536))
    near, far = Link.pair()
    arguments = bell_arguments(bells, WRITER_BELL, 0)
    peer = Peer(
        "stream", fds_of(arguments, segment.fd, far.fileno()),
        outward=segment.fd, link=far.fileno(), big_every=50, **arguments,
    )  # fmt: skip
    assert peer.line() == "ready"
    far.close()
    inbox = Inbox(RingReader(segment.fd, 0, 0, bells[WRITER_BELL], EPOCH), near)
    numbers = []
    killed = False
    while not inbox.finished:
        numbers += [int(bytes(m.payload[:8])) for m in inbox.poll()]
        inbox.control_frames()
        if len(numbers) > 2000 and not killed:
            killed = True
            assert peer.end(signal.SIGKILL) == -signal.SIGKILL
        bells[0].wait([inbox.reader], [], [] if inbox.dead else [inbox.fileno()], 10.0 if not killed else 0.01, 0.0)
    assert numbers == list(range(len(numbers)))
    assert inbox.dead and (inbox.reader.blocked or inbox.reader.position == inbox.reader.head)
    inbox.close()
    near.close()
    segment.close()


def test_killed_reader_is_evicted_and_the_other_goes_on(ring, bells):
    r = ring(1024, readers=0)
    outbox = Outbox(r.writer)
    near, far = Link.pair()
    survivor_near, survivor_far = Link.pair()
    slot = outbox.admit(bells[0], near)
    survivor = outbox.admit(bells[1], survivor_near)
    inbox = Inbox(RingReader(r.segment.fd, survivor, r.writer.position, bells[WRITER_BELL], EPOCH), survivor_far)
    arguments = bell_arguments(bells, 0, WRITER_BELL)
    peer = Peer(
        "receive_some", fds_of(arguments, r.segment.fd, far.fileno()),
        inward=r.segment.fd, link=far.fileno(), **arguments,
    )  # fmt: skip
    assert peer.line() == "ready"
    far.close()
    pidfd = os.pidfd_open(peer.process.pid)
    peer.process.send_signal(signal.SIGSTOP)
    while outbox.try_send(b"x", ALL_READERS):
        inbox.poll()
    assert bells[WRITER_BELL].wait([], [r.writer], [pidfd], 0.1, 0.0) == []  # stopped is not dead
    peer.process.send_signal(signal.SIGKILL)
    assert bells[WRITER_BELL].wait([], [r.writer], [pidfd], 30.0, 0.0) == [pidfd]
    assert peer.end() == -signal.SIGKILL
    outbox.evict(slot)
    for i in range(100):
        assert outbox.try_send(b"%d" % i, ALL_READERS)
        assert [bytes(m.payload) for m in inbox.poll()] == [b"%d" % i]
    near.receive()
    assert near.closed
    for link in (near, survivor_near, survivor_far):
        link.close()
    os.close(pidfd)


def test_exit_with_ends_a_process_that_holds_the_gil():
    sleeper = subprocess.Popen(["sleep", "60"])
    pidfd = os.pidfd_open(sleeper.pid)
    peer = Peer("hold_the_gil", [pidfd], pidfd=pidfd)
    assert peer.line() == "ready"
    time.sleep(0.2)
    assert peer.process.poll() is None
    sleeper.kill()
    sleeper.wait()
    start = time.monotonic()
    assert peer.end() == 44
    assert time.monotonic() - start < 2
    os.close(pidfd)


def test_exit_with_exits_at_once_if_the_process_has_ended_already():
    code = "import sys, time, ringcast.channels as c; c.exit_with([int(sys.argv[1])]); time.sleep(30)"
    ended = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(ended.pid)
    ended.wait()
    assert subprocess.run([sys.executable, "-c", code, str(pidfd)], pass_fds=[pidfd], timeout=20).returncode == 113
    os.close(pidfd)


def test_exit_with_names_bad_arguments():
    with pytest.raises(ValueError, match="nothing to watch"):
        exit_with([])
    with pytest.raises(ValueError, match="exit_code is 256"):
        exit_with([0], 256)
    with pytest.raises(OSError):
        exit_with([9999])
