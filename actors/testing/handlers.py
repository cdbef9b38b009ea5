"""Runs one handler of an actor without a runtime, as a caller in another process would see it.

The runtime's own mailbox code runs it: deadlines, cancellation, credits and errors are the real ones, and arguments and
results pass through the codec. (Called directly, ``await actor.add(2)``, a handler is just the method.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from ringcast.channels import Codec, EncodeError

from .. import call_scope
from .._native import Incoming
from ..actor import Actor, BlockingActor, Call, Stream
from ..async_cell import AsyncCell
from ..blocking_cell import BlockingCell
from ..calls import LOCAL_MESSAGE_BYTES
from ..consumer import StreamReader
from ..failure import type_name_of
from ..origin import call_error
from ..ref import REF_TAG, Ref, Sender, pack_ref, unpack_ref
from ..wire import FailureKind

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CALL_ID = 1


async def run_handler(handler: Call[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``await run_handler(actor.add, 2)``: ask one handler; its answer, or the error that a caller would get.

    A `RemoteError` has the handler's own exception as its ``__cause__``. Inside ``async with rt.deadline(...)`` the
    handler is cancelled at the deadline. A handler of a `BlockingActor` runs on a thread; ``EncodeError`` tells an
    argument that cannot travel.
    """
    stage = _Stage(handler)
    stage.put(args, kwargs, is_stream=False)
    async with stage.served():
        result: R = await stage.ended
        return result


@asynccontextmanager
async def open_stream(handler: Stream[P, T], *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[AsyncIterator[T]]:
    """``async with open_stream(actor.ticks, 10) as ticks:``: read a stream handler, with its window and batches."""
    stage = _Stage(handler)

    def start(reader: StreamReader) -> int:
        stage.reader = reader
        stage.put(args, kwargs, is_stream=True)
        return CALL_ID

    async with stage.served(), StreamReader(start, stage.cancel) as reader:
        yield reader


class _Stage:
    """An actor's mailbox with one caller, which is also the origin of the one message."""

    def __init__(self, handler: object) -> None:
        actor = getattr(handler, "__self__", None)
        name = getattr(handler, "__name__", "")
        if not isinstance(actor, Actor | BlockingActor) or name not in type(actor).handlers():
            raise TypeError(f"a handler of an actor instance is needed, such as actor.add, not {handler!r}")
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.reader: StreamReader | None = None
        self._loop = asyncio.get_running_loop()
        self._method = name
        self._is_over = False
        self._wanted = asyncio.Event()  # a blocking actor's thread has something to do
        self._senders: dict[int, Sender | None] = {}
        self._codec = Codec({Ref: (REF_TAG, self._pack, self._unpack)})
        title = type(actor).__name__
        self._cell: AsyncCell | BlockingCell
        if isinstance(actor, Actor):
            self._cell = AsyncCell(actor, 0, title, None)
        else:
            self._cell = BlockingCell(actor, 0, title, None)

    def put(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_stream: bool) -> None:
        """The message arrives."""
        args, kwargs = self._codec.decode(self._codec.encode((args, kwargs)))
        context = call_scope.current()
        incoming = Incoming(CALL_ID, self._method, args, kwargs, self, LOCAL_MESSAGE_BYTES, context, is_stream)
        self._cell.put(incoming)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """The mailbox is served meanwhile."""
        cell = self._cell
        serving = cell.start() if isinstance(cell, AsyncCell) else asyncio.create_task(self._serve_blocking(cell))
        try:
            yield
        finally:
            if isinstance(cell, AsyncCell):
                cell.stop()
                with suppress(asyncio.CancelledError):
                    await serving
                await cell.close()
            else:
                cell.cancel(self, CALL_ID)
                self._is_over = True
                self._wanted.set()
                await serving

    def cancel(self, call_id: int) -> None:
        """The reader leaves."""
        self._cell.cancel(self, call_id)

    async def _serve_blocking(self, cell: BlockingCell) -> None:
        while True:
            while await asyncio.to_thread(cell.run_one):
                pass
            if self._is_over:
                return
            await self._wanted.wait()
            self._wanted.clear()

    # What a cell needs of an origin. Called on the loop, or on a blocking actor's thread.

    def reply(self, name: str, call_id: int, value: Any) -> None:
        try:
            value = self._codec.decode(self._codec.encode(value))
        except EncodeError as error:
            self.fail(name, call_id, FailureKind.RAISED, error, f"the result cannot travel: {error}", "")
            return
        self._loop.call_soon_threadsafe(self._end, value, None)

    def fail(
        self, name: str, call_id: int, kind: FailureKind, error: BaseException | None, text: str, trace: str
    ) -> None:
        failure = call_error(kind, name, type_name_of(error), text, trace)
        failure.__cause__ = error
        self._loop.call_soon_threadsafe(self._end, None, failure)

    def items(self, name: str, call_id: int, items: list[Any], window: int) -> None:
        items = self._codec.decode(self._codec.encode(items))
        self._loop.call_soon_threadsafe(self._put_items, items, window)

    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int) -> None:
        """There is one message: nobody waits for room."""

    def _end(self, value: Any, error: Any) -> None:
        if self.reader is not None:
            self.reader.end(value, error)
        elif not self.ended.done():
            if error is None:
                self.ended.set_result(value)
            else:
                self.ended.set_exception(error)

    def _put_items(self, items: list[Any], window: int) -> None:
        def return_credit(count: int) -> None:
            self._cell.more(self, CALL_ID, count)
            if isinstance(self._cell, BlockingCell):
                self._wanted.set()

        assert self.reader is not None
        self.reader.put(items, window, return_credit)

    def _pack(self, ref: Ref) -> bytes:
        self._senders[ref._actor_id] = ref._sender
        return pack_ref(ref)

    def _unpack(self, data: bytes) -> Ref:
        ref = unpack_ref(data, None)
        return Ref(ref._actor_id, ref._name, self._senders.get(ref._actor_id))
