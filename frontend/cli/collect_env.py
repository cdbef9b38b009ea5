"""``ringcast collect-env``: what a report about a fault should tell of the machine. Starts nothing, asks nobody."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from .command import PREFIX

_PACKAGES = (
    "ringcast", "torch", "numpy", "tokenizers", "transformers", "safetensors", "gguf", "jinja2", "huggingface-hub",
    "fastapi", "starlette", "uvicorn", "httptools", "uvloop", "msgpack", "typer", "rich",
)  # fmt: skip
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_OTHER_VARIABLES = ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "HF_HOME", "LD_PRELOAD")


def collect_env() -> None:
    """Print it as ``name: value`` lines."""
    for name, value in facts():
        print(f"{name}: {value}")


def facts() -> Iterator[tuple[str, str]]:
    """Names and values. Of variables that may hold a secret only that they are set."""
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}, {_distribution()}"
    yield "python", f"{sys.version.split()[0]} at {sys.executable}"
    yield "processor", f"{_field('/proc/cpuinfo', 'model name')}, {len(os.sched_getaffinity(0))} cores allowed"
    yield "memory", f"{_field('/proc/meminfo', 'MemTotal')}, available {_field('/proc/meminfo', 'MemAvailable')}"
    shm = shutil.disk_usage("/dev/shm")
    yield "/dev/shm", f"{shm.total >> 20} MiB, free {shm.free >> 20} MiB"
    yield "cgroup memory limit", _first_line("/sys/fs/cgroup/memory.max")
    for package in _PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"
    for name, value in sorted(os.environ.items()):
        if name.startswith(PREFIX) or name in _OTHER_VARIABLES:
            yield name, "(set)" if any(word in name for word in _SECRETS) else value


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "none seen"
