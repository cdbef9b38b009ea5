"""What this machine has: processors, instruction sets, memory left. Reads /proc and cgroup files; imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# A cgroup without a limit reports either "max" (v2) or a number near 2**63 (v1).
_NO_LIMIT = 1 << 60


def cpu_flags(proc: Path = _PROC) -> frozenset[str]:
    """Feature flags of the first processor, as the kernel spells them ("avx512_bf16", "amx_bf16", "bf16")."""
    for line in (proc / "cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def has_fast_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 in hardware (AVX-512-BF16, AMX or Arm's bf16)."""
    return not cpu_flags().isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


def usable_cpus(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Processors that this process may run on, at least 1: its affinity mask, cut by a cgroup CPU quota."""
    count = len(os.sched_getaffinity(0))
    for folder in _cgroup_folders("cpu", proc, cgroup):
        quota = _cpu_quota(folder)
        if quota is not None:
            count = min(count, max(1, int(quota)))
    return max(1, count)


def available_memory(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes that can be allocated now without swapping: MemAvailable, cut by what every cgroup above us has left."""
    available = _meminfo_available(proc)
    for folder in _cgroup_folders("memory", proc, cgroup):
        left = _memory_left(folder)
        if left is not None:
            available = min(available, left)
    return max(0, available)


def _meminfo_available(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc}/meminfo has no MemAvailable line: a Linux kernel of 3.14 or later is needed")


def _cgroup_folders(controller: str, proc: Path, cgroup: Path) -> Iterator[Path]:
    """This process's cgroup and all its ancestors, as far as they are visible, for v1 and v2 alike."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            root = cgroup
        elif controller in controllers.split(","):
            root = cgroup / controller
        else:
            continue
        folder = root / group.lstrip("/")
        # In a container the path may belong to the host's hierarchy; then only the mount's root is visible.
        while folder != root:
            if folder.is_dir():
                yield folder
            folder = folder.parent
        yield root


def _memory_left(folder: Path) -> int | None:
    limit = _read_int(folder / "memory.max", folder / "memory.limit_in_bytes")
    used = _read_int(folder / "memory.current", folder / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    # The page cache counts as used but is given back under pressure, which is what MemAvailable means too.
    return limit - used + _inactive_file(folder)


def _inactive_file(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", "0")))


def _cpu_quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        v1_quota = _read_int(folder / "cpu.cfs_quota_us")
        v1_period = _read_int(folder / "cpu.cfs_period_us")
        if v1_quota is None or v1_period is None or v1_quota <= 0 or v1_period <= 0:
            return None
        return v1_quota / v1_period


def _read_int(*candidates: Path) -> int | None:
    """The first of these files that holds a number; None if none does ("max", missing, unreadable)."""
    for path in candidates:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            continue
    return None
