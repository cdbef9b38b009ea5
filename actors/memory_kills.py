"""How many processes the kernel has killed for want of memory: whether a SIGKILL came from there or from a person.

Used by `process_host` when a child starts and when one was killed by SIGKILL.
"""

from __future__ import annotations

from collections.abc import Iterator

_MACHINE_COUNTER = "/proc/vmstat"


def num_memory_kills(proc_cgroup: str = "/proc/self/cgroup", cgroup_mount: str = "/sys/fs/cgroup") -> int | None:
    """Out-of-memory kills so far: of our control group, else of the whole machine; None if no counter can be read.

    The kernel counts the victims of every kind of out-of-memory kill in their own control group, so that a kill
    elsewhere on the machine does not show there.
    """
    for path in (*_group_counters(proc_cgroup, cgroup_mount), _MACHINE_COUNTER):
        try:
            with open(path) as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _group_counters(proc_cgroup: str, cgroup_mount: str) -> Iterator[str]:
    """The files that may hold our control group's counter, the best first.

    A container often mounts its own group as the root of the hierarchy, while its path is the host's.
    """
    try:
        with open(proc_cgroup) as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield f"{cgroup_mount}/memory{path}/memory.oom_control"
            yield f"{cgroup_mount}/memory/memory.oom_control"
        elif number == "0" and not controllers:
            yield f"{cgroup_mount}{path}/memory.events"
            yield f"{cgroup_mount}/memory.events"
