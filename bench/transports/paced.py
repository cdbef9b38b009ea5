"""A paced stream of numbered messages to several processes, one of which is going to be stopped. See `sections.slow`.

The descriptors come from the benchmark itself: a board, the bells (the writer's first), the ring, and the links.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import Final, cast

from ringcast.channels import Inbox, Link, Outbox, Policy, RingReader, RingWriter

from . import Peer
from .ring import EPOCH, Bells

TICK_S: Final = 0.001  # the writer sends what is due, then sleeps that long
BUCKET_S: Final = 0.1  # readers count per such time
_NUMBER = struct.Struct("<Q")


class PacedWriter:
    """Sends to everybody at a fixed rate, as far as the readers let it."""

    def __init__(self, peer: Peer, near: bool) -> None:
        terms, fds = peer.receive()
        policy = cast(Policy, terms)
        readers = (len(fds) - 3) // 2  # beside board, own bell and ring: a bell and a link for each
        bells = Bells(fds[: readers + 2])
        self._bell = bells.bells[0]
        self._outbox = Outbox(RingWriter(fds[readers + 2], self._bell, epoch=EPOCH))
        for bell, fd in zip(bells.bells[1:], fds[readers + 3 :], strict=True):
            self._outbox.admit(bell, Link(fd), policy)
        peer.send()

    def run(self, size_bytes: int, per_second: int, seconds: float) -> float:
        """Send that many seconds' worth of messages; the longest time in s that one had to wait."""
        outbox, ring, bell, now = self._outbox, self._outbox.ring, self._bell, time.monotonic
        filler, total, everybody = b"r" * (size_bytes - _NUMBER.size), int(per_second * seconds), ring.readers
        start, sent, longest = now(), 0, 0.0
        while sent < total:
            due = min(total, int((now() - start) * per_second))
            while sent < due:
                refused = 0.0
                while not outbox.try_send((_NUMBER.pack(sent), filler), everybody):
                    refused = refused or now()
                    bell.wait((), (ring,), (), None, 0.0)
                if refused:
                    longest = max(longest, now() - refused)
                sent += 1
            outbox.flush()
            self._pump()
            bell.wait((), (), (), TICK_S, 0.0)
        outbox.close()
        while outbox.links_pending():
            self._pump()
            bell.wait((), (), (), TICK_S, 0.0)
        return longest

    def _pump(self) -> None:
        for link in self._outbox.links_pending():
            link.pump()


class CountingReader:
    """Receives, checks the order and counts over time."""

    def __init__(self, peer: Peer, near: bool) -> None:
        slot, (*fds, segment_fd, link_fd) = peer.receive()
        assert isinstance(slot, int)
        bells = Bells(fds)
        self._bell = bells.bells[slot + 1]
        self._inbox = Inbox(RingReader(segment_fd, slot, 0, bells.bells[0], EPOCH), Link(link_fd))
        peer.send()

    def run(self) -> dict[str, object]:
        """Until the writer has closed: how many came before the first out of order, and [bucket, count] pairs."""
        inbox, bell, now = self._inbox, self._bell, time.monotonic
        expected, broken, buckets = 0, False, Counter[int]()
        sources, links = (inbox.reader,), (inbox.fileno(),)
        while not inbox.finished:
            messages = inbox.poll()
            for message in messages:
                broken = broken or _NUMBER.unpack_from(message.payload)[0] != expected
                expected += not broken
            buckets[int(now() / BUCKET_S)] += len(messages)
            if not messages and not inbox.finished and bell.wait(sources, (), links, None, 0.0):
                inbox.control_frames()
        return {"in_order": expected, "buckets": sorted(buckets.items())}
