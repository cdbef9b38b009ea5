"""The leak oracle: what a test leaves behind in child processes, file descriptors and shared-memory names.

Reads /proc and /dev/shm; needs nothing but Linux. `pytest_plugin` makes a fixture of it.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ringcast.channels.name_claim import owner_of, process_start

SHM_FOLDER = "/dev/shm"
LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Resources:
    """What this process holds at a moment."""

    children: dict[tuple[int, int], str]  # (pid, start time) -> command line; children of children included
    descriptors: dict[int, str]  # number -> what it is
    names: frozenset[str]  # of shared memory of ringcast's that no living stranger owns


def resources() -> Resources:
    """What there is now."""
    return Resources(_children(), _descriptors(), _names())


def left_behind(before: Resources) -> list[str]:
    """What there is now and was not before, in words; one entry each."""
    now = resources()
    found = [f"process {key[0]}: {text}" for key, text in now.children.items() if key not in before.children]
    found += [f"descriptor {fd}: {what}" for fd, what in now.descriptors.items() if before.descriptors.get(fd) != what]
    found += [f"shared memory {name}" for name in sorted(now.names - before.names)]
    return found


@contextmanager
def no_leaks(within_s: float = 3.0) -> Iterator[None]:
    """``with no_leaks():`` raises ``AssertionError`` if something is left ``within_s`` seconds after the block."""
    gc.collect()
    before = resources()
    yield
    deadline = time.monotonic() + within_s
    while True:
        gc.collect()  # what only garbage holds is no leak
        left = left_behind(before)
        if not left:
            return
        if time.monotonic() > deadline:
            raise AssertionError("left behind:\n  " + "\n  ".join(left))
        time.sleep(LOOK_EVERY_S)


def _children() -> dict[tuple[int, int], str]:
    """All descendants, the dead that nobody has reaped included."""
    parents: dict[int, tuple[int, int]] = {}  # pid -> (parent, start time)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            parents[int(name)] = (int(fields[1]), int(fields[19]))
    found: dict[tuple[int, int], str] = {}
    generation = {os.getpid()}
    while generation:
        generation = {pid for pid, (parent, _) in parents.items() if parent in generation}
        found |= {(pid, parents[pid][1]): _command_line(pid) for pid in generation}
    return found


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip() or "(dead, not reaped)"
    except OSError:
        return "(gone)"


def _descriptors() -> dict[int, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of the listing itself
            continue
    return found


def _names() -> frozenset[str]:
    """Names of shared memory, without those of programs that live and that this process did not start."""
    try:
        entries = [entry for entry in os.listdir(SHM_FOLDER) if "ringcast" in entry]
    except OSError:
        return frozenset()
    ours = {os.getpid(), *(pid for pid, _ in _children())} if entries else set()
    return frozenset(entry for entry in entries if not _is_of_a_living_stranger(entry, ours))


def _is_of_a_living_stranger(entry: str, ours: set[int]) -> bool:
    owner = owner_of(entry)
    return owner is not None and owner.pid not in ours and process_start(owner.pid) == owner.started
