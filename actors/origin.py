"""Where a message came from: the way back for its reply and for its mailbox credit. Made by nodes, used by cells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ringcast.channels import EncodeError, SegmentError

from ._native import RemoteOriginCore
from .errors import ActorDied, ActorError, CallCancelled, CallCycle, Cause, DeadlineExceeded, RemoteError
from .failure import type_name_of
from .wire import Envelope, FailureKind, name_part

if TYPE_CHECKING:
    from ringcast.channels.large import LargeMessage

    from .node import Node
    from .peer import Peer


class Origin(Protocol):
    """A caller as an actor's cell sees it. Equal and hashable: one for each process that sends."""

    def reply(self, name: str, call_id: int, value: Any) -> None:
        """End the call, or the stream, with a value."""

    def fail(
        self, name: str, call_id: int, kind: FailureKind, error: BaseException | None, text: str, trace: str
    ) -> None:
        """End it with an error; ``error`` is the exception itself, which never leaves the process."""

    def items(self, name: str, call_id: int, items: list[Any], window: int) -> None:
        """Items of a stream. `EncodeError` if one cannot travel, `SegmentError` without memory: nothing was sent."""

    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int) -> None:
        """A message of that size left the mailbox."""


class RemoteOrigin(RemoteOriginCore):
    """A caller in another process. What is sent to one that has died meanwhile goes nowhere."""

    def __new__(cls, node: Node, peer: Peer) -> RemoteOrigin:
        return super().__new__(cls, node, peer, node.codec.encode_out)

    def _cannot_travel(self, name: str, call_id: int, error: EncodeError | SegmentError) -> None:
        """A value could not be sent (from native/origin.c)."""
        if isinstance(error, EncodeError):
            name_part(error, 1)
        self.fail(name, call_id, FailureKind.RAISED, error, f"the result cannot travel: {error}", "")

    def items(self, name: str, call_id: int, items: list[Any], window: int) -> None:
        try:
            data = self._node.codec.encode_out((int(Envelope.ITEMS), call_id, items, window))
        except EncodeError as error:
            name_part(error, 2)
            raise
        self._send(data)

    def fail(
        self, name: str, call_id: int, kind: FailureKind, error: BaseException | None, text: str, trace: str
    ) -> None:
        type_name = type_name_of(error)
        text, trace = (s.encode("utf-8", "backslashreplace").decode() for s in (text, trace))
        self._send(self._node.codec.encode((int(Envelope.FAILURE), call_id, int(kind), name, type_name, text, trace)))

    def _send(self, data: bytes | LargeMessage) -> None:
        if not isinstance(data, bytes):
            data.copy()  # the next handler may change its arrays
        if self._node.peers.get(self._peer.slot) is self._peer:
            self._node.send_masked(self._peer.mask, data)


class LocalOrigin:
    """A caller in the same process and on the same loop: objects pass as they are."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def reply(self, name: str, call_id: int, value: Any) -> None:
        self._node.calls.finish(call_id, value, None)

    def items(self, name: str, call_id: int, items: list[Any], window: int) -> None:
        self._node.calls.items(call_id, items, window)

    def fail(
        self, name: str, call_id: int, kind: FailureKind, error: BaseException | None, text: str, trace: str
    ) -> None:
        type_name = type_name_of(error)
        failure = call_error(kind, name, type_name, text, trace)
        failure.__cause__ = error
        self._node.calls.finish(call_id, None, failure)

    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int) -> None:
        self._node.credit(actor_id, self._node.slot, size_bytes)


class ThreadedOrigin:
    """Passes the answers of an actor on a thread to another origin, on its loop."""

    def __init__(self, inner: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = inner
        self._loop = loop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThreadedOrigin) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash(self.inner)

    def _soon(self, send: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(send, *args)
        except RuntimeError:
            if not self._loop.is_closed():  # a handler that outlived its system and the program's loop has no caller
                raise

    def reply(self, name: str, call_id: int, value: Any) -> None:
        self._soon(self.inner.reply, name, call_id, value)

    def items(self, name: str, call_id: int, items: list[Any], window: int) -> None:
        self._soon(self._items, name, call_id, items, window)

    def _items(self, name: str, call_id: int, items: list[Any], window: int) -> None:
        try:
            send_items(self.inner, name, call_id, items, window)
        except (EncodeError, SegmentError) as error:
            self.inner.fail(name, call_id, FailureKind.RAISED, error, f"an item cannot travel: {error}", "")

    def fail(
        self, name: str, call_id: int, kind: FailureKind, error: BaseException | None, text: str, trace: str
    ) -> None:
        self._soon(self.inner.fail, name, call_id, kind, error, text, trace)

    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int) -> None:
        self._soon(self.inner.took, actor_id, size_bytes, capacity_bytes)


def send_items(origin: Origin, name: str, call_id: int, items: list[Any], window: int) -> None:
    """Items of a stream; those before one that cannot travel arrive, then `EncodeError` is raised."""
    try:
        origin.items(name, call_id, items, window)
    except EncodeError:
        for item in items:
            origin.items(name, call_id, [item], window)


def call_error(kind: int, name: str, type_name: str, text: str, trace: str) -> ActorError:
    """The exception that a caller gets for a failure reported by the callee's side."""
    match kind:
        case FailureKind.RAISED:
            return RemoteError(name, type_name, text, trace)
        case FailureKind.CANCELLED:
            return CallCancelled(f"actor {name!r} cancelled the call: {text}")
        case FailureKind.DEADLINE:
            return DeadlineExceeded(text)
        case FailureKind.CYCLE:
            return CallCycle(text)
        case _:
            return ActorDied(name, Cause(text))
