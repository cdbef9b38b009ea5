"""Promise between processes: readers stopped in mid copy are spilled to; no record is missed, doubled or torn."""

from __future__ import annotations

import hashlib
import random
import signal
import time

from channel_kit import WRITER_BELL, Peer
from test_processes import bell_arguments, fds_of

from ringcast.channels import ALL_READERS, Link, Outbox


def payload(number):
    """Its bytes all tell its number, so that a torn one shows; some are oversized, most wander around small sizes."""
    size = 3000 if number % 997 == 0 else 200_000 if number % 4999 == 0 else number * 7 % 190
    return b"%08d" % number * (size // 8 + 1)


def test_readers_stopped_and_continued_at_random_get_every_record_in_order(ring, bells):
    count, seconds = 60_000, 20.0
    r = ring(2048, readers=0)  # small: readers are in mid copy of what the writer wants next all the time
    outbox = Outbox(r.writer)
    peers, links = [], []
    for i in range(3):
        near, far = Link.pair()
        slot = outbox.admit(bells[i], near, "spill", 1 << 30)
        arguments = bell_arguments(bells, i, WRITER_BELL)
        peers.append(
            Peer(
                "collect_all", fds_of(arguments, r.segment.fd, far.fileno()),
                inward=r.segment.fd, slot=slot, link=far.fileno(), count=count, **arguments,
            )
        )  # fmt: skip
        links.append((near, far))
    assert [peer.line() for peer in peers] == ["ready"] * 3
    for _, far in links:
        far.close()
    dice, digest = random.Random(1), hashlib.sha256()
    stopped: Peer | None = None
    deadline = time.monotonic() + seconds
    for number in range(count):
        digest.update(payload(number))
        while not outbox.try_send(payload(number), ALL_READERS):
            assert time.monotonic() < deadline
        outbox.flush()
        if number % 200 == 0:
            for link in outbox.links_pending():
                link.pump()
        if number % 500 == 0:
            if stopped is not None:
                stopped.process.send_signal(signal.SIGCONT)
            stopped = dice.choice(peers)
            stopped.process.send_signal(signal.SIGSTOP)
    assert stopped is not None
    stopped.process.send_signal(signal.SIGCONT)
    while pending := outbox.links_pending():
        for link in pending:
            link.pump()
        bells[WRITER_BELL].wait([], [], [], 0.001, 0.0)
        assert time.monotonic() < deadline + 30
    lines = [peer.line().split() for peer in peers]
    assert [line[:2] for line in lines] == [[str(count), digest.hexdigest()]] * 3
    assert [peer.end() for peer in peers] == [0, 0, 0]
    figures = outbox.statistics()
    assert figures.spilled_records == sum(int(line[2]) for line in lines) > 0
    assert figures.detaches > figures.attaches > 10
    for near, _ in links:
        near.close()
