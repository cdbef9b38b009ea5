"""Blocking reads and sends for a thread: wait on the doorbell, and go on with what can be done meanwhile.

Used by threads that serve one stream. Whoever serves many builds on poll, try_send and the doorbell instead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ._native import Doorbell, Message, RecordView
from .cores import core_quota
from .errors import EndOfRing, PeerDead
from .inbox import Inbox
from .link import Frame
from .outbox import Outbox
from .placed import HeldRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

SPIN_S: Final = 50e-6  # about what it costs both sides to put a thread to sleep and to wake it
BATCH: Final = 256


class Receiver:
    """Reads one inbox and sleeps on ``bell``, the bell of this process.

    ``pidfd`` of the writer gives proof of its death; without one the end of the link stands for it. Before it sleeps
    it spins for at most ``spin_s``, if recent waits were that short and every busy process has a core (0: never).
    Frames of the link's owner are collected in ``frames``.
    """

    def __init__(self, inbox: Inbox, bell: Doorbell, *, pidfd: int = -1, spin_s: float = SPIN_S) -> None:
        self.inbox = inbox
        self.frames: list[Frame] = []
        self._bell = bell
        self._pidfd = pidfd
        self._spin_s = spin_s
        self._messages: deque[Message] = deque()
        bell.cores = bell.cores or core_quota()

    def poll(self, max_messages: int = BATCH) -> list[Message]:
        """What is there, at most so many, without waiting. `EndOfRing` or `PeerDead` when nothing will ever come."""
        if self._messages:
            count = min(max_messages, len(self._messages))
            return [self._messages.popleft() for _ in range(count)]
        messages = self.inbox.poll(max_messages)
        if not messages and (self.inbox.reader.blocked or self.inbox.finished):
            self._read_link()
            messages = self.inbox.poll(max_messages)
            if not messages:
                self._check_end()
        return messages

    def read(self, timeout_s: float | None = None) -> Message:
        """The next message; None waits for ever.

        ``TimeoutError`` if there is none in time, `EndOfRing` or `PeerDead` when nothing will ever come. What a
        signal handler raises ends the wait, too.
        """
        messages = self._messages
        if not messages:
            messages.extend(self._wait(self.poll, timeout_s))
        return messages.popleft()

    def view(self, timeout_s: float | None = None) -> RecordView | HeldRecord:
        """The next message in place, as `Inbox.view`; waits like `read`."""
        if self._messages:
            return HeldRecord(self._messages.popleft())
        view = self._wait(self._try_view, timeout_s)
        assert view is not None
        return view

    def __iter__(self) -> Iterator[Message]:
        """Messages until the writer closes the ring; `PeerDead` if it dies instead."""
        try:
            while True:
                yield self.read()
        except EndOfRing:
            return

    def _try_view(self) -> RecordView | HeldRecord | None:
        view = self.inbox.view()
        if view is None and (self.inbox.reader.blocked or self.inbox.finished):
            self._read_link()
            view = self.inbox.view()
            if view is None:
                self._check_end()
        return view

    def _wait(self, look: Callable[[], T], timeout_s: float | None) -> T:
        """Look until there is something, and sleep in between."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = look()
            if found:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no message within {timeout_s} s")
            self._sleep(left)

    def _sleep(self, timeout_s: float | None) -> None:
        inbox, fds = self.inbox, []
        if not inbox.link.closed:
            fds.append(inbox.fileno())
        if self._pidfd >= 0 and not inbox.dead:
            fds.append(self._pidfd)
        ready = self._bell.wait((inbox.reader,), (), fds, timeout_s, self._spin_s)
        if inbox.fileno() in ready:
            self._read_link()
        if self._pidfd in ready:
            self._read_link()
            inbox.peer_died()

    def _read_link(self) -> None:
        self.frames += self.inbox.control_frames()

    def _check_end(self) -> None:
        inbox = self.inbox
        if inbox.closed:
            raise EndOfRing(f"the ring of epoch {inbox.reader.epoch} was closed by its writer")
        if inbox.finished:
            raise PeerDead(
                f"the writer of the ring of epoch {inbox.reader.epoch} (board slot {inbox.reader.writer_bell_slot}) is "
                "dead; everything that it committed was read",
                epoch=inbox.reader.epoch,
            )


class Sender:
    """Sends through one outbox and sleeps on ``bell``, the bell of this process, when there is no space.

    While it waits it goes on reading: whenever one of ``inboxes`` has something, ``drain`` is called and must take it
    (poll the inboxes, read their links, keep the messages). Without that, two processes that wait for each other's
    ring would wait for ever. ``watch`` names further descriptors that end a sleep when they are readable; ``look`` is
    then called before the send is tried again.
    """

    def __init__(
        self,
        outbox: Outbox,
        bell: Doorbell,
        *,
        inboxes: Sequence[Inbox] = (),
        drain: Callable[[], object] | None = None,
        watch: Callable[[], Sequence[int]] = lambda: (),
        look: Callable[[], object] = lambda: None,
        spin_s: float = SPIN_S,
    ) -> None:
        if inboxes and drain is None:
            raise ValueError("inboxes without drain: nobody would read them while a send waits")
        self.outbox = outbox
        self._bell = bell
        self._inboxes = inboxes
        self._drain = drain
        self._watch = watch
        self._look = look
        self._spin_s = spin_s
        bell.cores = bell.cores or core_quota()

    def send(
        self, payload: Buffer | Sequence[Buffer], mask: int, type: int = 0, timeout_s: float | None = None
    ) -> None:
        """Send one message and ring its readers; waits for space, for ever if ``timeout_s`` is None.

        ``TimeoutError`` says who held the space, and nothing was sent; `RingFull` as `Outbox.try_send`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.outbox.try_send(payload, mask, type):
            self.outbox.flush()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"no space within {timeout_s} s: {self.outbox.stall()}")
            self._wait(left)
        self.outbox.flush()
        self._pump()

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was sent is with the kernel or in the ring; ``TimeoutError`` if it is not in time.

        Before it ends, a process calls this: what its links still hold would die with it.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._pump():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                pending = sum(link.pending_bytes for link in self.outbox.links_pending())
                raise TimeoutError(f"{pending} bytes are left on the links after {timeout_s} s")
            self._wait(left)

    def _wait(self, timeout_s: float | None) -> None:
        readers = [inbox.reader for inbox in self._inboxes]
        links = [inbox.fileno() for inbox in self._inboxes if not inbox.link.closed]
        pending = [link.fileno() for link in self.outbox.links_pending()]
        watched = self._watch()
        ready = self._bell.wait(readers, (self.outbox.ring,), [*links, *watched], timeout_s, self._spin_s, pending)
        if watched and not set(watched).isdisjoint(ready):
            self._look()
        if self._drain is not None and (any(reader.ready() for reader in readers) or set(links) & set(ready)):
            self._drain()
        self._pump()

    def _pump(self) -> bool:
        """Hand to the kernel what it takes; whether something is left."""
        for link in self.outbox.links_pending():
            link.pump()
        return bool(self.outbox.links_pending())
