"""How many cores the control group of this process leaves it. Affinity masks are looked at natively, at each spin.

Whoever spins asks; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


def core_quota() -> int:
    """Whole cores that the processes of our control group may use together, at least 1; 0 if there is no limit.

    Reads files: ask once, not per message.
    """
    quota = min(_quotas(), default=None)
    return 0 if quota is None else max(1, int(quota))


def _quotas() -> Iterator[float]:
    """The limits in cores of this process's groups, up to the root: cpu.max of cgroup v2, the CFS quota of v1."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return  # no /proc, no limits to be known
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = CGROUP_ROOT
        elif "cpu" in controllers.split(","):
            folder = CGROUP_ROOT / controllers
        else:
            continue
        # Inside a container the path may be the host's, while only our own group is mounted, at the root.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            yield from _quota_of(folder.joinpath(*parts[:depth]))


def _quota_of(folder: Path) -> Iterator[float]:
    for read in (_read_cpu_max, _read_cfs_quota):
        try:
            quota, period = read(folder)
        except (OSError, ValueError):
            continue  # not this version, or no limit ("max")
        if quota > 0 and period > 0:
            yield quota / period


def _read_cpu_max(folder: Path) -> tuple[int, int]:
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota), int(period)


def _read_cfs_quota(folder: Path) -> tuple[int, int]:
    return int((folder / "cpu.cfs_quota_us").read_text()), int((folder / "cpu.cfs_period_us").read_text())
