"""Rings on an asyncio loop: one eventfd for all of a process's rings, async iteration, async sends.

The only module of channels that imports asyncio; import it from here, nothing else of the layer does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ._native import Doorbell, Message
from .cores import core_quota
from .errors import ChannelError, EndOfRing, PeerDead
from .inbox import Inbox
from .link import Frame, Link
from .outbox import Outbox
from .ring import DEFAULT_CAPACITY
from .spill import SPILL_LIMIT_BYTES, Policy

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .named_aio import AsyncNamedReader, AsyncNamedWriter

HOT_S: Final = 50e-6  # how long it polls for more before it arms, while messages come that close together
BATCH: Final = 64  # messages between two turns of the loop
_LOOKS: Final = 8  # at rings in one turn, while something comes whenever the bell is to be armed
_SLICE_S: Final = 10e-6  # of polling, without the GIL, between two turns of the loop


def create(
    name: str,
    *,
    capacity: int = DEFAULT_CAPACITY,
    readers: int | None = None,
    policy: Policy = "wait",
    spill_limit_bytes: int = SPILL_LIMIT_BYTES,
) -> AsyncNamedWriter:
    """``async with aio.create(name) as writer:`` a channel that other programs of this user can open by its name.

    Arguments and errors are those of `ringcast.channels.create`.
    """
    from .named_aio import AsyncNamedWriter

    return AsyncNamedWriter(name, capacity, readers, policy, spill_limit_bytes)


def open(name: str) -> AsyncNamedReader:
    """``async with aio.open(name) as reader:`` a channel that another program of this user made.

    Errors are those of `ringcast.channels.open`; an owner that lives and does not answer is waited for.
    """
    from .named_aio import AsyncNamedReader

    return AsyncNamedReader(name)


class Port:
    """A process's doorbell on the running loop; ``async with`` brackets its life.

    Drains in batches, a turn of the loop between them. While traffic is hot (the usual gap between messages is below
    ``hot_s``) and every busy process has a core, it polls on for ``hot_s`` before it arms the bell (`Doorbell.spin`);
    else it arms at once and costs nothing until it is rung.
    """

    def __init__(self, bell: Doorbell, *, hot_s: float = HOT_S, batch: int = BATCH) -> None:
        self._loop = asyncio.get_running_loop()
        self._bell = bell
        self._hot_s = hot_s
        self._batch = batch
        self._inboxes: list[AsyncInbox] = []
        self._outboxes: list[AsyncOutbox] = []
        self._scheduled = False
        self._open = False
        bell.cores = bell.cores or core_quota()

    def receive_from(
        self, inbox: Inbox, on_frame: Callable[[Frame], object] | None = None, *, pidfd: int = -1
    ) -> AsyncInbox:
        """Iterate over an inbox. ``on_frame`` gets the frames of the link's owner; without it they are dropped.

        ``pidfd`` of the writer gives proof of its death; without one the end of the link stands for it.
        """
        made = AsyncInbox(self, inbox, on_frame, self._batch, pidfd)
        self._inboxes.append(made)
        if self._open:
            made._watch()
        return made

    def send_through(self, outbox: Outbox) -> AsyncOutbox:
        """Send through an outbox."""
        made = AsyncOutbox(self, outbox)
        self._outboxes.append(made)
        return made

    async def __aenter__(self) -> Port:
        self._open = True
        self._loop.add_reader(self._bell.fileno(), self._on_bell)
        for inbox in self._inboxes:
            inbox._watch()
        self._schedule()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._loop.remove_reader(self._bell.fileno())
        for inbox in self._inboxes:
            inbox._stop()
        for outbox in self._outboxes:
            outbox._stop()

    def _on_bell(self) -> None:
        self._bell.disarm()
        if not self._scheduled:
            self._drain()

    def _schedule(self) -> None:
        if not self._scheduled and self._open:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        if not self._open:
            return
        for _ in range(_LOOKS):
            news = False
            for inbox in self._inboxes:
                news |= inbox._fill()
            for outbox in self._outboxes:
                news |= outbox._retry()
            if news:
                break
            readers = [inbox.inbox.reader for inbox in self._inboxes if inbox._wants]
            writers = [outbox.outbox.ring for outbox in self._outboxes if outbox._waiting]
            if (readers or writers) and self._bell.spin(readers, writers, _SLICE_S, self._hot_s):
                break  # it is worth while to poll on
            if self._bell.arm(readers, writers):
                return
        self._schedule()


class AsyncInbox:
    """Messages of one writer: ``async for``, or ``await read()``. One task at a time; made by `Port.receive_from`."""

    def __init__(
        self, port: Port, inbox: Inbox, on_frame: Callable[[Frame], object] | None, batch: int, pidfd: int
    ) -> None:
        self.inbox = inbox
        self._pidfd = pidfd  # -1 once it needs no watching
        self._port = port
        self._on_frame = on_frame
        self._batch = batch
        self._messages: deque[Message] = deque()
        self._failure: ChannelError | None = None
        self._reader: asyncio.Future[None] | None = None  # the task that waits for a message
        self._watched = False
        self._credit = batch  # messages that may still be read before the loop gets a turn

    async def read(self) -> Message:
        """The next message. `EndOfRing` or `PeerDead` when nothing will ever come; a cancelled read loses nothing."""
        if self._reader is not None:
            raise RuntimeError("another task reads this inbox: one at a time, or two would take turns at random")
        if self._credit == 0:
            self._credit = self._batch
            await asyncio.sleep(0)
        if not self._messages:
            self._fill()
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            self._reader = self._port._loop.create_future()
            self._port._schedule()
            try:
                await self._reader
            finally:
                self._reader = None
        self._credit -= 1
        return self._messages.popleft()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages until the writer closes the ring; `PeerDead` if it dies instead."""
        try:
            while True:
                yield await self.read()
        except EndOfRing:
            return

    @property
    def _wants(self) -> bool:
        """Room for more: else records stay in the ring and hold the writer back."""
        return len(self._messages) < self._batch and self._failure is None

    def _fill(self) -> bool:
        """Take what is there, as far as there is room; whether there was something."""
        if not self._wants:
            return False
        try:
            messages = self.inbox.poll(self._batch - len(self._messages))
            if not messages and (self.inbox.reader.blocked or self.inbox.finished):
                self._read_link()
                messages = self.inbox.poll(self._batch - len(self._messages))
                if not messages:
                    self._check_end()
        except ChannelError as error:
            self._failure = error
            messages = []
        self._messages.extend(messages)
        if messages or self._failure is not None:
            self._wake()
            return True
        return False

    def _check_end(self) -> None:
        epoch = self.inbox.reader.epoch
        if self.inbox.closed:
            raise EndOfRing(f"the ring of epoch {epoch} was closed by its writer")
        if self.inbox.finished:
            raise PeerDead(f"the writer of the ring of epoch {epoch} is dead; all it committed was read", epoch=epoch)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _watch(self) -> None:
        if not self._watched and not self.inbox.link.closed:
            self._watched = True
            self._port._loop.add_reader(self.inbox.fileno(), self._on_link)
            if self._pidfd >= 0:
                self._port._loop.add_reader(self._pidfd, self._on_death)

    def _stop(self) -> None:
        self._forget_pidfd()
        if self._watched:
            self._watched = False
            self._port._loop.remove_reader(self.inbox.fileno())
        self._failure = self._failure or ChannelError("the port was closed")
        self._wake()

    def _on_link(self) -> None:
        try:
            self._read_link()
        except ChannelError as error:
            self._failure = self._failure or error
            self._wake()
        self._port._schedule()

    def _on_death(self) -> None:
        self._forget_pidfd()
        self._on_link()
        self.inbox.peer_died()

    def _forget_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._port._loop.remove_reader(self._pidfd)
            self._pidfd = -1

    def _read_link(self) -> None:
        fileno = self.inbox.fileno()
        try:
            for frame in self.inbox.control_frames():
                if self._on_frame is not None:
                    self._on_frame(frame)
        finally:
            if self.inbox.link.closed and self._watched:
                self._watched = False
                self._port._loop.remove_reader(fileno)


class AsyncOutbox:
    """Sends that wait for space without blocking the loop, in the order of their calls; made by `Port.send_through`."""

    def __init__(self, port: Port, outbox: Outbox) -> None:
        self.outbox = outbox
        self._port = port
        self._waiting: deque[tuple[Buffer | Sequence[Buffer], int, int, asyncio.Future[None]]] = deque()
        self._flush_scheduled = False
        self._writing: set[int] = set()  # links that the loop watches for room

    async def send(self, payload: Buffer | Sequence[Buffer], mask: int, type: int = 0) -> None:
        """Send one message when there is space, behind those that wait already; its readers are rung within this turn
        of the loop. `RingFull` as `Outbox.try_send`. Cancelled while it waits, it is not sent.

        Do not change a buffer while its send waits.
        """
        if not self._waiting and self.outbox.try_send(payload, mask, type):
            self._schedule_flush()
            return
        done = self._port._loop.create_future()
        self._waiting.append((payload, mask, type, done))
        self._schedule_flush()
        self._port._schedule()
        await done

    def try_send(self, payload: Buffer | Sequence[Buffer], mask: int, type: int = 0) -> bool:
        """The same without waiting: False if there is no space, or others wait for it."""
        if self._waiting or not self.outbox.try_send(payload, mask, type):
            return False
        self._schedule_flush()
        return True

    def _retry(self) -> bool:
        """Send what waits, as far as it goes; whether something went."""
        went = False
        while self._waiting:
            payload, mask, type, done = self._waiting[0]
            if not done.done():  # not cancelled meanwhile
                try:
                    if not self.outbox.try_send(payload, mask, type):
                        break
                except Exception as error:  # RingFull, no memory, a payload that is no buffer: its sender's to see
                    done.set_exception(error)
                else:
                    done.set_result(None)
                    went = True
            self._waiting.popleft()
        if went:
            self._flush()
        return went

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._port._loop.call_soon(self._flush)
            self.outbox.flush()  # who sleeps is woken by the first message, and meanwhile the others are written

    def _flush(self) -> None:
        self._flush_scheduled = False
        self.outbox.flush()
        for link in self.outbox.links_pending():
            fileno = link.fileno()
            if fileno not in self._writing:
                self._writing.add(fileno)
                self._port._loop.add_writer(fileno, self._on_writable, link, fileno)

    def _on_writable(self, link: Link, fileno: int) -> None:
        link.pump()
        if not link.pending:
            self._unwatch(fileno)

    def forget(self, link: Link) -> None:
        """A reader is evicted and its link about to be closed: the loop must not watch it any longer."""
        if link.fileno() in self._writing:
            self._unwatch(link.fileno())

    def _unwatch(self, fileno: int) -> None:
        self._writing.discard(fileno)
        self._port._loop.remove_writer(fileno)

    def _stop(self) -> None:
        for fileno in list(self._writing):
            self._unwatch(fileno)
        for _, _, _, done in self._waiting:
            if not done.done():
                done.set_exception(ChannelError("the port was closed while this send waited: it was not sent"))
        self._waiting.clear()
