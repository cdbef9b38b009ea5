"""Wake-ups of a uvloop: our doorbell on the loop, and the floor under it, a bare eventfd with ``add_reader``.

Both sides of a pair run a loop and sleep in it; the loops are new for every measurement.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import uvloop

from . import Endpoint, Peer, summarise
from .eventfd import exchange_eventfds
from .ring import RingEnds


def _run_with_reader(fd: int, on_readable: Callable[[], None], begin: Callable[[], None]) -> None:
    """A loop that runs until stopped."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.add_reader(fd, on_readable)
        loop.call_soon(begin)
        loop.run_forever()
        loop.remove_reader(fd)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class _LoopEndpoint(Endpoint):
    """A transport that calls `_count` for each message, on a loop that sleeps on `_fd`."""

    _fd: int
    _send: Callable[[], object]
    _on_readable: Callable[[], None]
    _before_sleep: Callable[[], object]  # on the loop

    def ping_asleep(self, size_bytes: int, count: int) -> dict[str, float]:
        """From the write to the callback, there and back."""
        send, now = self._send, time.perf_counter
        laps = [0.0] * count
        position, start = -(count // 10), 0.0

        def on_message() -> None:
            nonlocal position, start
            laps[position] = now() - start
            position += 1
            if position == count:
                asyncio.get_event_loop().stop()
                return
            start = now()
            send()

        def begin() -> None:
            nonlocal start
            self._before_sleep()
            start = now()
            send()

        self._on_message = on_message
        _run_with_reader(self._fd, self._on_readable, begin)
        return summarise(laps, 2)

    def echo_asleep(self, size_bytes: int, count: int) -> None:
        """The other side of `ping_asleep`."""
        send, left = self._send, count + count // 10

        def on_message() -> None:
            nonlocal left
            send()
            left -= 1
            if left == 0:
                asyncio.get_event_loop().stop()

        self._on_message = on_message
        _run_with_reader(self._fd, self._on_readable, self._before_sleep)


class LoopEventfd(_LoopEndpoint):
    """A bare eventfd."""

    def __init__(self, peer: Peer, near: bool) -> None:
        own, other = exchange_eventfds(peer, near, os.EFD_NONBLOCK)
        write, read = os.eventfd_write, os.eventfd_read
        self._fd = own
        self._send = lambda: write(other, 1)
        self._before_sleep = lambda: None

        def on_readable() -> None:
            read(own)
            self._on_message()

        self._on_readable = on_readable


class LoopRing(_LoopEndpoint):
    """Our doorbell: disarm, poll, answer, arm."""

    def __init__(self, peer: Peer, near: bool) -> None:
        ends = RingEnds(peer, near)
        bell, poll, sources = ends.bell, ends.reader.poll, (ends.reader,)
        try_send, flush = ends.writer.try_send, ends.writer.flush
        self._fd = bell.fileno()

        def send() -> None:
            try_send(b"ping", 1)
            flush()

        def on_readable() -> None:
            bell.disarm()
            look()

        def look() -> None:
            while True:
                for _ in poll():
                    self._on_message()
                if bell.arm(sources):
                    return  # else something has come since: no turn of the loop is needed to take it

        self._send, self._on_readable = send, on_readable
        self._before_sleep = look
        self._ends = ends
