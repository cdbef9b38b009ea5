"""How many cores the control group of this process leaves it. Affinity masks are looked at natively, at each spin.

Whoever spins asks; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from os.path import join
from typing import Final

CGROUP_ROOT: Final = "/sys/fs/cgroup"
_MEMBERSHIP: Final = "/proc/self/cgroup"


def core_quota() -> int:
    """Whole cores that the processes of our control group may use together, at least 1; 0 if there is no limit.

    Reads files: ask once, not per message.
    """
    quota = min(_quotas(), default=None)
    return 0 if quota is None else max(1, int(quota))


def _quotas() -> Iterator[float]:
    """The limits in cores of this process's groups, up to the root: cpu.max of cgroup v2, the CFS quota of v1."""
    try:
        lines = _read(_MEMBERSHIP).splitlines()
    except OSError:
        return  # no /proc, no limits to be known
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = CGROUP_ROOT
        elif "cpu" in controllers.split(","):
            folder = join(CGROUP_ROOT, controllers)
        else:
            continue
        # Inside a container the path may be the host's, while only our own group is mounted, at the root.
        parts = path.split("/")[1:]
        for depth in range(len(parts), -1, -1):
            yield from _quota_of(join(folder, *parts[:depth]))


def _quota_of(folder: str) -> Iterator[float]:
    for read in (_read_cpu_max, _read_cfs_quota):
        try:
            quota, period = read(folder)
        except (OSError, ValueError):
            continue  # not this version, or no limit ("max")
        if quota > 0 and period > 0:
            yield quota / period


def _read_cpu_max(folder: str) -> tuple[int, int]:
    quota, period = _read(join(folder, "cpu.max")).split()
    return int(quota), int(period)


def _read_cfs_quota(folder: str) -> tuple[int, int]:
    return int(_read(join(folder, "cpu.cfs_quota_us"))), int(_read(join(folder, "cpu.cfs_period_us")))


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
