"""Counts what the kernel did for a process: switches and CPU time from /proc, system calls from a log of strace."""

from __future__ import annotations

import os
import re
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)[( ]")
_MARK = "getpgid"  # nobody calls it otherwise


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Sums over all threads of a process since they began."""

    switches: int  # times that any of them gave its core up or lost it
    cpu_s: float


def thread_times(pid: int) -> ThreadTimes:
    """Of a running process. ``FileNotFoundError`` if there is none."""
    switches, cpu_ns = 0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith(("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")):
                switches += int(line.split()[1])
        cpu_ns += int((task / "schedstat").read_text().split()[0])
    return ThreadTimes(switches, cpu_ns * 1e-9)


def counted(call: Callable[[], Any]) -> dict[str, int]:
    """Run something in this process: how often it went to sleep. Marks beginning and end in a log of strace."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    os.getpgid(0)
    call()
    os.getpgid(0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "voluntary": after.ru_nvcsw - before.ru_nvcsw,
        "involuntary": after.ru_nivcsw - before.ru_nivcsw,
    }


@dataclass(frozen=True, slots=True)
class SystemCalls:
    """What a process asked of the kernel between two marks."""

    by_name: dict[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_name.values())

    @classmethod
    def from_log(cls, log: Path) -> SystemCalls:
        """Between the first two marks that `counted` left, by any thread."""
        marks, names = 0, Counter[str]()
        for line in log.read_text(errors="replace").splitlines():
            found = _CALL.match(line)
            if found is None or "<... " in line:  # a signal or an exit, or the second half of a call
                continue
            if found[2] == _MARK:
                marks += 1
            elif marks == 1:
                names[found[2]] += 1
        if marks != 2:
            raise ValueError(f"{log.name}: {marks} marks in strace's log where two were expected")
        return cls(dict(names.most_common()))

    def __str__(self) -> str:
        names = ", ".join(f"{name} {count:,}" for name, count in list(self.by_name.items())[:3])
        return f"{self.total:,} ({names})" if names else "0"
