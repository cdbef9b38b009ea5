"""One process's end of a system: peers, routes, calls in flight, and the actors that live here.

The node turns calls on references into envelopes and envelopes into mailbox entries and replies. It knows no event
loop's details and never blocks: `async_node` and `blocking_node` drive it, `system` (root) and `child` say who its
peers are. Used from one thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import msgpack

from ringcast.channels import (
    Board,
    ChannelError,
    Codec,
    DecodeError,
    Doorbell,
    Frame,
    Inbox,
    Link,
    Outbox,
    RingReader,
)

from . import call_context
from .calls import Calls
from .cell import Cell, Incoming
from .consumer import StreamReader
from .errors import Cause, RemoteError
from .origin import LocalOrigin, RemoteOrigin, call_error
from .peer import Peer
from .ref import REF_TAG, Ref, pack_ref, unpack_ref
from .route import Outgoing, Route, RouteState
from .wire import Envelope, FailureKind, FrameKind

log = logging.getLogger("ringcast.actors")

POLL_BATCH = 128


@dataclass(slots=True)
class NodeCounters:
    """What a node did since it started."""

    late_replies: int = 0  # replies that came after their call had ended
    dropped_casts: int = 0  # casts whose actor was gone when they could have left
    undecodable: int = 0  # messages that no registered type fits


class Node(ABC):
    """See the module. ``slot`` is the process's number in the system: its bell's on the board."""

    def __init__(self, *, slot: int, name: str, board: Board, bell: Doorbell, outbox: Outbox) -> None:
        self.slot = slot
        self.name = name
        self.board = board
        self.bell = bell
        self.outbox = outbox
        self.codec = Codec({Ref: (REF_TAG, pack_ref, lambda data: unpack_ref(data, self))})
        self.peers: dict[int, Peer] = {}
        self.routes: dict[int, Route] = {}
        self.cells: dict[int, Cell] = {}
        self.counters = NodeCounters()
        self.calls = Calls(self)
        self.local_origin = LocalOrigin(self)
        self._origins: dict[int, RemoteOrigin] = {}
        self._backlog: deque[tuple[bytes, int]] = deque()

    # What drivers and owners supply.

    @abstractmethod
    def schedule_flush(self) -> None:
        """Ring the doorbells of what was sent, soon."""

    @abstractmethod
    def watch_link(self, peer: Peer) -> None:
        """Call `read_link` when the peer's link is readable."""

    @abstractmethod
    def unwatch_link(self, peer: Peer) -> None:
        """Stop watching it."""

    @abstractmethod
    def link_has_backlog(self, peer: Peer) -> None:
        """Frames wait because the link is full: pump it when it is writable."""

    @abstractmethod
    def current_loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which replies arrive; `ActorError` where there is none."""

    @abstractmethod
    def resolve(self, route: Route) -> None:
        """Find out where an actor lives; `route_up` or `route_down` follows, now or later."""

    @abstractmethod
    def known_cause(self, actor_id: int) -> Cause | None:
        """Why the actor is down, if this node already knows that it is."""

    @abstractmethod
    def watch_for_stall(self, route: Route) -> None:
        """A message is on its way to an actor that declares how long its handlers may take."""

    @abstractmethod
    def suspect(self, actor_id: int, progress: int) -> None:
        """An actor looks stalled: the board has shown the same progress for as long as it declares."""

    @abstractmethod
    def on_frame(self, peer: Peer, frame: Frame) -> None:
        """A control frame that is no business of the node itself."""

    @abstractmethod
    def on_link_closed(self, peer: Peer) -> None:
        """The other end of the link is gone."""

    # Asking and telling: `Calls` does the work.

    def ask(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        return self.calls.ask(ref, method, args, kwargs)

    def open(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamReader:
        return self.calls.open(ref, method, args, kwargs)

    def tell(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.tell(ref, method, args, kwargs, wait=False)

    async def tell_waiting(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outgoing = self.calls.tell(ref, method, args, kwargs, wait=True)
        if outgoing.sent is not None:
            try:
                await outgoing.sent
            except asyncio.CancelledError:
                outgoing.dropped = True
                raise

    # What `Calls` needs.

    def route_to(self, ref: Ref) -> Route:
        """The route to an actor, which may still be unknown."""
        route = self.routes.get(ref._actor_id)
        if route is None:
            route = self.routes[ref._actor_id] = Route(ref._actor_id, ref._name)
            self.resolve(route)
        return route

    def transmit(self, route: Route, outgoing: Outgoing) -> None:
        """Send a message along a route that is up and allows it."""
        route.outstanding_bytes += outgoing.size_bytes
        if outgoing.payload is not None:
            self.send(self.peers[route.slot], outgoing.payload)
            if route.stall_after_s is not None:
                self.watch_for_stall(route)
        else:
            assert outgoing.local is not None
            kind, method, args, kwargs, context = outgoing.local
            self.cells[route.actor_id].put(
                Incoming(
                    outgoing.call_id,
                    method,
                    args,
                    kwargs,
                    self.local_origin,
                    outgoing.size_bytes,
                    context,
                    is_stream=kind is Envelope.OPEN,
                )
            )
        if outgoing.sent is not None and not outgoing.sent.done():
            outgoing.sent.set_result(None)

    def send_cancel(self, route: Route, call_id: int) -> None:
        """Tell an actor's cell that a call or stream of ours is given up."""
        if route.slot == self.slot:
            cell = self.cells.get(route.actor_id)
            if cell is not None:
                cell.cancel(self.local_origin, call_id)
        elif (peer := self.peers.get(route.slot)) is not None:
            self.send(peer, self.codec.encode((Envelope.CANCEL, route.actor_id, call_id)))

    def send_more(self, route: Route, call_id: int, count: int) -> None:
        """Return a stream's credit."""
        if route.slot == self.slot:
            cell = self.cells.get(route.actor_id)
            if cell is not None:
                cell.more(self.local_origin, call_id, count)
        elif (peer := self.peers.get(route.slot)) is not None:
            self.send(peer, self.codec.encode((Envelope.MORE, route.actor_id, call_id, count)))

    def pump(self, route: Route) -> None:
        """Send what waits and may leave."""
        while (outgoing := route.next_allowed()) is not None:
            self.transmit(route, outgoing)

    def credit(self, actor_id: int, slot: int, size_bytes: int) -> None:
        """The actor took messages of that size from its mailbox."""
        route = self.routes.get(actor_id)
        if route is not None and route.slot == slot:
            route.outstanding_bytes -= size_bytes
            if route.waiting:
                self.pump(route)

    # Routes and peers.

    def route_up(
        self, actor_id: int, name: str, slot: int, capacity_bytes: int, stall_after_s: float | None = None
    ) -> None:
        """The actor lives in that process; what waited for it leaves."""
        route = self.routes.get(actor_id)
        if route is None:
            route = self.routes[actor_id] = Route(actor_id, name)
        route.state = RouteState.UP
        route.slot = slot
        route.capacity_bytes = capacity_bytes
        route.stall_after_s = stall_after_s
        self.pump(route)

    def route_down(self, actor_id: int, cause: Cause) -> None:
        """The actor is not to be reached: end its calls and forget the way; the next call asks anew."""
        route = self.routes.pop(actor_id, None)
        if route is None:
            return
        self.calls.fail_route(route, cause)

    def connect(self, slot: int, name: str, link: Link, bell_fd: int, ring_fd: int) -> Peer:
        """Admit another process to our ring and tell it so; its own notice makes our inbox. Takes the fds over."""
        bell = Doorbell(self.board, slot, bell_fd)
        os.close(bell_fd)
        reader_slot = self.outbox.admit(bell, link)
        peer = self.peers[slot] = Peer(slot, name, link, bell, ring_fd, reader_slot)
        self._origins[slot] = RemoteOrigin(self, peer)
        place = (reader_slot, self.outbox.ring.position, self.outbox.ring.epoch)
        self.send_frame(peer, FrameKind.ATTACH, place)
        self.watch_link(peer)
        return peer

    def peer_died(self, slot: int, cause: Cause) -> None:
        """Proof of death arrived: take what it had committed, then forget it."""
        peer = self.peers.pop(slot, None)
        if peer is None:
            return
        self.unwatch_link(peer)
        self._read_frames(peer)
        if peer.inbox is not None:
            while messages := peer.inbox.poll(POLL_BATCH):
                for message in messages:
                    self._handle(peer, message.payload)
        self.outbox.evict(peer.reader_slot)
        for route in [r for r in self.routes.values() if r.slot == slot]:
            self.route_down(route.actor_id, cause)
        origin = self._origins.pop(slot)
        for cell in self.cells.values():
            cell.forget(origin)
        others = ~(1 << peer.reader_slot)
        self._backlog = deque((payload, mask & others) for payload, mask in self._backlog if mask & others)
        peer.link.close()
        if peer.ring_fd >= 0:
            os.close(peer.ring_fd)

    def send_frame(self, peer: Peer, kind: FrameKind, body: object = None, fds: tuple[int, ...] = ()) -> None:
        """Queue a control frame on the peer's link."""
        peer.link.send(kind, 0, self.codec.encode(body), fds)
        if peer.link.pending:
            self.link_has_backlog(peer)

    def send(self, peer: Peer, payload: bytes) -> None:
        """Put an envelope into our ring for one peer, behind everything sent before."""
        self._send_masked(1 << peer.reader_slot, payload)

    def send_to_slots(self, slots: list[int], payload: bytes) -> None:
        """The same for several processes: one record that all of them read."""
        mask = 0
        for slot in slots:
            mask |= 1 << self.peers[slot].reader_slot
        self._send_masked(mask, payload)

    def _send_masked(self, mask: int, payload: bytes) -> None:
        if self._backlog or not self.outbox.try_send(payload, mask):
            self._backlog.append((payload, mask))
        self.schedule_flush()

    def flush(self) -> None:
        """Send what had found no room, and ring the doorbells of the addressed."""
        while self._backlog and self.outbox.try_send(*self._backlog[0]):
            self._backlog.popleft()
        self.outbox.flush()
        for link in self.outbox.links_pending():
            self.link_has_backlog(next(p for p in self.peers.values() if p.link is link))

    # Receiving.

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def poll_once(self) -> int:
        """Handle a batch from every inbox; the number of messages handled."""
        handled = 0
        for peer in list(self.peers.values()):
            inbox = peer.inbox
            if inbox is None:
                continue
            messages = inbox.poll(POLL_BATCH)
            if inbox.reader.blocked:
                self.read_link(peer)
                messages += inbox.poll(POLL_BATCH)
            for message in messages:
                self._handle(peer, message.payload)
            handled += len(messages)
        if self._backlog:
            self.flush()
        return handled

    def read_link(self, peer: Peer) -> None:
        """Handle the frames that the peer sent."""
        self._read_frames(peer)
        if peer.link.closed and peer.slot in self.peers:
            self.unwatch_link(peer)
            self.on_link_closed(peer)

    def _read_frames(self, peer: Peer) -> None:
        self.handle_frames(peer, peer.link.receive())

    def handle_frames(self, peer: Peer, frames: list[Frame]) -> None:
        """Act on frames that came over the peer's link."""
        for frame in frames:
            if frame.kind == FrameKind.ATTACH:
                reader_slot, position, epoch = self.codec.decode(frame.payload)
                reader = RingReader(peer.ring_fd, reader_slot, position, peer.bell, epoch)
                peer.inbox = Inbox(reader, peer.link)
                os.close(peer.ring_fd)
                peer.ring_fd = -1
            elif frame.kind < FrameKind.ATTACH:
                assert peer.inbox is not None  # the peer admits us before it sends
                peer.inbox.feed(frame)
            else:
                self.on_frame(peer, frame)

    def _handle(self, peer: Peer, data: bytes | memoryview) -> None:
        try:
            message = self.codec.decode(data)
            kind = message[0]
            if kind == Envelope.CALL or kind == Envelope.OPEN:
                _, actor_id, call_id, method, args, kwargs, packed = message
                context, is_stream = call_context.unpack(packed), kind == Envelope.OPEN
                origin = self._origins[peer.slot]
                self._deliver(actor_id, Incoming(call_id, method, args, kwargs, origin, len(data), context, is_stream))
            elif kind == Envelope.REPLY:
                self.calls.finish(message[1], message[2], None)
            elif kind == Envelope.CAST:
                _, actor_id, method, args, kwargs = message
                self._deliver(actor_id, Incoming(None, method, args, kwargs, self._origins[peer.slot], len(data)))
            elif kind == Envelope.ITEMS:
                self.calls.items(*message[1:])
            elif kind == Envelope.MORE:
                _, actor_id, call_id, count = message
                if (cell := self.cells.get(actor_id)) is not None:
                    cell.more(self._origins[peer.slot], call_id, count)
            elif kind == Envelope.CREDIT:
                self.credit(message[1], peer.slot, message[2])
            elif kind == Envelope.FAILURE:
                _, call_id, failure, name, type_name, text, trace = message
                self.calls.finish(call_id, None, call_error(failure, name, type_name, text, trace))
            elif kind == Envelope.CANCEL:
                if (cell := self.cells.get(message[1])) is not None:
                    cell.cancel(self._origins[peer.slot], message[2])
            elif kind == Envelope.GROUP:
                self._deliver_group(peer, len(data), *message[1:])
            else:
                raise DecodeError(f"no envelope kind {kind}")
        except (ChannelError, ValueError, TypeError, IndexError, KeyError) as error:
            self._undecodable(peer, data, error)

    def _deliver(self, actor_id: int, incoming: Incoming) -> None:
        cell = self.cells.get(actor_id)
        if cell is not None:
            cell.put(incoming)
        elif incoming.call_id is not None:
            text = "it is not in this process"
            incoming.origin.fail(str(actor_id), incoming.call_id, FailureKind.GONE, None, text, "")

    def _deliver_group(
        self,
        peer: Peer,
        size_bytes: int,
        actor_ids: list[int],
        first_call_id: int | None,
        reply_from: int | None,
        method: str,
        args: Any,
        kwargs: Any,
        packed: Any,
    ) -> None:
        """A message to several actors: give it to those that live here."""
        context = call_context.unpack(packed)
        for number, actor_id in enumerate(actor_ids):
            if actor_id in self.cells:
                call_id = None if first_call_id is None else first_call_id + number
                quiet = reply_from is not None and reply_from != number
                incoming = Incoming(
                    call_id, method, args, kwargs, self._origins[peer.slot], size_bytes, context, quiet=quiet
                )
                self._deliver(actor_id, incoming)

    def _undecodable(self, peer: Peer, data: bytes | memoryview, error: Exception) -> None:
        """A message that does not decode ends its own call, if it is one; everything else goes on."""
        self.counters.undecodable += 1
        log.error("undecodable message of %d bytes from %r: %s", len(data), peer.name, error)
        try:
            head = msgpack.unpackb(data, strict_map_key=False)
            kind = head[0]
            first, second = head[1], head[2]
        except Exception:  # not even an envelope: it was logged, and there is nobody to tell
            return
        if kind in (Envelope.REPLY, Envelope.ITEMS):
            self.calls.finish(first, None, RemoteError(peer.name, type(error).__name__, str(error), ""))
            return
        if kind not in (Envelope.CALL, Envelope.CAST, Envelope.OPEN, Envelope.GROUP):
            return
        origin = self._origins[peer.slot]
        for number, actor_id in enumerate(first if kind == Envelope.GROUP else [first]):
            cell = self.cells.get(actor_id)
            if cell is None:
                continue
            origin.took(actor_id, len(data), cell.capacity_bytes)
            if kind != Envelope.CAST and second is not None:
                origin.fail(cell.name, second + number, FailureKind.RAISED, error, str(error), "")
