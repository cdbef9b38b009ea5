"""A name that one living process owns: a segment in /dev/shm that says where its owner listens.

Whoever holds the lock on the segment owns the name. The kernel drops the lock when its owner dies, so whoever gets
the lock of an existing name has the proof that the owner is dead, and removes it. No other name is ever touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import struct
from dataclasses import asdict, dataclass
from functools import cache
from typing import Final

from .errors import NameMismatch, NameRefused, NameTaken, NameUnknown

FORMAT: Final = 1  # of the segment
SHM_FOLDER: Final = "/dev/shm"
MAX_NAME: Final = 100  # characters

_MAGIC: Final = b"RINGNAME"
_HEADER = struct.Struct("<8sII")  # magic, format, bytes of the record that follows
_SEGMENT_BYTES: Final = 4096
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class NameRecord:
    """What the segment says, as JSON."""

    version: str  # of ringcast
    pid: int  # of the owner
    started: int  # when the owner started, in clock ticks since the machine did: pids are used again
    address: str  # of its socket, in the abstract namespace: it vanishes with the owner
    token: str  # 128 random bits: only who could read the segment knows them


class NameClaim:
    """The ownership of a name, until `release` or the death of this process.

    ``NameClaim(kind, name)`` removes the name of a dead owner. `NameTaken` if its owner lives, `NameRefused` if another
    user made it, ``ValueError`` if it is no name. A process made by fork owns nothing.
    """

    def __init__(self, kind: str, name: str) -> None:
        import posix_ipc

        check_name(name)
        self.name = name
        self._path = _path(kind, name)
        self._fd = -1
        while self._fd < 0:
            try:
                made = posix_ipc.SharedMemory(self._path, posix_ipc.O_CREX, 0o600, _SEGMENT_BYTES)
            except posix_ipc.ExistentialError:
                _remove_if_dead(kind, name)
                continue
            except posix_ipc.PermissionsError:
                raise _refused(name, "another user") from None
            if _try_lock(made.fd) and _is_at(self._path, made.fd):
                self._fd = made.fd
            else:  # somebody took the empty segment for a dead owner's, and has removed it
                made.close_fd()

    def publish(self) -> NameRecord:
        """Say where this process listens from now on."""
        address = f"ringcast-{os.geteuid()}-{secrets.token_hex(8)}"
        pid = os.getpid()
        record = NameRecord(version(), pid, process_start(pid), address, secrets.token_hex(16))
        body = json.dumps(asdict(record)).encode()
        os.pwrite(self._fd, body, _HEADER.size)
        os.pwrite(self._fd, _HEADER.pack(_MAGIC, FORMAT, len(body)), 0)  # last: who sees it sees the record
        return record

    def release(self) -> None:
        """Remove the name. Again is allowed."""
        import posix_ipc

        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if _is_at(self._path, fd):  # else somebody removed the file by hand
                posix_ipc.unlink_shared_memory(self._path)
        finally:
            os.close(fd)

    def forget_in_child(self) -> None:
        """After a fork, in the new process: the lock stays the parent's alone."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def look_up(kind: str, name: str) -> NameRecord:
    """Where the owner of a name listens.

    `NameUnknown` if there is none, `NameRefused` if it is another user's, `NameMismatch` if it is of another version.
    The owner may be dead: then nobody listens there.
    """
    import posix_ipc

    check_name(name)
    try:
        segment = posix_ipc.SharedMemory(_path(kind, name))
    except posix_ipc.ExistentialError:
        raise _unknown(kind, name) from None
    except posix_ipc.PermissionsError:
        raise _refused(name, "another user") from None
    try:
        _check_user(name, segment.fd)
        record = _read(name, segment.fd)
    finally:
        segment.close_fd()
    if record is None:
        raise NameUnknown(f"name {name!r} is just being made, or its owner died while it made it: try again")
    return record


def owner_of(entry: str) -> NameRecord | None:
    """What a name in /dev/shm, given as its file, says of its owner; None if it says nothing that can be read."""
    try:
        fd = os.open(f"{SHM_FOLDER}/{entry}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read(entry, fd)
    except NameMismatch:
        return None
    finally:
        os.close(fd)


def check_name(name: object) -> None:
    """``TypeError`` or ``ValueError`` unless it can be the name of a channel or a system."""
    if not isinstance(name, str):
        raise TypeError(f"a name must be a string, not {type(name).__name__}")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"name {name!r:.120} cannot be used: give 1 to {MAX_NAME} of A-Z, a-z, 0-9, '_', '.' and '-', "
            "and do not begin it with '.' or '-'"
        )


def process_start(pid: int) -> int:
    """When a process started, in clock ticks since the machine did; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


@cache
def version() -> str:
    """Of ringcast: both sides of a name must have the same."""
    from importlib.metadata import version

    return version("ringcast")


def _path(kind: str, name: str, user: int | None = None) -> str:
    """Each user has a space of names: two who run the same programs do not meet."""
    return f"/ringcast-{os.geteuid() if user is None else user}-{kind}-{name}"


def _remove_if_dead(kind: str, name: str) -> None:
    """Remove a name whose owner is dead; `NameTaken` if it lives."""
    import posix_ipc

    path = _path(kind, name)
    try:
        segment = posix_ipc.SharedMemory(path)
    except posix_ipc.ExistentialError:
        return  # removed meanwhile
    except posix_ipc.PermissionsError:
        raise _refused(name, "another user") from None
    try:
        _check_user(name, segment.fd)
        if not _try_lock(segment.fd):
            raise NameTaken(
                f"name {name!r} is taken{_by_whom(name, segment.fd)}: choose another name, or end its owner"
            )
        if _is_at(path, segment.fd):
            posix_ipc.unlink_shared_memory(path)
    finally:
        segment.close_fd()


def _by_whom(name: str, fd: int) -> str:
    try:
        record = _read(name, fd)
    except NameMismatch:
        return " by another version of ringcast"
    return "" if record is None else f" by process {record.pid}"


def _read(name: str, fd: int) -> NameRecord | None:
    """The record in a segment; None if it is not complete yet."""
    data = os.pread(fd, _SEGMENT_BYTES, 0)
    if len(data) < _HEADER.size or data[: len(_MAGIC)] == bytes(len(_MAGIC)):
        return None
    magic, form, size = _HEADER.unpack_from(data)
    if magic != _MAGIC or form != FORMAT:
        found = f"format {form}" if magic == _MAGIC else "no format of ringcast's"
        raise NameMismatch(
            f"name {name!r} has {found}, this is ringcast {version()} with format {FORMAT}: "
            "use one version of ringcast in both programs"
        )
    try:
        record = NameRecord(**json.loads(data[_HEADER.size : _HEADER.size + size]))
    except (ValueError, TypeError) as error:
        raise NameMismatch(f"name {name!r} has no record of ringcast's: {error}") from None
    if record.version != version():
        raise NameMismatch(
            f"the owner of name {name!r} runs ringcast {record.version}, this is {version()}: "
            "use one version of ringcast in both programs"
        )
    return record


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: str, fd: int) -> bool:
    """Whether the path still leads to this segment: between opening and locking it may have been replaced."""
    import posix_ipc

    try:
        there = posix_ipc.SharedMemory(path)
    except (posix_ipc.ExistentialError, posix_ipc.PermissionsError):
        return False
    try:
        return os.path.samestat(os.fstat(there.fd), os.fstat(fd))
    finally:
        there.close_fd()


def _check_user(name: str, fd: int) -> None:
    user = os.fstat(fd).st_uid
    if user != os.geteuid():
        raise _refused(name, f"user {user}")


def _unknown(kind: str, name: str) -> NameUnknown | NameRefused:
    """Why there is no such name: another user may have one."""
    others = re.compile(rf"ringcast-(\d+)-{re.escape(kind)}-{re.escape(name)}")
    for entry in os.listdir(SHM_FOLDER):
        if (found := others.fullmatch(entry)) is not None:
            return _refused(name, f"user {found[1]}")
    return NameUnknown(f"no program owns the name {name!r}: start its owner first")


def _refused(name: str, whose: str) -> NameRefused:
    return NameRefused(
        f"name {name!r} belongs to {whose}, this is user {os.geteuid()}: only programs of the same user can use a name"
    )
