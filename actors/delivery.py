"""Envelopes that arrive at one node: decodes each and gives it to the mailbox or to the call that it is meant for.

Owned by a node. What does not decode ends its own call, if it is one, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcast.channels import DecodeError
from ringcast.channels.codec import message_proper

from ._native import DeliveryCore
from .errors import RemoteError
from .failure import describe
from .origin import Origin, call_error
from .ref import number_of
from .wire import Envelope, FailureKind

if TYPE_CHECKING:
    from .node import Node
    from .peer import Peer

log = logging.getLogger("ringcast.actors")


class Delivery(DeliveryCore):
    """See the module. Used from the node's thread only. The usual envelopes are native/delivery.c's."""

    def __new__(cls, node: Node) -> Delivery:
        return super().__new__(cls, node, node.codec.decode)

    def __init__(self, node: Node) -> None:
        self._take_by_kind: dict[int, Callable[[Peer, list[Any]], None]] = {
            Envelope.FAILURE: self._take_failure,
            Envelope.CANCEL: self._take_cancel,
            Envelope.CREDIT: self._take_credit,
            Envelope.ITEMS: self._take_items,
            Envelope.MORE: self._take_more,
        }

    def _take_other(self, peer: Peer, message: list[Any]) -> None:
        """An envelope that is none of native/delivery.c's."""
        take = self._take_by_kind.get(message[0])
        if take is None:
            raise DecodeError(f"no envelope kind {message[0]}")
        take(peer, message)

    def _take_failure(self, peer: Peer, message: list[Any]) -> None:
        _, call_id, failure, name, type_name, text, trace = message
        error = call_error(failure, name, type_name, text, trace)
        if isinstance(error, RemoteError):
            error.show_traceback()
        self._node.calls.finish(call_id, None, error)

    def _take_cancel(self, peer: Peer, message: list[Any]) -> None:
        _, actor_id, call_id = message
        if (cell := self._node.cells.get(actor_id)) is not None:
            cell.cancel(peer.origin, call_id)

    def _take_credit(self, peer: Peer, message: list[Any]) -> None:
        _, actor_id, taken_bytes = message
        self._node.credit(actor_id, peer.slot, taken_bytes)

    def _take_items(self, peer: Peer, message: list[Any]) -> None:
        _, call_id, items, window = message
        self._node.calls.items(call_id, items, window)

    def _take_more(self, peer: Peer, message: list[Any]) -> None:
        _, actor_id, call_id, count = message
        if (cell := self._node.cells.get(actor_id)) is not None:
            cell.more(peer.origin, call_id, count)

    def _gone(self, actor_id: int, call_id: int, origin: Origin) -> None:
        """A call for an actor that is not here (from native/delivery.c)."""
        origin.fail(_title(actor_id), call_id, FailureKind.GONE, None, "it is not in this process", "")

    def _undecodable(self, peer: Peer, data: bytes | memoryview, error: Exception) -> None:
        """A message that does not decode ends its own call, if it is one; everything else goes on."""
        self._node.counters.undecodable += 1
        type_name, text, _ = describe(error)
        log.error("undecodable message of %d bytes from %r: %s", len(data), peer.name, text)
        kind, first, second = _head_of(data)
        if kind in (Envelope.REPLY, Envelope.ITEMS):
            if isinstance(first, int):
                self._node.calls.finish(first, None, RemoteError(peer.name, type_name, text, ""))
        elif kind in (Envelope.CALL, Envelope.CAST, Envelope.OPEN, Envelope.GROUP):
            for rank, actor_id in enumerate(first if isinstance(first, list) else [first]):
                cell = self._node.cells.get(actor_id) if isinstance(actor_id, int) else None
                if cell is None and kind == Envelope.GROUP:
                    continue  # it lives elsewhere
                if cell is not None:
                    peer.origin.took(cell.actor_id, len(data), cell.capacity_bytes)
                if kind != Envelope.CAST and isinstance(second, int):
                    name = _title(actor_id) if cell is None else cell.name
                    peer.origin.fail(name, second + rank, FailureKind.RAISED, error, text, "")


def _title(actor_id: object) -> str:
    """What to call an actor that is not here."""
    return f"#{number_of(actor_id)}" if isinstance(actor_id, int) else str(actor_id)


def _head_of(data: bytes | memoryview) -> tuple[object, object, object]:
    """The first three parts of an envelope that does not decode; of what is none, None."""
    import msgpack  # for this alone: a process starts without it

    unpacker = msgpack.Unpacker(strict_map_key=False)
    parts: list[object] = []
    try:
        unpacker.feed(message_proper(data))
        unpacker.read_array_header()
        while len(parts) < 3:
            parts.append(unpacker.unpack())
    except (DecodeError, ValueError, TypeError, msgpack.UnpackException):
        parts += [None] * (3 - len(parts))
    kind, first, second = parts
    return kind, first, second
