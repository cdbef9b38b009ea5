"""Envelopes that arrive at one node: decodes each and gives it to the mailbox or to the call that it is meant for.

Owned by a node. What does not decode ends its own call, if it is one, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcast.channels import ChannelError, DecodeError
from ringcast.channels.codec import message_proper

from . import call_context
from ._native import Incoming
from .call_context import EMPTY
from .errors import RemoteError
from .origin import call_error
from .wire import Envelope, FailureKind

if TYPE_CHECKING:
    from .node import Node
    from .peer import Peer

log = logging.getLogger("ringcast.actors")


class Delivery:
    """See the module. Used from the node's thread only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.is_alone = False  # the message that is handled came alone: there is none that might cancel it
        self.has_settled = False  # it is over: the loop needs no turn for it
        self._take_by_kind: dict[int, Callable[[Peer, int, list[Any]], None]] = {
            Envelope.CALL: self._take_call,
            Envelope.CAST: self._take_cast,
            Envelope.REPLY: self._take_reply,
            Envelope.FAILURE: self._take_failure,
            Envelope.CANCEL: self._take_cancel,
            Envelope.CREDIT: self._take_credit,
            Envelope.OPEN: self._take_open,
            Envelope.ITEMS: self._take_items,
            Envelope.MORE: self._take_more,
            Envelope.GROUP: self._take_group,
        }

    def handle(self, peer: Peer, data: bytes | memoryview) -> None:
        """Act on one message that came from the peer."""
        try:
            message = self._node.codec.decode(data)
            take = self._take_by_kind.get(message[0])
            if take is None:
                raise DecodeError(f"no envelope kind {message[0]}")
            take(peer, len(data), message)
        except (ChannelError, ValueError, TypeError, IndexError, KeyError) as error:
            self._undecodable(peer, data, error)

    def _take_call(self, peer: Peer, size_bytes: int, message: list[Any], is_stream: bool = False) -> None:
        _, actor_id, call_id, method, args, kwargs, packed = message
        context = EMPTY if packed is None else call_context.unpack(packed)
        incoming = Incoming(call_id, method, args, kwargs, peer.origin, size_bytes, context, is_stream)
        self._deliver(actor_id, incoming)

    def _take_open(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        self._take_call(peer, size_bytes, message, is_stream=True)

    def _take_cast(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        _, actor_id, method, args, kwargs = message
        cell = self._node.cells.get(actor_id)
        if cell is not None:
            incoming = Incoming(None, method, args, kwargs, peer.origin, size_bytes, EMPTY)
            if self.is_alone:
                self.has_settled = cell.put_and_run(incoming)
            else:
                cell.put(incoming)

    def _take_reply(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        _, call_id, value = message
        self._node.calls.finish(call_id, value, None)

    def _take_failure(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        _, call_id, failure, name, type_name, text, trace = message
        self._node.calls.finish(call_id, None, call_error(failure, name, type_name, text, trace))

    def _take_cancel(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        _, actor_id, call_id = message
        if (cell := self._node.cells.get(actor_id)) is not None:
            cell.cancel(peer.origin, call_id)

    def _take_credit(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        _, actor_id, taken_bytes = message
        self._node.credit(actor_id, peer.slot, taken_bytes)

    def _take_items(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        _, call_id, items, window = message
        self._node.calls.items(call_id, items, window)

    def _take_more(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        _, actor_id, call_id, count = message
        if (cell := self._node.cells.get(actor_id)) is not None:
            cell.more(peer.origin, call_id, count)

    def _take_group(self, peer: Peer, size_bytes: int, message: list[Any]) -> None:
        """A message to several actors: give it to those that live here."""
        _, actor_ids, first_call_id, reply_from, method, args, kwargs, packed = message
        context = EMPTY if packed is None else call_context.unpack(packed)
        for number, actor_id in enumerate(actor_ids):
            if actor_id in self._node.cells:
                call_id = None if first_call_id is None else first_call_id + number
                quiet = reply_from is not None and reply_from != number
                incoming = Incoming(call_id, method, args, kwargs, peer.origin, size_bytes, context, False, quiet)
                self._deliver(actor_id, incoming)

    def _deliver(self, actor_id: int, incoming: Incoming) -> None:
        cell = self._node.cells.get(actor_id)
        if cell is not None:
            if self.is_alone:
                self.has_settled = cell.put_and_run(incoming)
            else:
                cell.put(incoming)
        elif incoming.call_id is not None:
            text = "it is not in this process"
            incoming.origin.fail(str(actor_id), incoming.call_id, FailureKind.GONE, None, text, "")

    def _undecodable(self, peer: Peer, data: bytes | memoryview, error: Exception) -> None:
        """A message that does not decode ends its own call, if it is one; everything else goes on."""
        self._node.counters.undecodable += 1
        log.error("undecodable message of %d bytes from %r: %s", len(data), peer.name, error)
        import msgpack  # for this alone: a process starts without it

        unpacker = msgpack.Unpacker(strict_map_key=False)
        try:
            unpacker.feed(message_proper(data))
            unpacker.read_array_header()
            kind, first = unpacker.unpack(), unpacker.unpack()
            if kind in (Envelope.REPLY, Envelope.ITEMS):
                self._node.calls.finish(first, None, RemoteError(peer.name, type(error).__name__, str(error), ""))
                return
            if kind not in (Envelope.CALL, Envelope.CAST, Envelope.OPEN, Envelope.GROUP):
                return
            second = unpacker.unpack()
        except (DecodeError, ValueError, msgpack.UnpackException):
            return  # not even an envelope: it was logged, and there is nobody to tell
        for number, actor_id in enumerate(first if kind == Envelope.GROUP else [first]):
            cell = self._node.cells.get(actor_id)
            if cell is None:
                continue
            peer.origin.took(actor_id, len(data), cell.capacity_bytes)
            if kind != Envelope.CAST and second is not None:
                peer.origin.fail(cell.name, second + number, FailureKind.RAISED, error, str(error), "")
