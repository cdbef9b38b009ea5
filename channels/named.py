"""Channels with a name, for programs that were started apart: `create` one, `open` it elsewhere.

One writer, up to 64 readers of the same user. The two halves without any waiting are `WriterSide` and `ReaderSide`;
`NamedWriter` and `NamedReader` here are for threads, `named_aio` has those for an asyncio loop.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ._native import Board, Doorbell, Message, RecordView
from .blocking import Receiver, Sender
from .codec import Codec
from .errors import ChannelError
from .inbox import Inbox
from .link import Frame, Link
from .name_door import LEAVE, WELCOME, Door, Knock, Visitor, wait_readable
from .outbox import Outbox
from .placed import HeldRecord
from .ring import ALL_READERS, DEFAULT_CAPACITY, RingReader, RingWriter
from .segment import create_segment
from .spill import POLICIES, SPILL_LIMIT_BYTES, Policy

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .statistics import OutboxStatistics, ReaderStatistics

KIND: Final = "channel"  # of the name
MAX_READERS: Final = 64
CLOSE_TIMEOUT_S: Final = 5.0
_EPOCH: Final = 1
_WRITER_SLOT: Final = 0  # on the channel's board


def create(
    name: str,
    *,
    capacity: int = DEFAULT_CAPACITY,
    readers: int | None = None,
    policy: Policy = "wait",
    spill_limit_bytes: int = SPILL_LIMIT_BYTES,
) -> NamedWriter:
    """Make a channel that other programs of this user can `open` by its name; its writing end.

    Args:
        name: 1 to 100 letters, digits, '_', '.' and '-'. A name whose owner is dead is taken over.
        capacity: bytes of records that the ring holds, a power of two.
        readers: how many programs it is for: after that many have attached the name is removed. None: it stays
            until the writer is closed, and up to 64 may be attached at a time.
        policy: what becomes of a send while a reader is that far behind: ``wait``, ``reject`` (`RingFull`), or
            ``spill``, which lets the reader have up to ``spill_limit_bytes`` over its socket instead.

    Raises:
        NameTaken: its owner lives.
        NameRefused: it is another user's.
    """
    return NamedWriter(WriterSide(name, capacity, readers, policy, spill_limit_bytes))


def open(name: str, *, timeout_s: float | None = None) -> NamedReader:
    """Attach to a channel that another program of this user made; its reading end.

    It gets the messages that are sent from now on. A wrong name fails at once. If the owner lives but does not answer,
    ``TimeoutError`` is raised after ``timeout_s``; None waits as long as it lives.

    Raises:
        NameUnknown: nobody owns the name, or its owner is dead.
        NameRefused: it is another user's, or has as many readers as it can.
        NameMismatch: its owner runs another version of ringcast.
    """
    knock = Knock(KIND, name)
    try:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (welcome := knock.answer()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError(
                    f"the owner of channel {name!r}, process {knock.pid}, did not answer within {timeout_s} s"
                )
            wait_readable([knock.link.fileno(), knock.pidfd], left_s)
        return NamedReader(ReaderSide(knock, welcome))
    except BaseException:
        knock.close()
        raise


@dataclass(frozen=True, slots=True)
class _Attached:
    """A reader."""

    visitor: Visitor
    board_slot: int


class WriterSide:
    """The ring of a named channel, its door and its readers. Used by one thread at a time; waits for nothing."""

    def __init__(self, name: str, capacity: int, readers: int | None, policy: Policy, spill_limit_bytes: int) -> None:
        if readers is not None and not 1 <= readers <= MAX_READERS:
            raise ValueError(f"readers is {readers}: give 1 to {MAX_READERS}, or None for any number")
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}: it must be one of {', '.join(POLICIES)}")
        if spill_limit_bytes <= 0:
            raise ValueError(f"spill_limit_bytes is {spill_limit_bytes}: it must be positive")
        self.name = name
        self.expected = readers
        self.attached = 0  # how many have ever been
        self.on_leave: Callable[[Link], object] = lambda link: None  # called before a reader's link is closed
        self._policy: Policy = policy
        self._spill_limit_bytes = spill_limit_bytes
        self._readers: dict[int, _Attached] = {}  # by reader slot
        self._bell_fds: dict[int, int] = {}  # by board slot: the word on the board is its next reader's, too
        self.door = Door(KIND, name)  # who comes from now on waits until `look`
        try:
            self._board_segment = create_segment(Board.size_bytes(1 + MAX_READERS))
            self._ring_segment = create_segment(RingWriter.size_bytes(capacity))
            self._board = Board.create(self._board_segment.fd)
            self.bell = Doorbell(self._board, _WRITER_SLOT, self._bell_fd(_WRITER_SLOT))
            self.outbox = Outbox(RingWriter(self._ring_segment.fd, self.bell, epoch=_EPOCH))
        except BaseException:
            self.door.close()
            self._close_bells()
            raise

    def fds(self) -> list[int]:
        """What to watch for reading; `look` when one of them is readable."""
        watched = self.door.fds()
        for reader in self._readers.values():
            watched.append(reader.visitor.pidfd)
            if not reader.visitor.link.closed:
                watched.append(reader.visitor.link.fileno())
        return watched

    def look(self) -> None:
        """Admit who has come, forget who has left or is proven dead."""
        for slot, reader in list(self._readers.items()):
            if _has_left(reader.visitor):
                self.outbox.evict(slot)
                del self._readers[slot]
                self.on_leave(reader.visitor.link)
                reader.visitor.close()
        for visitor in self.door.look():
            self._admit(visitor)

    @property
    def readers(self) -> int:
        """How many are attached."""
        return len(self._readers)

    def close(self) -> None:
        """Remove the name and let go of everything. What links still hold is lost."""
        self.door.close()
        self.outbox.close()
        for reader in self._readers.values():
            self.on_leave(reader.visitor.link)
            reader.visitor.close()
        self._readers.clear()
        self._close_bells()
        self._board_segment.close()
        self._ring_segment.close()

    def _close_bells(self) -> None:
        for fd in self._bell_fds.values():
            os.close(fd)
        self._bell_fds.clear()

    def _admit(self, visitor: Visitor) -> None:
        free = set(range(1, 1 + MAX_READERS)) - {reader.board_slot for reader in self._readers.values()}
        if not free:
            visitor.refuse(f"it has {MAX_READERS} readers, the most that a channel can have")
            return
        board_slot = min(free)
        try:
            bell_fd = self._bell_fd(board_slot)
            bell = Doorbell(self._board, board_slot, bell_fd)
            slot = self.outbox.admit(bell, visitor.link, self._policy, self._spill_limit_bytes)
        except OSError as error:
            visitor.refuse(f"its owner could not admit another reader: {error}")
            return
        self._readers[slot] = _Attached(visitor, board_slot)
        place = (board_slot, slot, self.outbox.ring.position, _EPOCH)
        fds = (self._board_segment.fd, self._ring_segment.fd, bell_fd, self._bell_fd(_WRITER_SLOT))
        self.attached += 1
        if self.attached == self.expected:
            self.door.close()  # before the last one's `open` returns
        visitor.link.send(WELCOME, 0, Codec().encode(place), fds)

    def _bell_fd(self, board_slot: int) -> int:
        if board_slot not in self._bell_fds:
            self._bell_fds[board_slot] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._bell_fds[board_slot]


def _has_left(visitor: Visitor) -> bool:
    """Whether a reader has said so, or its pidfd does. The end of its link alone proves nothing."""
    with contextlib.suppress(ChannelError):  # a link that makes no sense is closed by that
        if any(frame.kind == LEAVE for frame in visitor.link.receive()):
            return True
    return wait_readable([visitor.pidfd], 0)


class ReaderSide:
    """One reader's end of a named channel. Takes the knock over; waits for nothing."""

    def __init__(self, knock: Knock, welcome: Frame) -> None:
        self.name = knock.name
        self.knock = knock
        board_slot, slot, position, epoch = Codec().decode(welcome.payload)
        board_fd, ring_fd, bell_fd, writer_bell_fd = welcome.fds
        try:
            board = Board(board_fd)
            self.bell = Doorbell(board, board_slot, bell_fd)
            writer_bell = Doorbell(board, _WRITER_SLOT, writer_bell_fd)
            self.inbox = Inbox(RingReader(ring_fd, slot, position, writer_bell, epoch), knock.link)
        finally:
            for fd in welcome.fds:
                os.close(fd)
        for frame in knock.behind:
            self.inbox.feed(frame)

    def close(self) -> None:
        """Let go of the ring, and tell the writer so. Again is allowed."""
        self.inbox.close()
        self.knock.close()


class NamedWriter:
    """The writing end of a named channel; see `create`. Several threads may use it; ``with`` closes it.

    A thread of its own lets readers in and notices their deaths, whatever the program does meanwhile.
    """

    def __init__(self, side: WriterSide) -> None:
        self.name = side.name
        self._side: WriterSide = side
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._nudge_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._close_lock = threading.Lock()  # one thread closes, others wait for that
        self._is_closing = False  # a send that waits for space holds the other lock, and gives up
        self._closed = False
        self._sender = Sender(
            side.outbox, side.bell, watch=lambda: [*side.fds(), self._nudge_fd], look=self._look_while_sending
        )
        self._attendant = threading.Thread(target=self._attend, name=f"channel {side.name}", daemon=True)
        self._attendant.start()
        import atexit

        atexit.register(side.door.close)  # a program that forgets to close leaves no name

    def send(self, payload: Buffer | Sequence[Buffer], type: int = 0, timeout_s: float | None = None) -> None:
        """Send one message to the readers that are attached now; waits for space, for ever if ``timeout_s`` is None.

        ``TimeoutError`` says who held the space, and nothing was sent; `RingFull` if the policy refuses;
        `ChannelError` if another thread closes the channel meanwhile. Without readers the message is lost: see
        `wait_for_readers`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            raise TimeoutError(f"channel {self.name!r}: another thread's send has waited for space for {timeout_s} s")
        try:
            self._check_open()
            left_s = None if deadline is None else deadline - time.monotonic()
            self._sender.send(payload, ALL_READERS, type, left_s)
            if self._side.outbox.uses_links:
                os.eventfd_write(self._nudge_fd, 1)  # what the sockets did not take goes when they do
        finally:
            self._lock.release()

    def wait_for_readers(self, count: int = 1, timeout_s: float | None = None) -> None:
        """Wait until ``count`` readers are attached; ``TimeoutError`` after ``timeout_s``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._side.readers >= count, timeout_s):
                raise TimeoutError(
                    f"channel {self.name!r} has {self._side.readers} of {count} readers after {timeout_s} s"
                )
            self._check_open()

    @property
    def readers(self) -> int:
        """How many are attached now."""
        return self._side.readers

    def statistics(self) -> OutboxStatistics:
        """The figures of this moment."""
        with self._lock:
            self._check_open()
            return self._side.outbox.statistics()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End the channel: readers get what was sent, then the end. The name is removed. Again is allowed.

        ``TimeoutError`` if a reader did not take what waits on its socket in time; the channel is closed all the same.
        """
        with self._close_lock:
            if self._closed:
                return
            self._is_closing = True
            os.eventfd_write(self._nudge_fd, 1)
            self._close(timeout_s)

    def _close(self, timeout_s: float) -> None:
        try:
            with self._lock:
                self._closed = True
                self._take_nudge()
                self._side.door.close()
                try:
                    self._side.outbox.close()
                    self._side.outbox.flush()
                    self._sender.finish(timeout_s)
                finally:
                    os.eventfd_write(self._nudge_fd, 1)
                    self._changed.notify_all()
        finally:
            if self._closed:  # else the wait for the lock was interrupted, and it can be closed again
                self._let_go()

    def _let_go(self) -> None:
        self._attendant.join()
        import atexit

        atexit.unregister(self._side.door.close)
        self._side.close()
        os.close(self._nudge_fd)

    def __enter__(self) -> NamedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.readers} readers"
        return f"<NamedWriter {self.name!r}, {state}>"

    def _attend(self) -> None:
        """The attendant's life: let readers in and out, and send what waits for room on a socket."""
        while not self._closed:
            with self._lock:
                watched = select.poll()
                watched.register(self._nudge_fd, select.POLLIN)
                for fd in self._side.fds():
                    watched.register(fd, select.POLLIN)
                for link in self._side.outbox.links_pending():
                    watched.register(link.fileno(), select.POLLIN | select.POLLOUT)
            watched.poll()
            with self._lock:  # a send that waits for space has done all this by then
                self._take_nudge()
                self._look()
                for link in self._side.outbox.links_pending():
                    link.pump()

    def _look(self) -> None:
        self._side.look()
        self._changed.notify_all()

    def _take_nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._nudge_fd)

    def _look_while_sending(self) -> None:
        self._take_nudge()
        if not self._closed:  # else it is the last send, by `close` itself
            self._check_open()
        self._look()

    def _check_open(self) -> None:
        if self._is_closing:
            raise ChannelError(f"channel {self.name!r} is closed")


class NamedReader:
    """The reading end of a named channel; see `open`. One thread uses it; ``with`` closes it."""

    def __init__(self, side: ReaderSide) -> None:
        self.name = side.name
        self._side = side
        self._receiver = Receiver(side.inbox, side.bell, pidfd=side.knock.pidfd)
        self._closed = False

    def read(self, timeout_s: float | None = None) -> Message:
        """The next message; ``timeout_s=None`` waits without limit.

        ``TimeoutError`` if there is none in time, `EndOfRing` when the writer has closed the channel and all was read,
        `PeerDead` when it died instead.
        """
        self._check_open()
        return self._receiver.read(timeout_s)

    def poll(self, max_messages: int = 256) -> list[Message]:
        """What is there, without waiting; ends like `read`."""
        self._check_open()
        return self._receiver.poll(max_messages)

    def view(self, timeout_s: float | None = None) -> RecordView | HeldRecord:
        """The next message in place, as `Inbox.view`; waits like `read`."""
        self._check_open()
        return self._receiver.view(timeout_s)

    def __iter__(self) -> Iterator[Message]:
        """Messages until the writer closes the channel; `PeerDead` if it dies instead."""
        self._check_open()
        return iter(self._receiver)

    def statistics(self) -> ReaderStatistics:
        """The figures of this moment."""
        return self._side.inbox.reader.statistics()

    def close(self) -> None:
        """Leave the channel: it holds up its writer no longer. Again is allowed."""
        if not self._closed:
            self._closed = True
            self._side.close()

    def __enter__(self) -> NamedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):  # else the constructor failed
            self.close()

    def __repr__(self) -> str:
        return f"<NamedReader {self.name!r}{', closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise ChannelError(f"this reader of channel {self.name!r} is closed")
