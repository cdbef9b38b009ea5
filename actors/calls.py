"""Calls, casts, streams and group calls that leave one node, and what is still open of them.

Owned by a node. It knows what was asked and who waits for it; the node knows where actors live and how bytes get there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from . import call_context
from .consumer import StreamReader
from .errors import ActorDied, ActorError, Cause, DeadlineExceeded, MailboxFull
from .ref import Ref
from .route import Outgoing, Route, RouteState
from .wire import Envelope

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("ringcast.actors")

LOCAL_MESSAGE_BYTES = 256  # what a message inside one process is charged: it is never encoded
MAX_UNRESOLVED = 1024  # casts that may wait for the way to their actor to be found


class Waiter(Protocol):
    """Who waits for the end of a call or of a stream."""

    def end(self, value: Any, error: ActorError | None) -> None:
        """It ended."""


class ReplyFuture(asyncio.Future[Any]):
    """A call in flight. Cancelling it cancels the handler at the other end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_cancel: Callable[[int], None], call_id: int) -> None:
        super().__init__(loop=loop)
        self._on_cancel = on_cancel
        self._call_id = call_id

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self._on_cancel(self._call_id)
        return cancelled

    def end(self, value: Any, error: ActorError | None) -> None:
        if self.done():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)


@dataclass(slots=True)
class Pending:
    """A call or stream that has not ended."""

    waiter: Waiter
    route: Route
    outgoing: Outgoing


class Calls:
    """See the module. Used from the node's thread only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pending: dict[int, Pending] = {}
        self._last_call_id = 0

    # What leaves.

    def ask(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ReplyFuture:
        """Send a call; the future of its answer. Raises only what is the caller's own mistake (`EncodeError`)."""
        future = self._new_future()
        self._start(Envelope.CALL, future._call_id, future, ref, method, args, kwargs)
        return future

    def open(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamReader:
        """A reader that opens the stream when it is entered."""

        def start(reader: StreamReader) -> int:
            self._node.current_loop()
            self._last_call_id += 1
            call_id = self._last_call_id
            self._start(Envelope.OPEN, call_id, reader, ref, method, args, kwargs)
            return call_id

        return StreamReader(start, self.cancel)

    def tell(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, wait: bool) -> Outgoing:
        """Send a cast; with ``wait`` its ``sent`` future ends when it has left, otherwise it leaves now or raises."""
        cause = self._node.known_cause(ref._actor_id)
        if cause is not None:
            raise ActorDied(ref._name, cause)
        route = self._node.route_to(ref)
        outgoing = self._outgoing(route, Envelope.CAST, None, method, args, kwargs)
        if route.state is RouteState.UP and not route.waiting and route.allows(outgoing.size_bytes):
            self._node.transmit(route, outgoing)
        elif wait:
            outgoing.sent = self._node.current_loop().create_future()
            route.waiting.append(outgoing)
        elif route.state is RouteState.RESOLVING and len(route.waiting) < MAX_UNRESOLVED:
            route.waiting.append(outgoing)
        else:
            raise MailboxFull(
                f"mailbox of {ref._name!r} is full: {route.outstanding_bytes} of {route.capacity_bytes} bytes "
                f"sent and not yet taken, {len(route.waiting)} messages wait; use `cast.wait` to wait for room"
            )
        return outgoing

    def ask_group(
        self, refs: Sequence[Ref], method: str, args: tuple[Any, ...], kwargs: dict[str, Any], reply_from: int | None
    ) -> list[ReplyFuture]:
        """One call to every member, encoded once and written once where all can take it now.

        With ``reply_from`` the other members answer only if they fail: `forget` their futures when they are not
        needed any more.
        """
        futures = [self._new_future() for _ in refs]
        if call_context.current().expired():
            for future in futures:
                future.end(None, DeadlineExceeded("before the call was sent"))
            return futures
        if not self._broadcast(refs, futures, method, args, kwargs, reply_from):
            for ref, future in zip(refs, futures, strict=True):
                self._start(Envelope.CALL, future._call_id, future, ref, method, args, kwargs)
        return futures

    def tell_group(self, refs: Sequence[Ref], method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One cast to every member; raises like `tell`, and then some members may have got it."""
        if not self._broadcast(refs, None, method, args, kwargs, None):
            for ref in refs:
                self.tell(ref, method, args, kwargs, wait=False)

    # What comes back.

    def finish(self, call_id: int, value: Any, error: ActorError | None) -> None:
        """A call or stream ended. Late answers are dropped and counted."""
        pending = self._pending.pop(call_id, None)
        if pending is None:
            self._node.counters.late_replies += 1
        else:
            pending.waiter.end(value, error)

    def items(self, call_id: int, items: list[Any], window: int) -> None:
        """Items of a stream came."""
        pending = self._pending.get(call_id)
        if pending is None or not isinstance(pending.waiter, StreamReader):
            self._node.counters.late_replies += 1
            return
        route = pending.route

        def return_credit(count: int) -> None:
            if call_id in self._pending:
                self._node.send_more(route, call_id, count)

        pending.waiter.put(items, window, return_credit)

    def cancel(self, call_id: int) -> None:
        """Nobody waits any more: end the handler or stream, or do not even send the call."""
        pending = self._pending.pop(call_id, None)
        if pending is None:
            return
        if pending.outgoing in pending.route.waiting:
            pending.outgoing.dropped = True
        else:
            self._node.send_cancel(pending.route, call_id)

    def forget(self, futures: Sequence[ReplyFuture]) -> None:
        """The answers of these calls are not needed; their handlers run on."""
        for future in futures:
            self._pending.pop(future._call_id, None)

    def fail_route(self, route: Route, cause: Cause) -> None:
        """The actor is not to be reached: end every call to it, and what waits to leave."""
        for call_id, pending in list(self._pending.items()):
            if pending.route is route:
                del self._pending[call_id]
                pending.waiter.end(None, ActorDied(route.name, cause))
        for outgoing in route.waiting:
            if outgoing.sent is not None and not outgoing.sent.done():
                outgoing.sent.set_exception(ActorDied(route.name, cause))
            elif outgoing.call_id is None and not outgoing.dropped:
                self._node.counters.dropped_casts += 1
                log.warning("a cast to %r was dropped: %s", route.name, cause.summary)
        route.waiting.clear()

    # Details.

    def _new_future(self) -> ReplyFuture:
        loop = self._node.current_loop()
        self._last_call_id += 1
        return ReplyFuture(loop, self.cancel, self._last_call_id)

    def _start(
        self,
        kind: Envelope,
        call_id: int,
        waiter: Waiter,
        ref: Ref,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        cause = self._node.known_cause(ref._actor_id)
        if cause is not None:
            waiter.end(None, ActorDied(ref._name, cause))
            return
        if call_context.current().expired():
            waiter.end(None, DeadlineExceeded("before the call was sent"))
            return
        route = self._node.route_to(ref)
        outgoing = self._outgoing(route, kind, call_id, method, args, kwargs)
        self._pending[call_id] = Pending(waiter, route, outgoing)
        if route.state is RouteState.UP and not route.waiting and route.allows(outgoing.size_bytes):
            self._node.transmit(route, outgoing)
        else:
            route.waiting.append(outgoing)

    def _outgoing(
        self,
        route: Route,
        kind: Envelope,
        call_id: int | None,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Outgoing:
        context = call_context.current()
        if route.slot == self._node.slot:
            local = (kind, method, args, kwargs, context)
            return Outgoing(LOCAL_MESSAGE_BYTES, None, local, call_id)
        if kind is Envelope.CAST:
            payload = self._node.codec.encode((kind, route.actor_id, method, args, kwargs))
        else:
            payload = self._node.codec.encode((kind, route.actor_id, call_id, method, args, kwargs, context.pack()))
        return Outgoing(len(payload), payload, None, call_id)

    def _broadcast(
        self,
        refs: Sequence[Ref],
        futures: Sequence[ReplyFuture] | None,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reply_from: int | None,
    ) -> bool:
        """Try the single write; False, with nothing sent, if some member is local, unknown or has no room."""
        node = self._node
        if any(node.known_cause(ref._actor_id) is not None for ref in refs):
            return False
        routes = [node.route_to(ref) for ref in refs]
        if any(r.state is not RouteState.UP or r.waiting or r.slot == node.slot for r in routes):
            return False
        first = futures[0]._call_id if futures else None
        actor_ids = [ref._actor_id for ref in refs]
        context = call_context.current().pack()
        envelope = (Envelope.GROUP, actor_ids, first, reply_from, method, args, kwargs, context)
        payload = node.codec.encode(envelope)
        if not all(route.allows(len(payload)) for route in routes):
            return False
        for number, route in enumerate(routes):
            route.outstanding_bytes += len(payload)
            if futures is not None:
                call_id = futures[number]._call_id
                outgoing = Outgoing(len(payload), payload, None, call_id)
                self._pending[call_id] = Pending(futures[number], route, outgoing)
            if route.stall_after_s is not None:
                node.watch_for_stall(route)
        node.send_to_slots([route.slot for route in routes], payload)
        return True
