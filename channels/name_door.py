"""The two ends of a name: its owner's door, and who knocks there.

Between them one socket, over which descriptors travel once both sides have proved to be of one user. Nothing here
waits: `named` (threads), `named_aio` and the actor runtime drive it. It knows neither rings nor actors.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from .codec import Codec
from .errors import ChannelError, LinkError, NameRefused, NameUnknown
from .link import Frame, Link
from .name_claim import NameClaim, NameRecord, look_up, process_start

# Frame kinds of the first two frames. The layers' own kinds are below.
HELLO: Final = 96  # (token, started)
WELCOME: Final = 97  # what the owner wants to say, with descriptors
REFUSED: Final = 98  # why
LEAVE: Final = 99  # whoever came has let go of all that it got, and closes the link

MAX_SILENT: Final = 64  # that have connected and not said hello
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: struct ucred


@dataclass(slots=True, eq=False)
class Visitor:
    """A process of this user that knows the token. ``pidfd`` proves its death; both are the taker's to close."""

    link: Link
    pid: int
    pidfd: int

    def refuse(self, reason: str) -> None:
        """Tell it why it is not let in, and forget it."""
        self.link.send(REFUSED, 0, Codec().encode(reason))
        self.close()

    def close(self) -> None:
        """Close both."""
        self.link.close()
        os.close(self.pidfd)


class Door:
    """The owner's end: owns the name, listens, and lets in programs of the same user.

    Watch `fds` and call `look` when one of them is readable. Raises what `NameClaim` raises.
    """

    def __init__(self, kind: str, name: str) -> None:
        self.name = name
        self._claim = NameClaim(kind, name)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._silent: list[tuple[Link, int]] = []  # with their pids
        self._reserve = -1  # a descriptor for refusing visitors when all others are in use
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._record = self._claim.publish()
            self._listener.setblocking(False)
            self._listener.bind("\0" + self._record.address)
            self._listener.listen(socket.SOMAXCONN)
        except BaseException:
            self.close()
            raise
        _doors().add(self)

    def fds(self) -> list[int]:
        """What to watch for reading; empty once it is closed."""
        if self._listener.fileno() < 0:
            return []
        return [self._listener.fileno(), *(link.fileno() for link, _ in self._silent)]

    def look(self) -> list[Visitor]:
        """Who has come and said hello since the last look."""
        if self._listener.fileno() < 0:
            return []
        self._accept()
        silent, self._silent = self._silent, []
        visitors = []
        for link, pid in silent:
            try:
                frames = link.receive()
                visitor = _let_in(link, pid, frames, self._record) if frames else None
            except (ChannelError, OSError, ValueError, TypeError):  # no program of ours, or one that has just died
                link.close()
                continue
            if visitor is not None:
                visitors.append(visitor)
            elif link.closed:
                link.close()
            else:
                self._silent.append((link, pid))
        while len(self._silent) > MAX_SILENT:
            self._silent.pop(0)[0].close()
        return visitors

    def close(self) -> None:
        """Remove the name and turn away who waits. Those let in stay. Again is allowed."""
        self._claim.release()
        self._close_descriptors()

    def forget_in_child(self) -> None:
        """After a fork, in the new process: the door is the parent's alone."""
        self._claim.forget_in_child()
        self._close_descriptors()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._turn_away()
                continue
            pid, user, _ = _peer_of(connection)
            if user == os.geteuid():
                self._silent.append((Link(connection), pid))
            else:
                connection.close()

    def _turn_away(self) -> None:
        """No descriptor is left: close the connection of the visitor, which would else keep the socket readable."""
        os.close(self._reserve)
        try:
            self._listener.accept()[0].close()
        except OSError:
            pass  # it is gone already, or another thread was quicker
        finally:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_descriptors(self) -> None:
        self._listener.close()
        for link, _ in self._silent:
            link.close()
        self._silent.clear()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


class Knock:
    """The other end: connected to the owner of a name, whose answer is awaited.

    Watch ``link`` and ``pidfd`` for reading, and call `answer`. Raises what `look_up` raises, and `NameUnknown` if the
    owner is dead.
    """

    def __init__(self, kind: str, name: str) -> None:
        self.name = name
        self._own_pid = os.getpid()
        self.behind: list[Frame] = []  # frames that came right behind the WELCOME: the taker's
        record = look_up(kind, name)
        self.pid = record.pid
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.pidfd = -1
        try:
            connection.setblocking(False)
            self._connect(connection, record)
            pid, user, _ = _peer_of(connection)
            if user != os.geteuid():
                raise NameRefused(f"the owner of name {name!r} is user {user}, this is user {os.geteuid()}")
            self.pidfd = _watch(pid, record.started)
            if self.pidfd < 0:
                raise self._owner_is_dead()
        except BaseException:
            connection.close()
            raise
        self.link = Link(connection)
        self.link.send(HELLO, 0, Codec().encode((record.token, process_start(os.getpid()))))

    def answer(self) -> Frame | None:
        """The owner's WELCOME; None if it has not come yet. `NameRefused`, or `NameUnknown` if the owner died."""
        frames = self.link.receive()
        if frames:
            if frames[0].kind == WELCOME:
                self.behind = frames[1:]
                return frames[0]
            raise NameRefused(f"name {self.name!r}: {Codec().decode(frames[0].payload)}")
        if wait_readable([self.pidfd], 0):
            raise self._owner_is_dead()
        if self.link.closed:
            raise NameRefused(
                f"name {self.name!r}: its owner, process {self.pid}, has closed it, or has no descriptors"
            )
        return None

    def close(self) -> None:
        """Let go, and say so: the end of a link alone proves nothing to the owner. Again is allowed.

        A process made by fork says nothing: what it inherited is its parent's, who goes on.
        """
        if not self.link.closed and os.getpid() == self._own_pid:
            self.link.send(LEAVE, 0)
        self.link.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _connect(self, connection: socket.socket, record: NameRecord) -> None:
        try:
            connection.connect("\0" + record.address)
        except ConnectionRefusedError:
            raise self._owner_is_dead() from None
        except BlockingIOError:
            raise NameRefused(
                f"name {self.name!r}: its owner, process {self.pid}, does not answer, and its queue is full: try later"
            ) from None

    def _owner_is_dead(self) -> NameUnknown:
        return NameUnknown(
            f"name {self.name!r} cannot be used: its owner, process {self.pid}, is dead or has closed it. "
            "Start it again; its next start takes the name over"
        )


def wait_readable(fds: Sequence[int], timeout_s: float | None) -> bool:
    """Whether one of them becomes readable, or its other end goes, in time; None waits for ever."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))


def _let_in(link: Link, pid: int, frames: Sequence[Frame], record: NameRecord) -> Visitor:
    """The visitor that said hello; `LinkError` if it is none, or has given up already."""
    hello = frames[0]
    if any(frame.kind == LEAVE for frame in frames):
        raise LinkError("whoever connected has given up")
    token, started = Codec().decode(hello.payload) if hello.kind == HELLO else ("", 0)
    if token != record.token:
        raise LinkError("whoever connected does not know the token")
    pidfd = _watch(pid, started)
    if pidfd < 0:
        raise LinkError(f"process {pid} is dead, or lives in another PID namespace")
    return Visitor(link, pid, pidfd)


def _watch(pid: int, started: int) -> int:
    """A pidfd of the process that has this number and started then; -1 if it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return -1
    except OSError as error:
        if error.errno == errno.EINVAL:  # 0: a process that this PID namespace does not see
            return -1
        raise
    if process_start(pid) != started:
        os.close(pidfd)
        return -1
    return pidfd


def _peer_of(connection: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end, as the kernel knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(data)
    return pid, user, group


@cache
def _doors() -> weakref.WeakSet[Door]:
    """Those of this process, so that a fork does not go on listening for a dead parent."""
    doors: weakref.WeakSet[Door] = weakref.WeakSet()

    def forget() -> None:
        for door in list(doors):
            door.forget_in_child()

    os.register_at_fork(after_in_child=forget)
    return doors
