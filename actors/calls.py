"""Calls, casts, streams and group calls that leave one node, and what is still open of them.

Owned by a node. It knows what was asked and who waits for it; the node knows where actors live and how bytes get there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from ringcast.channels import EncodeError

from . import call_scope
from .consumer import StreamReader
from .errors import ActorDied, ActorError, CallCycle, Cause, DeadlineExceeded, MailboxFull
from .ref import Ref
from .route import UP, Local, Outgoing, Route, RouteState
from .wire import Envelope, name_argument

if TYPE_CHECKING:
    from ringcast.channels.large import LargeMessage

    from .node import Node

log = logging.getLogger("ringcast.actors")

# On the way of every message:
CALL, CAST, OPEN, GROUP = (int(kind) for kind in (Envelope.CALL, Envelope.CAST, Envelope.OPEN, Envelope.GROUP))
LOCAL_MESSAGE_BYTES: Final = 256  # what a message inside one process is charged: it is never encoded
MAX_UNRESOLVED: Final = 1024  # casts that may wait for the way to their actor to be found,
MAX_UNRESOLVED_BYTES: Final = 1 << 20  # and their size, unless it is one


class Waiter(Protocol):
    """Who waits for the end of a call or of a stream."""

    def end(self, value: Any, error: ActorError | None) -> None:
        """It ended."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing is awaited any more."""


class GroupWaiter(Waiter, Protocol):
    """Who waits for one member's answer to a group call; it is told the call's number."""

    call_id: int


class ReplyFuture(asyncio.Future[Any]):
    """A call in flight, numbered ``call_id``. Cancelling it cancels the handler at the other end."""

    __slots__ = ("call_id", "calls")
    call_id: int
    calls: Calls

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self.calls.cancel(self.call_id)
        return cancelled

    def end(self, value: Any, error: ActorError | None) -> None:
        if self.done():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    @property
    def has_ended(self) -> bool:
        return self.done()


class Calls:
    """See the module. Used from the node's thread only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pending: dict[int, tuple[Waiter, Route]] = {}  # calls and streams that have not ended
        self._last_call_id = 0

    @property
    def in_flight(self) -> bool:
        """Whether some call or stream has not ended."""
        return bool(self._pending)

    # What leaves.

    def ask(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ReplyFuture:
        """Send a call; the future of its answer. Raises only what is the caller's own mistake (`EncodeError`)."""
        future = self._new_future()
        self._start(CALL, future.call_id, future, ref, method, args, kwargs)
        return future

    def open(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamReader:
        """A reader that opens the stream when it is entered."""

        def start(reader: StreamReader) -> int:
            self._node.current_loop()
            self._last_call_id += 1
            call_id = self._last_call_id
            self._start(OPEN, call_id, reader, ref, method, args, kwargs)
            return call_id

        return StreamReader(start, self.cancel)

    def tell(
        self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, wait: bool
    ) -> Outgoing | None:
        """Send a cast; with ``wait``, one that cannot leave now is returned, and its ``sent`` future ends when it has
        left. Without, it leaves now or raises.
        """
        node = self._node
        route = node.routes.get(ref._actor_id) or self._route_or_raise(ref)
        payload: bytes | LargeMessage
        local: Local | None
        if route.slot == node.slot:
            payload, local = b"", Local(CAST, method, args, kwargs, call_scope.current())
            size_bytes = LOCAL_MESSAGE_BYTES
        else:
            try:
                payload, local = node.codec.encode_out((CAST, route.actor_id, method, args, kwargs)), None
            except EncodeError as error:
                name_argument(error, method, 3)
                raise
            size_bytes = len(payload)
        may_leave = route.state is UP and not route.waiting and route.allows(size_bytes)
        if may_leave and not wait and not isinstance(payload, bytes):
            payload.copy()  # its arrays may be changed when this returns
        if may_leave and (isinstance(payload, bytes) or payload.copy_at_once()):
            node.transmit(route, None, size_bytes, payload, local)
            return None
        outgoing = Outgoing(size_bytes, payload, local, None)
        if wait:
            outgoing.in_cycle = not may_leave and route.actor_id in call_scope.current().chain
            if outgoing.in_cycle and route.state is UP and not route.is_copying:
                raise _cycle(route)
            outgoing.sent = node.current_loop().create_future()
        elif not (_may_wait_for_the_way(route, size_bytes) or (route.is_copying and route.allows_behind(size_bytes))):
            raise MailboxFull(
                f"mailbox of {ref._name!r} is full: {route.outstanding_bytes} of {route.capacity_bytes} bytes "
                f"sent and not yet taken, {len(route.waiting)} messages wait; use `cast.wait` to wait for room"
            )
        elif not isinstance(payload, bytes):
            payload.copy()
        route.waiting.append(outgoing)
        if may_leave:
            node.pump(route)
        return outgoing

    def ask_group(
        self,
        waiters: Sequence[GroupWaiter],
        refs: Sequence[Ref],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reply_from: int | None,
    ) -> None:
        """One call to every member, encoded once and written once where all can take it now.

        With ``reply_from`` the other members answer only if they fail: `forget` their waiters when they are not
        needed any more. Raises like `ask`, and then no member has been asked.
        """
        self._node.current_loop()
        for waiter in waiters:
            self._last_call_id += 1
            waiter.call_id = self._last_call_id
        if call_scope.current().expired():
            for waiter in waiters:
                waiter.end(None, DeadlineExceeded("before the call was sent"))
        elif not self._broadcast(refs, waiters, method, args, kwargs, reply_from):
            try:
                for ref, waiter in zip(refs, waiters, strict=True):
                    self._start(CALL, waiter.call_id, waiter, ref, method, args, kwargs)
            except BaseException:
                self.cancel_all(waiters)
                raise

    def futures(self, count: int) -> list[ReplyFuture]:
        """Waiters for a group call."""
        loop = self._node.current_loop()
        futures = [ReplyFuture(loop=loop) for _ in range(count)]
        for future in futures:
            future.calls = self
        return futures

    def tell_group(self, refs: Sequence[Ref], method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One cast to every member; raises like `tell`, and then some members may have got it."""
        if not self._broadcast(refs, None, method, args, kwargs, None):
            for ref in refs:
                self.tell(ref, method, args, kwargs, wait=False)

    def on_loop(self, send: Callable[[], object]) -> None:
        """See `Node.on_loop`."""
        self._node.on_loop(send)

    # What comes back.

    def finish(self, call_id: int, value: Any, error: ActorError | None) -> None:
        """A call or stream ended. Late answers are dropped and counted."""
        pending = self._pending.pop(call_id, None)
        if pending is None:
            self._node.counters.late_replies += 1
        else:
            pending[0].end(value, error)

    def items(self, call_id: int, items: list[Any], window: int) -> None:
        """Items of a stream came."""
        reader, route = self._pending.get(call_id, (None, None))
        if route is None or not isinstance(reader, StreamReader):
            self._node.counters.late_replies += 1
            return

        def return_credit(count: int) -> None:
            if call_id in self._pending:
                self._node.send_more(route, call_id, count)

        reader.put(items, window, return_credit)

    def cancel(self, call_id: int) -> None:
        """Nobody waits any more: end the handler or stream, or do not even send the call."""
        pending = self._pending.pop(call_id, None)
        if pending is None:
            return
        route = pending[1]
        for outgoing in route.waiting:
            if outgoing.call_id == call_id:
                outgoing.dropped = True
                return
        self._node.send_cancel(route, call_id)

    def cancel_all(self, waiters: Sequence[GroupWaiter]) -> None:
        """End the handlers of those of these calls that have not ended."""
        for waiter in waiters:
            if not waiter.has_ended:
                self.cancel(waiter.call_id)

    def forget(self, waiters: Sequence[GroupWaiter]) -> None:
        """The answers of these calls are not needed; their handlers run on."""
        for waiter in waiters:
            self._pending.pop(waiter.call_id, None)

    def fail_route(self, route: Route, cause: Cause) -> None:
        """The actor is not to be reached: end every call to it, and what waits to leave."""
        for call_id, (waiter, of) in list(self._pending.items()):
            if of is route:
                del self._pending[call_id]
                waiter.end(None, ActorDied(route.name, cause))
        for outgoing in route.waiting:
            if outgoing.sent is not None and not outgoing.sent.done():
                outgoing.sent.set_exception(ActorDied(route.name, cause))
            elif outgoing.call_id is None and not outgoing.dropped:
                self._node.counters.dropped_casts += 1
                log.warning("a cast to %r was dropped: %s", route.name, cause.summary)
        route.waiting.clear()

    def end_cycles(self, route: Route) -> None:
        """The way to an actor is known now: end what would wait for room that it will never make."""
        for outgoing in [outgoing for outgoing in route.waiting if outgoing.in_cycle]:
            route.waiting.remove(outgoing)
            self.not_sent(route, outgoing, _cycle(route))

    def not_sent(self, route: Route, outgoing: Outgoing, error: Exception) -> None:
        """A message that had waited for its turn could not leave."""
        if outgoing.sent is not None:
            if not outgoing.sent.done():
                outgoing.sent.set_exception(error)
        elif outgoing.call_id is not None:
            if isinstance(error, CallCycle):
                failure: ActorError = error
            else:
                failure = ActorError(f"the call to {route.name!r} could not leave: {error}")
                failure.__cause__ = error
            if (pending := self._pending.pop(outgoing.call_id, None)) is not None:
                pending[0].end(None, failure)
        else:
            self._node.counters.dropped_casts += 1
            log.warning("a cast to %r was dropped: %s", route.name, error)

    # Details.

    def _new_future(self) -> ReplyFuture:
        future = ReplyFuture(loop=self._node.current_loop())
        self._last_call_id += 1
        future.call_id = self._last_call_id
        future.calls = self
        return future

    def _route_or_raise(self, ref: Ref) -> Route:
        cause = self._node.known_cause(ref._actor_id)
        if cause is not None:
            raise ActorDied(ref._name, cause)
        return self._node.route_to(ref)

    def _start(
        self,
        kind: int,
        call_id: int,
        waiter: Waiter,
        ref: Ref,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        node = self._node
        try:
            route = node.routes.get(ref._actor_id) or self._route_or_raise(ref)
        except ActorDied as error:
            if ref._actor_id in call_scope.current().chain:  # it is down because it starts or stops, and waits for us
                waiter.end(None, CallCycle(f"{ref._name}.{method} was asked by its own on_start or on_stop: {error}"))
            else:
                waiter.end(None, error)
            return
        context = call_scope.current()
        if context.deadline is not None and context.expired():
            waiter.end(None, DeadlineExceeded("before the call was sent"))
            return
        payload: bytes | LargeMessage
        local: Local | None
        if route.slot == node.slot:
            payload, local = b"", Local(kind, method, args, kwargs, context)
            size_bytes = LOCAL_MESSAGE_BYTES
        else:
            message = (kind, route.actor_id, call_id, method, args, kwargs, context.pack())
            try:
                payload, local = node.codec.encode_out(message), None
            except EncodeError as error:
                name_argument(error, method, 4)
                raise
            size_bytes = len(payload)
        may_leave = route.state is UP and not route.waiting and route.allows(size_bytes)
        leaves = may_leave and (isinstance(payload, bytes) or payload.copy_at_once())
        self._pending[call_id] = (waiter, route)
        if leaves:
            node.asked += local is None
            try:
                node.transmit(route, call_id, size_bytes, payload, local)
            except BaseException:
                del self._pending[call_id]
                raise
            return
        in_cycle = not may_leave and route.actor_id in context.chain
        if in_cycle and route.state is UP and not route.is_copying:
            del self._pending[call_id]
            waiter.end(None, _cycle(route))
            return
        route.waiting.append(Outgoing(size_bytes, payload, local, call_id, in_cycle=in_cycle))
        if may_leave:
            node.pump(route)

    def _broadcast(
        self,
        refs: Sequence[Ref],
        waiters: Sequence[GroupWaiter] | None,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reply_from: int | None,
    ) -> bool:
        """Try the single write; False, with nothing sent, if some member is local, unknown or has no room."""
        node = self._node
        routes = []
        mask = 0
        for ref in refs:
            route = node.routes.get(ref._actor_id)
            if route is None or route.state is not UP or route.waiting or route.slot == node.slot:
                return False
            routes.append(route)
            mask |= node.peers[route.slot].mask
        first = waiters[0].call_id if waiters else None
        actor_ids = [route.actor_id for route in routes]
        context = call_scope.current().pack()
        try:
            payload = node.codec.encode_out((GROUP, actor_ids, first, reply_from, method, args, kwargs, context))
        except EncodeError as error:
            name_argument(error, method, 5)
            raise
        size_bytes = len(payload)
        if not all(route.allows(size_bytes) for route in routes):
            return False
        if not isinstance(payload, bytes):
            payload.copy()  # once for all members
        node.send_masked(mask, payload)
        for number, route in enumerate(routes):
            route.outstanding_bytes += size_bytes
            if waiters is not None:
                self._pending[waiters[number].call_id] = (waiters[number], route)
                node.asked += 1
            if route.stall_after_s is not None:
                node.watch_for_stall(route)
        return True


def _cycle(route: Route) -> CallCycle:
    """Why a message must not wait for room: its actor makes none before the handler that sends it has ended."""
    return CallCycle(
        f"the mailbox of {route.name!r} is full, and a handler that {route.name!r} itself waits for would wait for room"
    )


def _may_wait_for_the_way(route: Route, size_bytes: int) -> bool:
    """Whether a cast may be kept until it is known where its actor lives, and how much that one lets in."""
    waiting = route.waiting
    if route.state is not RouteState.RESOLVING or len(waiting) >= MAX_UNRESOLVED:
        return False
    return not waiting or size_bytes + sum(outgoing.size_bytes for outgoing in waiting) <= MAX_UNRESOLVED_BYTES
