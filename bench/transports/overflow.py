"""Messages too large for the ring: our outbox and inboxes, and what a plain copy into fresh memory costs."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

from ringcast.channels import Inbox, Link, Outbox, RingReader, RingWriter, create_segment

from . import FanOutEndpoint, Peer, summarise
from .ring import EPOCH, Bells


class OverflowFanOut(FanOutEndpoint):
    """One outbox, and an inbox with a link of its own for every reader."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self.peer = peer
        self._near = near

    def open(self, readers: int, size_bytes: int) -> None:
        """Bell 0 is the writer's."""
        if self._near:
            bells = Bells.create(readers + 1)
            segment = create_segment(RingWriter.size_bytes())
            self._outbox = Outbox(RingWriter(segment.fd, bells.bells[0], epoch=EPOCH))
            pairs = [Link.pair() for _ in range(readers)]
            for bell, (ours, _) in zip(bells.bells[1:], pairs, strict=True):
                self._outbox.admit(bell, ours)
            self.peer.send(None, [*bells.fds, segment.fd, *(theirs.fileno() for _, theirs in pairs)])
            self.peer.receive()
        else:
            fds = self.peer.receive()[1]
            bells, segment_fd, links = Bells(fds[: readers + 2]), fds[readers + 2], fds[readers + 3 :]
            self._inboxes = [
                Inbox(RingReader(segment_fd, slot, 0, bells.bells[0], EPOCH), Link(fd)) for slot, fd in enumerate(links)
            ]
            self.peer.send()

    def send_all(self, payload: bytes) -> None:
        """To every reader, as one sealed memfd."""
        assert self._outbox.try_send(payload, self._outbox.ring.readers)

    def flush(self) -> None:
        """Also whatever the links could not take at once."""
        self._outbox.flush()
        for link in self._outbox.links_pending():
            link.pump()

    def pollers(self) -> list[Callable[[], int]]:
        """Each takes the view of the shared memory and drops it."""

        def poller(inbox: Inbox) -> Callable[[], int]:
            def poll() -> int:
                inbox.control_frames()
                return len(inbox.poll())

            return poll

        return [poller(inbox) for inbox in self._inboxes]

    def copy_fresh(self, size_bytes: int, batches: int) -> dict[str, float]:
        """One memcpy into memory just mapped, in pages of 4 KiB, in ns: the floor for whoever hands bytes on."""
        payload, laps = b"r" * size_bytes, []  # touched memory: zero pages would be read from the cache
        for _ in range(batches):
            with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
                memory.madvise(mmap.MADV_NOHUGEPAGE)
                start = time.perf_counter()
                memory[:] = payload
                laps.append(time.perf_counter() - start)
        return summarise(laps, 1)
