"""How long a node may poll before it sleeps: bounded, adaptive, and not at all when processors are scarce.

A reader that polls for a moment after traffic saves its writers the system call that wakes it, and itself the way
through the kernel. But where fewer processors than processes are to be had, it would take the time of the very
process that it waits for.
"""

from __future__ import annotations

import os
from pathlib import Path

MAX_SPIN_S = 50e-6
MISSES_BEFORE_REST = 16  # fruitless spins in a row, after which the node sleeps at once until traffic is quick again


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Processors that this process may keep busy: its affinity mask, cut by the cgroup's CPU quota; at least 1."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, int(quota) // int(period)))


class SpinBudget:
    """The budget of one node. ``processes`` are those of its system that may be busy at once."""

    def __init__(self, cores: int | None = None) -> None:
        self._cores = usable_cores() if cores is None else cores
        self._misses = 0

    def seconds(self, processes: int) -> float:
        """How long to poll now."""
        if processes > self._cores or self._misses >= MISSES_BEFORE_REST:
            return 0.0
        return MAX_SPIN_S

    def missed(self) -> None:
        """A spin ended without a message."""
        self._misses += 1

    def woke_after(self, slept_s: float) -> None:
        """A message came that long after the last one: a spin would have caught it, or would not have."""
        if slept_s < MAX_SPIN_S:
            self._misses = 0
