"""The ways to send bytes between two processes that the channel benchmark compares, each in a module of its own.

An `Endpoint` is one end, in a process of its own; the generic loops here are what a user would write with `send` and
`receive`. A module imports its library only, so that a missing peer harms nobody else.
"""

from __future__ import annotations

import json
import socket
import time
from abc import ABC
from collections.abc import Callable, Sequence

_MAX_PACKET_BYTES = 64 * 1024
_MAX_FDS = 64


class Peer:
    """A socket to the other end's process: set-up data, descriptors, and acknowledgements outside the transport."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, value: object = None, fds: Sequence[int] = ()) -> None:
        """Send what JSON can say, and descriptors."""
        socket.send_fds(self._socket, [json.dumps(value).encode()], fds)

    def receive(self) -> tuple[object, list[int]]:
        """The next thing sent."""
        data, fds, _, _ = socket.recv_fds(self._socket, _MAX_PACKET_BYTES, _MAX_FDS)
        if not data:
            raise ConnectionError("the other end's process has gone")
        return json.loads(data), fds

    def spin_for(self) -> None:
        """Receive and drop, without going to sleep: a writer measured right after must not pay for waking up."""
        self._socket.setblocking(False)
        try:
            while True:
                try:
                    if not self._socket.recv(_MAX_PACKET_BYTES):
                        raise ConnectionError("the other end's process has gone")
                    return
                except BlockingIOError:
                    continue
        finally:
            self._socket.setblocking(True)


def summarise(laps_s: list[float], per_lap: float) -> dict[str, float]:
    """Median and 99th percentile of laps in nanoseconds, divided by ``per_lap``."""
    laps_s.sort()
    factor = 1e9 / per_lap
    return {
        "p50": laps_s[len(laps_s) // 2] * factor,
        "p99": laps_s[min(len(laps_s) - 1, len(laps_s) * 99 // 100)] * factor,
    }


class Endpoint(ABC):
    """One end of a two-way connection. Whoever calls `ping` or `stream` needs the other end in `echo` or `drain`."""

    send: Callable[[bytes], object]
    receive: Callable[[], object]  # waits; the message copied out

    def ping(self, size_bytes: int, count: int) -> dict[str, float]:
        """One-way latency in ns, as half a round trip: p50 and p99. A tenth more is sent first, to warm up."""
        send, receive, now = self.send, self.receive, time.perf_counter
        payload = b"r" * size_bytes
        laps = [0.0] * count
        for _ in range(count // 10):
            send(payload)
            receive()
        for i in range(count):
            start = now()
            send(payload)
            receive()
            laps[i] = now() - start
        return summarise(laps, 2)

    def bounce(self, size_bytes: int, count: int) -> None:
        """As many round trips as `ping`, without its clock and its list of laps: to count system calls."""
        send, receive = self.send, self.receive
        payload = b"r" * size_bytes
        for _ in range(count + count // 10):
            send(payload)
            receive()

    def echo(self, size_bytes: int, count: int) -> None:
        """Send back what `ping` sends."""
        send, receive = self.send, self.receive
        payload = b"r" * size_bytes
        for _ in range(count + count // 10):
            receive()
            send(payload)

    def stream(self, size_bytes: int, count: int, batch: int) -> float:
        """Send without waiting for answers; seconds until the other end has taken the last. Batches if it has any."""
        send, payload = self.send, b"r" * size_bytes
        start = time.perf_counter()
        for _ in range(count):
            send(payload)
        self.receive()
        return time.perf_counter() - start

    def drain(self, count: int) -> None:
        """Take what `stream` sends, and say so."""
        receive = self.receive
        for _ in range(count):
            receive()
        self.send(b"done")


class FanOutEndpoint(ABC):
    """One writer, several readers that one process polls in turn."""

    peer: Peer
    send_all: Callable[[bytes], object]  # one message to all readers

    def open(self, readers: int, size_bytes: int) -> None:
        """Connect that many readers for messages of up to that size, on both sides at once."""
        raise NotImplementedError

    def broadcast(self, size_bytes: int, batches: int, per_batch: int) -> dict[str, float]:
        """The writer's time a message in ns, median over batches; readers catch up between batches, unmeasured."""
        payload, now = b"r" * size_bytes, time.perf_counter
        send, flush = self.send_all, self.flush
        laps = [0.0] * batches
        for i in range(batches):
            start = now()
            for _ in range(per_batch):
                send(payload)
            flush()
            laps[i] = now() - start
            self.peer.spin_for()
        return summarise(laps, per_batch)

    def collect(self, batches: int, per_batch: int) -> None:
        """Take what `broadcast` sends, on every reader."""
        polls = self.pollers()
        for _ in range(batches):
            left = [per_batch] * len(polls)
            while any(left):
                for i, poll in enumerate(polls):
                    if left[i]:
                        left[i] -= poll()
            self.peer.send()

    def flush(self) -> object:
        """After a batch: nothing, for transports that send at once."""
        return None

    def pollers(self) -> list[Callable[[], int]]:
        """One a reader: takes messages, copied out, and returns how many; 0 at once if there is none."""
        raise NotImplementedError
