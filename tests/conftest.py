"""Fixtures for every layer: nothing that a test starts may be left behind."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import psutil
import pytest


def _ours_in_shm() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "ringcast" in name} if os.path.isdir("/dev/shm") else set()


def _open_fds() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


@pytest.fixture
def leak_oracle() -> Iterator[None]:
    """Afterwards: no child process, no file descriptor and no shared-memory name more than before."""
    gc.collect()
    children = set(psutil.Process().children(recursive=True))
    fds = _open_fds()
    names = _ours_in_shm()
    yield
    deadline = time.monotonic() + 3.0
    while True:
        gc.collect()
        left_children = set(psutil.Process().children(recursive=True)) - children
        left_fds = {fd: target for fd, target in _open_fds().items() if fds.get(fd) != target}
        left_names = _ours_in_shm() - names
        if not (left_children or left_fds or left_names):
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: processes {left_children}, descriptors {left_fds}, names {left_names}")
        time.sleep(0.05)
