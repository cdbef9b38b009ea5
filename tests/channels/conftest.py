"""What the channel tests share: a board with bells, rings with readers, and an oracle that nothing is left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import pytest

from ringcast.channels import Board, Doorbell, RingReader, RingWriter, create_segment

WRITER_BELL = 63  # the board slot of every writer under test; reader i has slot i


class Bells:
    """A board and the doorbells on it, each with the eventfd that other processes would be given."""

    def __init__(self) -> None:
        self.segment = create_segment(Board.size_bytes())
        self.board = Board(self.segment.fd)
        self.eventfds: dict[int, int] = {}
        self._bells: dict[int, Doorbell] = {}

    def __getitem__(self, slot: int) -> Doorbell:
        if slot not in self._bells:
            self.eventfds[slot] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._bells[slot] = Doorbell(self.board, slot, self.eventfds[slot])
        return self._bells[slot]

    def close(self) -> None:
        for fd in self.eventfds.values():
            os.close(fd)
        self._bells.clear()
        self.segment.close()


class Ring:
    """A writer and as many readers, all in this process."""

    def __init__(self, bells: Bells, capacity: int, readers: int) -> None:
        self.bells = bells
        self.segment = create_segment(RingWriter.size_bytes(capacity))
        self.writer = RingWriter(self.segment.fd, bells[WRITER_BELL], epoch=7)
        self.readers = [self.admit() for _ in range(readers)]

    def admit(self) -> RingReader:
        free = ~self.writer.readers
        slot = self.writer.admit(self.bells[(free & -free).bit_length() - 1])
        return RingReader(self.segment.fd, slot, self.writer.position, self.bells[WRITER_BELL], 7)


@pytest.fixture
def bells(nothing_left: None) -> Iterator[Bells]:
    bells = Bells()
    yield bells
    bells.close()


@pytest.fixture
def ring(bells: Bells) -> Iterator[Callable[..., Ring]]:
    rings: list[Ring] = []

    def make(capacity: int = 4096, readers: int = 1) -> Ring:
        rings.append(Ring(bells, capacity, readers))
        return rings[-1]

    yield make
    while rings:
        rings.pop().segment.close()


def open_fds() -> set[tuple[str, str]]:
    fds = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            fds.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            pass  # the one that listed the folder
    return fds


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test leaves the descriptors of this process and /dev/shm as it found them."""
    names, fds = set(os.listdir("/dev/shm")), open_fds()
    yield
    gc.collect()
    assert {n for n in os.listdir("/dev/shm") if n.startswith("ringcast.")} <= names
    assert open_fds() - fds == set()
