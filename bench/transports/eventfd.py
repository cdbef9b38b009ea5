"""The floor under every wake-up: two processes that wake each other with eventfds and exchange nothing else."""

from __future__ import annotations

import os
import select
import time

from . import Endpoint, Peer, summarise


class EventfdEndpoint(Endpoint):
    """A blocking read: one system call to wake, one to sleep. Nothing that sleeps on more than one thing is faster."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self._own, self._other = exchange_eventfds(peer, near, 0)

    def ping_asleep(self, size_bytes: int, count: int) -> dict[str, float]:
        """Both sides sleep in read(2)."""
        own, other, write, read, now = self._own, self._other, os.eventfd_write, os.eventfd_read, time.perf_counter
        laps = [0.0] * count
        for i in range(-(count // 10), count):
            start = now()
            write(other, 1)
            read(own)
            laps[i] = now() - start
        return summarise(laps, 2)

    def echo_asleep(self, size_bytes: int, count: int) -> None:
        """The other side of `ping_asleep`."""
        own, other, write, read = self._own, self._other, os.eventfd_write, os.eventfd_read
        for _ in range(count + count // 10):
            read(own)
            write(other, 1)


class PolledEventfdEndpoint(Endpoint):
    """poll(2), then read: what whoever also watches a link or a pidfd cannot do without."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self._own, self._other = exchange_eventfds(peer, near, os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._own, select.POLLIN)

    def ping_asleep(self, size_bytes: int, count: int) -> dict[str, float]:
        """Both sides sleep in poll(2)."""
        own, other, write, read, now = self._own, self._other, os.eventfd_write, os.eventfd_read, time.perf_counter
        poll = self._poller.poll
        laps = [0.0] * count
        for i in range(-(count // 10), count):
            start = now()
            write(other, 1)
            poll()
            read(own)
            laps[i] = now() - start
        return summarise(laps, 2)

    def echo_asleep(self, size_bytes: int, count: int) -> None:
        """The other side of `ping_asleep`."""
        own, other, write, read, poll = self._own, self._other, os.eventfd_write, os.eventfd_read, self._poller.poll
        for _ in range(count + count // 10):
            poll()
            read(own)
            write(other, 1)


def exchange_eventfds(peer: Peer, near: bool, flags: int) -> tuple[int, int]:
    """Two eventfds: our own, to read, and the other side's, to write."""
    if near:
        fds = [os.eventfd(0, os.EFD_CLOEXEC | flags) for _ in range(2)]
        peer.send(None, fds)
        return fds[0], fds[1]
    other, own = peer.receive()[1]
    return own, other
