"""What the channel tests share: a board with bells, rings with readers, and an oracle that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator

import pytest
from channel_kit import Bells, Lane, Ring
from shared_names import shared_names_of

from ringcast.channels import Policy


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


@pytest.fixture
def lane(ring: Callable[..., Ring]) -> Iterator[Callable[..., Lane]]:
    lanes: list[Lane] = []

    def make(readers: int = 1, capacity: int = 4096, policy: Policy = "wait", spill_limit_bytes: int = 1 << 26) -> Lane:
        lanes.append(Lane(ring(capacity, readers=0), [policy] * readers, spill_limit_bytes))
        return lanes[-1]

    yield make
    while lanes:
        lanes.pop().close()


def open_fds() -> set[tuple[str, str]]:
    fds = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed the folder
            fds.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return fds


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test leaves the descriptors of this process and /dev/shm as it found them."""
    names, fds = set(os.listdir("/dev/shm")), open_fds()
    yield
    gc.collect()
    deadline = time.monotonic() + 1  # a ringcast elsewhere on this machine may be between open and unlink
    while left := set(shared_names_of([os.getpid()])) - names:
        assert time.monotonic() < deadline, left
    assert open_fds() - fds == set()
