"""The socket between one writer and one reader: frames with file descriptors, in order, never blocking.

Carries attach notices, overflow payloads and whatever its owner adds; its EOF prompts a check of the peer. It decides
nothing: proof of death is the pidfd's, and the meaning of frames is their owners'.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import LinkError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_FRAME_BYTES: Final = 1 << 30
MAX_FRAME_FDS: Final = 253  # SCM_MAX_FD of Linux
FIRST_OWNER_KIND: Final = 32  # frame kinds below are the channels' own

_MAGIC = 0x4B4C4352  # "RCLK"
_HEADER = struct.Struct("<IIHHIQ")  # magic, payload bytes, kind, fds, reserved, id
_SCRATCH_BYTES = 64 * 1024
_JOIN_BYTES = 64 * 1024  # how large a frame of joined payloads may grow
_RECEIVE_BUDGET = 16 * 1024 * 1024  # bytes per receive(): a flooding peer must not hold its reader for ever
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FRAME_FDS * 4)
_TRY_LATER = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
_PEER_GONE = (errno.EPIPE, errno.ECONNRESET)


class Frame(NamedTuple):
    """What travels on a link. ``fds`` belong to whoever took the frame."""

    kind: int
    id: int
    payload: bytes
    fds: tuple[int, ...] = ()


class LinkStatistics(NamedTuple):
    """What one end of a link did since it was made. Headers count as bytes."""

    frames_sent: int  # handed to the kernel whole
    bytes_sent: int
    frames_received: int  # whole ones that `receive` returned
    bytes_received: int
    pending_frames: int  # not yet handed to the kernel, now
    pending_bytes: int
    peak_pending_bytes: int
    full_waits: int  # times that the socket took no more and frames began to wait


@dataclass(slots=True)
class _Outgoing:
    """A frame not yet sent to its end. ``fds`` are duplicates of ours, until the first byte has gone."""

    parts: list[memoryview]
    fds: tuple[int, ...] = ()
    left_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.left_bytes = sum(part.nbytes for part in self.parts)


class _Joined(_Outgoing):
    """A frame whose payload still grows: it gets its header when the first byte is about to go."""

    def __init__(self, kind: int, id: int, payload: Buffer) -> None:
        self.kind, self.id, self.body = kind, id, bytearray(payload)
        self.parts, self.fds = [], ()
        self.left_bytes = _HEADER.size + len(self.body)

    def append(self, payload: Buffer) -> int:
        """Grow; by how many bytes."""
        before = len(self.body)
        self.body += payload
        self.left_bytes += len(self.body) - before
        return len(self.body) - before

    def seal(self) -> _Outgoing:
        """The frame that it has become."""
        header = _HEADER.pack(_MAGIC, len(self.body), self.kind, 0, 0, self.id)
        return _Outgoing([memoryview(header), memoryview(self.body)])


class Link:
    """One end of a stream socketpair; takes ownership of the socket (or descriptor) and makes it non-blocking.

    Kinds below `FIRST_OWNER_KIND` belong to the channels (overflow payloads). Every call returns at once. When the
    peer has gone, sends are dropped and `closed` says so.
    """

    def __init__(self, sock: socket.socket | int) -> None:
        if isinstance(sock, int):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=sock)
        sock.setblocking(False)
        sock.set_inheritable(False)
        self._socket = sock
        self._outgoing: deque[_Outgoing] = deque()
        self._scratch = bytearray()
        self._received = bytearray()
        self._received_fds: deque[int] = deque()
        self._eof = False
        self._broken = False
        self._pending_bytes = 0
        self._peak_pending_bytes = 0
        self._frames_sent = self._bytes_sent = 0
        self._frames_received = self._bytes_received = 0
        self._full_waits = 0

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        """Both ends of a new link."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """The socket's descriptor, for event loops; -1 after `close`."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """The peer has gone, or we have closed. What had arrived before can still be received."""
        return self._eof or self._broken

    @property
    def eof(self) -> bool:
        """Everything that the peer ever sent has been received."""
        return self._eof

    @property
    def truncated(self) -> bool:
        """The peer went in the middle of a frame; the piece is dropped."""
        return self._eof and bool(self._received)

    @property
    def pending(self) -> bool:
        """Bytes are left to send: call `pump` when the socket is writable."""
        return bool(self._outgoing)

    @property
    def pending_bytes(self) -> int:
        """How many bytes are left to send."""
        return self._pending_bytes

    def send(self, kind: int, id: int, payload: Buffer = b"", fds: Sequence[int] = ()) -> None:
        """Queue a frame and send what goes at once; ``fds`` stay the caller's and may be closed right after.

        ``ValueError`` if payload or fds are too many for a frame. Dropped if the peer has gone.
        """
        view = memoryview(payload).cast("B")
        if view.nbytes > MAX_FRAME_BYTES or len(fds) > MAX_FRAME_FDS:
            raise ValueError(
                f"a frame of {view.nbytes} bytes and {len(fds)} fds: "
                f"the limits are {MAX_FRAME_BYTES} bytes and {MAX_FRAME_FDS} fds"
            )
        if self.closed:
            return
        header = _HEADER.pack(_MAGIC, view.nbytes, kind, len(fds), 0, id)
        frame = _Outgoing([memoryview(header), view] if view.nbytes else [memoryview(header)], tuple(fds))
        if not self._outgoing and self._send_some(frame):
            return
        if self._broken:
            return
        # It waits: keep what the caller may close or overwrite meanwhile.
        frame.parts = [part if isinstance(part.obj, bytes) else memoryview(bytes(part)) for part in frame.parts]
        frame.fds = tuple(os.dup(fd) for fd in frame.fds)
        self._queue(frame)

    def append(self, kind: int, id: int, payload: Buffer) -> None:
        """Like `send`, for payloads that the receiver takes as pieces of one stream.

        While frames wait, pieces of one kind are joined into a frame of up to 64 KiB, whose id is that of its first.
        """
        if self.closed:
            return
        if not self._outgoing:
            self.send(kind, id, payload)
            return
        last = self._outgoing[-1]
        if isinstance(last, _Joined) and last.kind == kind and len(last.body) < _JOIN_BYTES:
            self._count_pending(last.append(payload))
        else:
            self._queue(_Joined(kind, id, payload))

    def pump(self) -> None:
        """Send what waits, as far as it goes. Call when `pending` and the socket is writable."""
        while self._outgoing:
            frame = self._outgoing[0]
            if isinstance(frame, _Joined):
                frame = self._outgoing[0] = frame.seal()
            fds, before = frame.fds, frame.left_bytes
            done = self._send_some(frame)
            if fds and not frame.fds:
                _close_all(fds)
            if self._broken:
                return
            self._pending_bytes -= before - frame.left_bytes
            if not done:
                return
            self._outgoing.popleft()

    def statistics(self) -> LinkStatistics:
        """The figures of this moment."""
        return LinkStatistics(
            frames_sent=self._frames_sent,
            bytes_sent=self._bytes_sent,
            frames_received=self._frames_received,
            bytes_received=self._bytes_received,
            pending_frames=len(self._outgoing),
            pending_bytes=self._pending_bytes,
            peak_pending_bytes=self._peak_pending_bytes,
            full_waits=self._full_waits,
        )

    def receive(self) -> list[Frame]:
        """All frames that are complete now; empty if none is, or after EOF (`closed`).

        Reads at most 16 MiB: call again while the socket is readable. `LinkError` if the bytes make no sense or if
        this process has no descriptors left for those that came along; the link is closed then.
        """
        if not self._eof:
            self._read()
        return self._parse()

    def close(self) -> None:
        """Close the socket and every descriptor that was not sent or not claimed. Again is allowed."""
        self._eof = True
        self._drop_outgoing()
        _close_all(self._received_fds)
        self._received_fds.clear()
        self._received.clear()
        self._socket.close()

    def _queue(self, frame: _Outgoing) -> None:
        if not self._outgoing:
            self._full_waits += 1
        self._outgoing.append(frame)
        self._count_pending(frame.left_bytes)

    def _count_pending(self, size_bytes: int) -> None:
        self._pending_bytes += size_bytes
        self._peak_pending_bytes = max(self._peak_pending_bytes, self._pending_bytes)

    def _send_some(self, frame: _Outgoing) -> bool:
        """Send a piece of the frame; True when all of it has gone. ``fds`` go with its first byte."""
        while frame.left_bytes:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", frame.fds))] if frame.fds else []
            try:
                sent = self._socket.sendmsg(frame.parts, rights, socket.MSG_NOSIGNAL)
            except OSError as error:
                if error.errno in _TRY_LATER:
                    return False
                if error.errno in _PEER_GONE:
                    self._broken = True
                    self._drop_outgoing()
                    return False
                raise
            frame.fds = ()
            frame.left_bytes -= sent
            self._bytes_sent += sent
            while frame.parts and sent >= frame.parts[0].nbytes:
                sent -= frame.parts.pop(0).nbytes
            if sent:
                frame.parts[0] = frame.parts[0][sent:]
        self._frames_sent += 1
        return True

    def _read(self) -> None:
        if not self._scratch:
            self._scratch = bytearray(_SCRATCH_BYTES)
        scratch = memoryview(self._scratch)
        budget = _RECEIVE_BUDGET
        while budget > 0:
            try:
                size, ancillary, flags, _ = self._socket.recvmsg_into(
                    [scratch], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    return
                if error.errno in _PEER_GONE:
                    size, ancillary, flags = 0, [], 0
                else:
                    raise
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                    self._received_fds.extend(fds)
            if flags & socket.MSG_CTRUNC:
                self._fail("descriptors were lost on the way: raise the limit of open files (ulimit -n)")
            if size == 0:
                self._eof = True
                self._drop_outgoing()
                return
            self._received += scratch[:size]
            self._bytes_received += size
            budget -= size

    def _parse(self) -> list[Frame]:
        frames: list[Frame] = []
        received = self._received
        start = 0
        while len(received) - start >= _HEADER.size:
            magic, size, kind, fd_count, _, frame_id = _HEADER.unpack_from(received, start)
            if magic != _MAGIC or size > MAX_FRAME_BYTES or fd_count > MAX_FRAME_FDS:
                if frames:
                    break  # those before are good; the next call fails
                self._fail(
                    f"malformed frame header (magic {magic:#x}, {size} bytes, {fd_count} fds): "
                    "is the other end a ringcast link of the same version?"
                )
            end = start + _HEADER.size + size
            if len(received) < end:
                break
            if len(self._received_fds) < fd_count:
                if frames:
                    break
                self._fail(f"a frame claims {fd_count} descriptors, {len(self._received_fds)} have arrived")
            with memoryview(received) as view:
                payload = bytes(view[start + _HEADER.size : end])
            fds = tuple(self._received_fds.popleft() for _ in range(fd_count))
            frames.append(Frame(kind, frame_id, payload, fds))
            start = end
        if start:
            del received[:start]
        self._frames_received += len(frames)
        return frames

    def _drop_outgoing(self) -> None:
        for frame in self._outgoing:
            _close_all(frame.fds)
        self._outgoing.clear()
        self._pending_bytes = 0

    def _fail(self, reason: str) -> None:
        fd = self.fileno()
        self.close()
        raise LinkError(f"link on fd {fd}: {reason}")

    def __del__(self) -> None:
        if hasattr(self, "_received_fds"):  # else the constructor failed
            self.close()

    def __repr__(self) -> str:
        return f"Link(fd={self.fileno()}, closed={self.closed}, pending_bytes={self.pending_bytes})"


def _close_all(fds: Sequence[int] | deque[int]) -> None:
    for fd in fds:
        os.close(fd)
