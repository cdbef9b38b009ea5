"""Named channels on an asyncio loop: what `aio.create` and `aio.open` return. The halves are `named`'s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from ._native import Message
from .aio import Port
from .errors import ChannelError
from .link import Frame
from .name_door import Knock
from .named import CLOSE_TIMEOUT_S, KIND, ReaderSide, WriterSide
from .ring import ALL_READERS
from .spill import Policy

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .statistics import OutboxStatistics

T = TypeVar("T")

_PUMP_EVERY_S: Final = 0.001  # while a closing channel's sockets take nothing


class LoopWatch:
    """Watches a changing set of descriptors on the running loop: ``look`` is called when one of them is readable."""

    def __init__(self, fds: Callable[[], Sequence[int]], look: Callable[[], object]) -> None:
        self._fds = fds
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._watched: list[int] = []

    def start(self) -> None:
        """Begin, with the set as it is now."""
        self._watched = list(self._fds())
        for fd in self._watched:
            self._loop.add_reader(fd, self._on_readable)

    def stop(self) -> None:
        """End. Do this before a descriptor of the set is closed elsewhere than in ``look``."""
        watched, self._watched = self._watched, []
        for fd in watched:
            self._loop.remove_reader(fd)

    def _on_readable(self) -> None:
        self.stop()  # look may close some, and others may get their numbers
        try:
            self._look()
        finally:
            self.start()


async def attach(kind: str, name: str, take: Callable[[Knock, Frame], T]) -> T:
    """Knock at a name and wait for its owner's WELCOME; what ``take`` makes of both. Raises what `Knock` raises."""
    knock = Knock(kind, name)
    loop = asyncio.get_running_loop()
    fds = (knock.link.fileno(), knock.pidfd)
    news = asyncio.Event()
    try:
        for fd in fds:
            loop.add_reader(fd, news.set)
        try:
            while (welcome := knock.answer()) is None:
                news.clear()
                await news.wait()
        finally:
            for fd in fds:
                loop.remove_reader(fd)
        return take(knock, welcome)
    except BaseException:
        knock.close()
        raise


class AsyncNamedWriter:
    """The writing end of a named channel on the running loop; ``async with`` opens and closes it. See `aio.create`."""

    def __init__(self, name: str, capacity: int, readers: int | None, policy: Policy, spill_limit_bytes: int) -> None:
        self.name = name
        self._make: Callable[[], WriterSide] = partial(WriterSide, name, capacity, readers, policy, spill_limit_bytes)
        self._side: WriterSide | None = None
        self._changed: asyncio.Event

    async def __aenter__(self) -> AsyncNamedWriter:
        side = self._side = self._make()
        self._changed = asyncio.Event()
        self._port = Port(side.bell)
        self._outbox = self._port.send_through(side.outbox)
        side.on_leave = self._outbox.forget
        self._watch = LoopWatch(side.fds, self._look)
        self._watch.start()
        await self._port.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        side = self._open_side()
        self._side = None
        self._watch.stop()
        side.door.close()
        side.outbox.close()
        side.outbox.flush()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while side.outbox.links_pending():  # what the sockets still hold would be lost
                    for link in side.outbox.links_pending():
                        link.pump()
                    side.look()
                    await asyncio.sleep(_PUMP_EVERY_S)
        finally:
            self._changed.set()
            await self._port.__aexit__(kind, error, trace)
            side.close()

    async def send(self, payload: Buffer | Sequence[Buffer], type: int = 0) -> None:
        """Send one message to the readers that are attached now, as `AsyncOutbox.send`. Without readers it is lost."""
        self._open_side()
        await self._outbox.send(payload, ALL_READERS, type)

    async def wait_for_readers(self, count: int = 1) -> None:
        """Wait until so many are attached."""
        while self._open_side().readers < count:
            self._changed.clear()
            await self._changed.wait()

    @property
    def readers(self) -> int:
        """How many are attached now."""
        return self._open_side().readers

    def statistics(self) -> OutboxStatistics:
        """The figures of this moment."""
        return self._open_side().outbox.statistics()

    def _look(self) -> None:
        if self._side is not None:
            self._side.look()
            self._changed.set()

    def _open_side(self) -> WriterSide:
        if self._side is None:
            raise ChannelError(f"channel {self.name!r} is not open: use `async with`")
        return self._side


class AsyncNamedReader:
    """The reading end of a named channel on the running loop; ``async with`` attaches and leaves. See `aio.open`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._side: ReaderSide | None = None

    async def __aenter__(self) -> AsyncNamedReader:
        side = self._side = await attach(KIND, self.name, ReaderSide)
        self._port = Port(side.bell)
        self._inbox = self._port.receive_from(side.inbox, pidfd=side.knock.pidfd)
        await self._port.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        side, self._side = self._side, None
        if side is not None:
            await self._port.__aexit__(kind, error, trace)
            side.close()

    async def read(self) -> Message:
        """The next message. A cancelled read loses nothing.

        `EndOfRing` when the writer has closed the channel and all was read, `PeerDead` when it died instead.
        """
        self._check_open()
        return await self._inbox.read()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Messages until the writer closes the channel; `PeerDead` if it dies instead."""
        self._check_open()
        return self._inbox.__aiter__()

    def _check_open(self) -> None:
        if self._side is None:
            raise ChannelError(f"this reader of channel {self.name!r} is not attached: use `async with`")
