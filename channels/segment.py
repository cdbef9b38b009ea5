"""Anonymous shared memory, handed to peers as a file descriptor. Makes the segments of boards and rings.

A segment never has a name, and Python's resource tracker is never involved: whoever is killed, and when, nothing is
left. All memory is reserved before any mapping: a lack of it is an error here, never a SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
from typing import Literal

from .errors import SegmentError

logger = logging.getLogger("ringcast.channels")

SHM_FOLDER = "/dev/shm"


class Segment:
    """A piece of shared memory: an owned file descriptor of ``size_bytes`` reserved bytes, all zero at first.

    ``kind`` is "shm" (a file without a name in /dev/shm) or "memfd". Mappings made from the descriptor outlive
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
    """A new zeroed segment: a file in /dev/shm, or a memfd where /dev/shm is missing or too small (logged once).

    `SegmentError` if there is no memory to be had at all.
    """
    if size_bytes <= 0:
        raise ValueError(f"a segment of {size_bytes} bytes: the size must be positive")
    try:
        return Segment(_open_shm(size_bytes), size_bytes, "shm")
    except OSError as error:
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


@functools.cache
def _warn_once() -> None:
    logger.warning(
        "%s is missing or too small: shared memory comes from memfd instead (docker run --shm-size=1g enlarges it)",
        SHM_FOLDER,
    )


def _open_shm(size_bytes: int) -> int:
    """A file of /dev/shm that has never had a name, so that no kill can leave one behind."""
    fd = os.open(SHM_FOLDER, os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
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
