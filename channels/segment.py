"""Anonymous shared memory, handed to peers as a file descriptor. Makes the segments of boards and rings.

A name in /dev/shm lives for the microseconds between open and unlink and tells its creator; Python's resource
tracker is never involved. All memory is reserved before any mapping: a lack of it is an error here, never a SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import logging
import os
import re
from typing import Literal

import posix_ipc

from .errors import SegmentError

logger = logging.getLogger("ringcast.channels")

SHM_FOLDER = "/dev/shm"
_NAME = re.compile(r"ringcast\.(\d+)\.(\d+)\.\d+")
_serial = itertools.count()


class Segment:
    """A piece of shared memory: an owned file descriptor of ``size_bytes`` reserved bytes, all zero at first.

    ``kind`` is "shm" (POSIX shared memory, already unlinked) or "memfd". Mappings made from the descriptor outlive
    ``close()``; the kernel frees the memory with the last of them, whoever dies.
    """

    def __init__(self, fd: int, size_bytes: int, kind: Literal["shm", "memfd"]) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self.kind: Literal["shm", "memfd"] = kind

    def fileno(self) -> int:
        """The descriptor, so that a segment can stand where one is expected."""
        return self.fd

    def close(self) -> None:
        """Close the descriptor. Again is allowed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Segment(fd={self.fd}, size_bytes={self.size_bytes}, kind={self.kind!r})"


def create_segment(size_bytes: int) -> Segment:
    """A new zeroed segment: POSIX shared memory, or a memfd where /dev/shm is missing or too small (logged once).

    `SegmentError` if there is no memory to be had at all.
    """
    if size_bytes <= 0:
        raise ValueError(f"a segment of {size_bytes} bytes: the size must be positive")
    _sweep_once()
    try:
        return Segment(_open_shm(size_bytes), size_bytes, "shm")
    except (OSError, posix_ipc.Error) as error:
        shm_error = error
    try:
        segment = Segment(_open_memfd(size_bytes), size_bytes, "memfd")
    except OSError as error:
        raise SegmentError(
            f"no shared memory for a segment of {size_bytes} bytes: {SHM_FOLDER} says {shm_error}; "
            f"memfd says {error}. Free memory, raise the container's memory limit, "
            f"or enlarge {SHM_FOLDER} (docker run --shm-size=1g)"
        ) from error
    _warn_once()
    return segment


def remove_stale_names() -> int:
    """Unlink the names that a process killed between open and unlink left behind; returns how many.

    A name of a living creator stays. Should one be removed all the same (a creator in another pid namespace), its
    creator does not notice: it holds the descriptor already.
    """
    try:
        names = os.listdir(SHM_FOLDER)
    except OSError:
        return 0  # no /dev/shm: no names
    removed = 0
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or _start_time(int(match[1])) == int(match[2]):
            continue
        try:
            os.unlink(os.path.join(SHM_FOLDER, name))
            removed += 1
        except (FileNotFoundError, PermissionError):
            pass  # another process was faster, or it is another user's to remove
    return removed


@functools.cache
def _sweep_once() -> None:
    remove_stale_names()


@functools.cache
def _warn_once() -> None:
    logger.warning(
        "%s is missing or too small: shared memory comes from memfd instead (docker run --shm-size=1g enlarges it)",
        SHM_FOLDER,
    )


def _open_shm(size_bytes: int) -> int:
    name = f"/ringcast.{os.getpid()}.{_start_time(os.getpid())}.{next(_serial)}"
    memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
    fd: int = memory.fd
    try:
        with contextlib.suppress(posix_ipc.ExistentialError):  # swept by a process in another pid namespace
            posix_ipc.unlink_shared_memory(name)
        _reserve(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_memfd(size_bytes: int) -> int:
    fd = os.memfd_create("ringcast", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _reserve(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _reserve(fd: int, size_bytes: int) -> None:
    """Size and back the file. ftruncate would only promise the pages: the first touch could then be a SIGBUS."""
    while True:
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return
        except OSError as error:
            if error.errno != errno.EINTR:
                raise


def _start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot (proc(5), stat field 22); -1 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return -1
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
