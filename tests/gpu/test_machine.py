"""Memory and processors are read from the files that containers limit them by."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringcast.gpu.machine import available_memory, cpu_flags, usable_cpus

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A /proc with 16 GiB available, and a place for cgroup files."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {16 * GIB // 1024} kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/a/b\n")
    (tmp_path / "cgroup" / "a" / "b").mkdir(parents=True)
    return tmp_path


def memory(machine: Path) -> int:
    return available_memory(machine / "proc", machine / "cgroup")


def test_without_a_limit_it_is_what_the_kernel_says(machine: Path) -> None:
    assert memory(machine) == 16 * GIB
    (machine / "cgroup" / "a" / "memory.max").write_text("max\n")
    (machine / "cgroup" / "a" / "memory.current").write_text("5\n")
    assert memory(machine) == 16 * GIB


def test_a_limit_of_any_ancestor_counts(machine: Path) -> None:
    (machine / "cgroup" / "a" / "memory.max").write_text(f"{6 * GIB}\n")
    (machine / "cgroup" / "a" / "memory.current").write_text(f"{2 * GIB}\n")
    assert memory(machine) == 4 * GIB
    # Page cache that can be dropped is not lost.
    (machine / "cgroup" / "a" / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    assert memory(machine) == 5 * GIB


def test_version_1_cgroups_are_understood(machine: Path) -> None:
    (machine / "proc" / "self" / "cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/job\n")
    folder = machine / "cgroup" / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{4 * GIB}\n")
    assert memory(machine) == 0
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory(machine) == 16 * GIB


def test_a_cpu_quota_limits_the_processors(machine: Path) -> None:
    def cpus() -> int:
        return usable_cpus(machine / "proc", machine / "cgroup")

    here = len(os.sched_getaffinity(0))
    assert cpus() == here
    (machine / "cgroup" / "cpu.max").write_text("max 100000\n")
    assert cpus() == here
    (machine / "cgroup" / "a" / "b" / "cpu.max").write_text("150000 100000\n")
    assert cpus() == 1
    (machine / "cgroup" / "a" / "b" / "cpu.max").write_text("20000 100000\n")
    assert cpus() == 1


def test_this_machine_can_be_read() -> None:
    assert 0 < available_memory() < 1 << 50
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
    assert cpu_flags()
