"""Ours, in threads: rings with doorbells, read by polling (awake) or waiting (asleep), by one reader or by many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from ringcast.channels import Board, Doorbell, RingReader, RingWriter, Segment, create_segment

from . import Endpoint, FanOutEndpoint, Peer, summarise

EPOCH: Final = 1
NEAR, FAR = 0, 1  # slots on the board
SPIN_S: Final = 0.02  # in a stream: awake even if the other side loses its core for a while


class Bells:
    """A board and as many doorbells; made by the near side and opened from its descriptors by the far one."""

    def __init__(self, fds: list[int]) -> None:
        self.fds = fds
        self.board = Board(fds[0])
        self.bells = [Doorbell(self.board, slot, fd) for slot, fd in enumerate(fds[1:])]

    @classmethod
    def create(cls, count: int) -> Bells:
        """New ones."""
        segment = create_segment(Board.size_bytes())
        Board.create(segment.fd)
        eventfds = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(count)]
        bells = cls([os.dup(segment.fd), *eventfds])
        segment.close()
        return bells


class RingEnds:
    """A ring in each direction between two processes, and the bells of both."""

    def __init__(self, peer: Peer, near: bool) -> None:
        if near:
            bells = Bells.create(2)
            outward, inward = (create_segment(RingWriter.size_bytes()) for _ in range(2))
            peer.send(None, [*bells.fds, outward.fd, inward.fd])
        else:
            *fds, inward_fd, outward_fd = peer.receive()[1]
            bells = Bells(fds)
            outward, inward = (Segment(fd, RingWriter.size_bytes(), "shm") for fd in (outward_fd, inward_fd))
        own, other = (NEAR, FAR) if near else (FAR, NEAR)
        self.bell, other_bell = bells.bells[own], bells.bells[other]
        self.writer = RingWriter(outward.fd, self.bell, epoch=EPOCH)
        self.writer.admit(other_bell)
        peer.send()
        peer.receive()  # the other writer is open
        self.reader = RingReader(inward.fd, 0, 0, other_bell, EPOCH)


class RingEndpoint(Endpoint):
    """A ring each way. The loops are what a thread with nothing else to do would write."""

    def __init__(self, peer: Peer, near: bool) -> None:
        ends = RingEnds(peer, near)
        self.bell, self.writer, self.reader = ends.bell, ends.writer, ends.reader

    def ping(self, size_bytes: int, count: int) -> dict[str, float]:
        """Both sides poll and never sleep."""
        try_send, flush, poll, now = self.writer.try_send, self.writer.flush, self.reader.poll, time.perf_counter
        payload = b"r" * size_bytes
        laps = [0.0] * count
        for i in range(-(count // 10), count):
            start = now()
            try_send(payload, 1)
            flush()
            while not poll():
                pass
            laps[i] = now() - start
        return summarise(laps, 2)

    def bounce(self, size_bytes: int, count: int) -> None:
        """`ping` without its clock and its list of laps."""
        try_send, flush, poll = self.writer.try_send, self.writer.flush, self.reader.poll
        payload = b"r" * size_bytes
        for _ in range(count + count // 10):
            try_send(payload, 1)
            flush()
            while not poll():
                pass

    def echo(self, size_bytes: int, count: int) -> None:
        """The other side of `ping`."""
        try_send, flush, poll = self.writer.try_send, self.writer.flush, self.reader.poll
        payload = b"r" * size_bytes
        for _ in range(count + count // 10):
            while not poll():
                pass
            try_send(payload, 1)
            flush()

    def ping_asleep(self, size_bytes: int, count: int) -> dict[str, float]:
        """Both sides go to sleep at once when there is nothing to read."""
        try_send, flush, poll, wait = self.writer.try_send, self.writer.flush, self.reader.poll, self.bell.wait
        payload, sources, now = b"r" * size_bytes, (self.reader,), time.perf_counter
        laps = [0.0] * count
        for i in range(-(count // 10), count):
            start = now()
            try_send(payload, 1)
            flush()
            wait(sources, (), (), None, 0.0)
            while not poll():
                wait(sources, (), (), None, 0.0)
            laps[i] = now() - start
        return summarise(laps, 2)

    def echo_asleep(self, size_bytes: int, count: int) -> None:
        """The other side of `ping_asleep`."""
        try_send, flush, poll, wait = self.writer.try_send, self.writer.flush, self.reader.poll, self.bell.wait
        payload, sources = b"r" * size_bytes, (self.reader,)
        for _ in range(count + count // 10):
            wait(sources, (), (), None, 0.0)
            while not poll():
                wait(sources, (), (), None, 0.0)
            try_send(payload, 1)
            flush()

    def stream(self, size_bytes: int, count: int, batch: int) -> float:
        """A flush for every ``batch`` messages, which are a list of bytes; one by one if the batch is 1."""
        payload = b"r" * size_bytes
        start = time.perf_counter()
        if batch == 1:
            self._send_singly(payload, count)
        else:
            self._send_batches([payload] * batch, count // batch)
        self._take(1)
        return time.perf_counter() - start

    def drain(self, count: int) -> None:
        """Every message is copied out, into bytes of its own."""
        self._take(count)
        self._answer()

    def stream_records(self, size_bytes: int, count: int, batch: int) -> float:
        """Like `stream`, with the messages of a batch one after another in a buffer."""
        send, flush, wait, full = self.writer.send_records, self.writer.flush, self.bell.wait, (self.writer,)
        records = memoryview(b"r" * (size_bytes * batch))
        start = time.perf_counter()
        for _ in range(count // batch):
            sent = send(records, size_bytes, 1)
            while sent < batch:
                wait((), full, (), None, SPIN_S)
                sent += send(records[sent * size_bytes :], size_bytes, 1)
            flush()
        self._take(1)
        return time.perf_counter() - start

    def drain_records(self, size_bytes: int, count: int, batch: int) -> None:
        """Like `drain`, into a buffer with room for one batch."""
        poll, wait, sources = self.reader.poll_into, self.bell.wait, (self.reader,)
        buffer = bytearray(size_bytes * batch)
        while count > 0:
            taken = poll(buffer, size_bytes)
            count -= taken
            if not taken:
                wait(sources, (), (), None, SPIN_S)
        self._answer()

    def _send_singly(self, payload: bytes, count: int) -> None:
        try_send, flush, wait, full = self.writer.try_send, self.writer.flush, self.bell.wait, (self.writer,)
        for _ in range(count):
            while not try_send(payload, 1):
                wait((), full, (), None, SPIN_S)
            flush()

    def _send_batches(self, payloads: list[bytes], batches: int) -> None:
        send_many, flush, wait, full = self.writer.send_many, self.writer.flush, self.bell.wait, (self.writer,)
        for _ in range(batches):
            sent = send_many(payloads, 1)
            while sent < len(payloads):
                wait((), full, (), None, SPIN_S)
                sent += send_many(payloads[sent:], 1)
            flush()

    def _take(self, count: int) -> None:
        poll, wait, sources = self.reader.poll_payloads, self.bell.wait, (self.reader,)
        while count > 0:
            payloads = poll()
            count -= len(payloads)
            if not payloads:
                wait(sources, (), (), None, SPIN_S)

    def _answer(self) -> None:
        assert self.writer.try_send(b"done", 1)
        self.writer.flush()


class RingFanOut(FanOutEndpoint):
    """One ring, many readers, each with a bell of its own as if it were a process of its own."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self.peer = peer
        self._near = near

    def open(self, readers: int, size_bytes: int) -> None:
        """Bell 0 is the writer's."""
        if self._near:
            bells = Bells.create(readers + 1)
            segment = create_segment(RingWriter.size_bytes())
            self.writer = RingWriter(segment.fd, bells.bells[0], epoch=EPOCH)
            for bell in bells.bells[1:]:
                self.writer.admit(bell)
            self.peer.send(None, [*bells.fds, segment.fd])
            self.peer.receive()
        else:
            *fds, segment_fd = self.peer.receive()[1]
            bells = Bells(fds)
            self.readers = [RingReader(segment_fd, slot, 0, bells.bells[0], EPOCH) for slot in range(readers)]
            self.peer.send()

    def broadcast(self, size_bytes: int, batches: int, per_batch: int) -> dict[str, float]:
        """One flush a batch."""
        return self._broadcast(size_bytes, batches, per_batch, per_batch)

    def broadcast_each(self, size_bytes: int, batches: int, per_batch: int) -> dict[str, float]:
        """One flush a message."""
        return self._broadcast(size_bytes, batches, per_batch, 1)

    def _broadcast(self, size_bytes: int, batches: int, per_batch: int, per_flush: int) -> dict[str, float]:
        try_send, flush, now, payload = self.writer.try_send, self.writer.flush, time.perf_counter, b"r" * size_bytes
        mask = self.writer.readers
        laps = [0.0] * batches
        for i in range(batches):
            start = now()
            for _ in range(per_batch // per_flush):
                for _ in range(per_flush):
                    try_send(payload, mask)
                flush()
            laps[i] = now() - start
            self.peer.spin_for()
        return summarise(laps, per_batch)

    def pollers(self) -> list[Callable[[], int]]:
        """Each takes what there is."""

        def poller(reader: RingReader) -> Callable[[], int]:
            return lambda: len(reader.poll())

        return [poller(reader) for reader in self.readers]

    def count_wakes(self, readers: int, messages: int) -> list[int]:
        """For 0, 1, ... sleeping readers: eventfd writes for that many messages, as the eventfds counted them."""
        bells = Bells.create(readers + 1)
        segment = create_segment(RingWriter.size_bytes())
        writer = RingWriter(segment.fd, bells.bells[0], epoch=EPOCH)
        ends = [RingReader(segment.fd, writer.admit(bell), 0, bells.bells[0], EPOCH) for bell in bells.bells[1:]]
        writes = []
        for asleep in range(readers + 1):
            for bell, reader in zip(bells.bells[1 : asleep + 1], ends, strict=False):
                assert bell.arm([reader])
            for _ in range(messages):
                assert writer.try_send(b"wake", writer.readers)
                writer.flush()
            writes.append(sum(os.eventfd_read(fd) for fd in bells.fds[2 : asleep + 2]))
            for bell, reader in zip(bells.bells[1:], ends, strict=True):
                bell.disarm()
                reader.poll()
        return writes
