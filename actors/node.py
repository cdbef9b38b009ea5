"""One process's end of a system: peers, routes, calls in flight, and the actors that live here.

The node turns calls on references into envelopes and envelopes into mailbox entries and replies. It knows no event
loop's details and never blocks: `async_node` and `blocking_node` drive it, `system` (root) and `child` say who its
peers are. Used from one thread only. What every message takes part in is native/node.c.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcast.channels import (
    Board,
    Codec,
    Doorbell,
    EncodeError,
    Frame,
    Inbox,
    Link,
    Outbox,
    RingReader,
    SegmentError,
    core_quota,
)

from . import platform
from ._native import POLL_BATCH, Incoming, NodeCore
from .call_context import CallContext
from .calls import Calls
from .consumer import StreamReader
from .delivery import Delivery
from .errors import Cause
from .forks import LeftBehind, NoWayBack, tell_of_forks
from .origin import LocalOrigin, RemoteOrigin
from .peer import Peer
from .ref import REF_TAG, Ref, pack_ref, unpack_ref
from .route import Local, Outgoing, Route, RouteState
from .wire import Envelope, FailureKind, FrameKind

if TYPE_CHECKING:
    from ringcast.channels.large import LargeMessage

log = logging.getLogger("ringcast.actors")


@dataclass(slots=True, eq=False)
class NodeCounters:
    """What a node did since it started."""

    late_replies: int = 0  # replies that came after their call had ended
    dropped_casts: int = 0  # casts whose actor was gone when they could have left
    undecodable: int = 0  # messages that no registered type fits


class Node(NodeCore, ABC):
    """See the module. ``slot`` is the process's number in the system: its bell's on the board."""

    def __init__(self, *, slot: int, name: str, board: Board, bell: Doorbell, outbox: Outbox) -> None:
        self.slot = slot
        self.name = name
        self.board = board
        self.bell = bell
        self.outbox = outbox
        self.codec = Codec({Ref: (REF_TAG, self._pack_ref, lambda data: unpack_ref(data, self))})
        self.codec.large_bytes = platform.current().large_bytes(outbox.ring.max_inline)
        self.peers: dict[int, Peer] = {}
        self.readers = ()
        self.routes: dict[int, Route] = {}
        self.cells = {}
        self.counters = NodeCounters()
        self.calls = Calls(self)
        self.delivery = Delivery(self)
        self.local_origin = LocalOrigin(self)
        self._inboxes = ()
        self._backlog = deque()
        self._backlog_left = 0  # how many messages have ever left it
        bell.cores = bell.cores or core_quota()
        self.has_forked = False  # this process is a copy of the node's, and takes no part in its system
        tell_of_forks(self)

    def was_forked(self) -> None:
        """See `forks`."""
        self.has_forked = True
        nothing: Any = LeftBehind()
        self.calls = nothing
        for peer in self.peers.values():
            peer.link = nothing
        no_way_back: Any = NoWayBack()
        self.outbox = no_way_back

    def _pack_ref(self, ref: Ref) -> bytes:
        if ref._sender is not self and ref._sender is not None:
            raise EncodeError(f"{ref!r} is of another system: an actor of this one cannot reach it")
        return pack_ref(ref)

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
    def backlog_waits(self) -> None:
        """Messages wait for room in our ring: call `go_around` if that takes long."""

    def on_loop(self, send: Callable[[], object]) -> None:
        """Call ``send`` where this node may be used: here, unless the caller is another thread than the node's."""
        send()

    def copy_off_loop(self, message: LargeMessage, done: Callable[[Exception | None], None]) -> None:
        """Copy a message on a thread, then call ``done`` on the loop. Only where there is a loop."""
        raise NotImplementedError

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
        self.on_loop(lambda: self.calls.tell(ref, method, args, kwargs, wait=False))

    async def tell_waiting(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outgoing = self.calls.tell(ref, method, args, kwargs, wait=True)
        if outgoing is not None and outgoing.sent is not None:
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

    def transmit(
        self, route: Route, call_id: int | None, size_bytes: int, payload: bytes | LargeMessage, local: Local | None
    ) -> None:
        """Send a message along a route that is up and allows it. `SegmentError` without memory: nothing was sent."""
        if local is None:
            self.send_masked(self.peers[route.slot].mask, payload)
            route.outstanding_bytes += size_bytes
            if route.stall_after_s is not None:
                self.watch_for_stall(route)
        else:
            kind, method, args, kwargs, context = local
            is_stream = kind == Envelope.OPEN
            cell = self.cells.get(route.actor_id)
            if cell is None:
                self._refuse(route, call_id, context)
                return
            route.outstanding_bytes += size_bytes
            cell.put(Incoming(call_id, method, args, kwargs, self.local_origin, size_bytes, context, is_stream))

    def _refuse(self, route: Route, call_id: int | None, context: CallContext) -> None:
        """An actor here prepares itself, or has ended and the way to it is about to be taken down."""
        if call_id is None:
            self.counters.dropped_casts += 1
        elif route.actor_id in context.chain:
            text = f"{route.name} was asked by its own on_prepare"
            self.local_origin.fail(route.name, call_id, FailureKind.CYCLE, None, text, "")
        else:
            self.local_origin.fail(route.name, call_id, FailureKind.GONE, None, "it was stopped", "")

    def send_cancel(self, route: Route, call_id: int) -> None:
        """Tell an actor's cell that a call or stream of ours is given up."""
        if route.slot == self.slot:
            cell = self.cells.get(route.actor_id)
            if cell is not None:
                cell.cancel(self.local_origin, call_id)
        elif (peer := self.peers.get(route.slot)) is not None:
            self.send(peer, self.codec.encode((int(Envelope.CANCEL), route.actor_id, call_id)))

    def send_more(self, route: Route, call_id: int, count: int) -> None:
        """Return a stream's credit."""
        if route.slot == self.slot:
            cell = self.cells.get(route.actor_id)
            if cell is not None:
                cell.more(self.local_origin, call_id, count)
        elif (peer := self.peers.get(route.slot)) is not None:
            self.send(peer, self.codec.encode((int(Envelope.MORE), route.actor_id, call_id, count)))

    def pump(self, route: Route) -> None:
        """Send what waits and may leave."""
        while (outgoing := route.next_allowed()) is not None:
            try:
                if not self._is_copied(route, outgoing):
                    return
                self.transmit(route, outgoing.call_id, outgoing.size_bytes, outgoing.payload, outgoing.local)
            except SegmentError as error:
                self.calls.not_sent(route, outgoing, error)
            if outgoing.sent is not None and not outgoing.sent.done():
                outgoing.sent.set_result(None)

    def _is_copied(self, route: Route, outgoing: Outgoing) -> bool:
        """Whether a message is its own memory; if it has much to copy, a thread does it while the message waits."""
        payload = outgoing.payload
        if isinstance(payload, bytes) or payload.copy_at_once():
            return True

        def done(error: Exception | None) -> None:
            outgoing.copying = False
            if error is not None and outgoing in route.waiting:
                route.waiting.remove(outgoing)
                self.calls.not_sent(route, outgoing, error)
            self.pump(route)
            if not route.is_copying:
                self.calls.end_cycles(route)

        outgoing.copying = True
        route.waiting.appendleft(outgoing)
        self.copy_off_loop(payload, done)
        return False

    def credit(self, actor_id: int, slot: int, size_bytes: int) -> None:
        """The actor took messages of that size from its mailbox."""
        route = self.routes.get(actor_id)
        if route is not None and route.slot == slot:
            # More comes back than was sent where messages to the actor's last incarnation reached the next one.
            route.outstanding_bytes = max(0, route.outstanding_bytes - size_bytes)
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
        self.calls.end_cycles(route)

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
        # What is spilled (see `go_around`) would else wait in the backlog, and mailboxes bound both.
        reader_slot = self.outbox.admit(bell, link, spill_limit_bytes=sys.maxsize)
        peer = self.peers[slot] = Peer(slot, name, link, bell, ring_fd, reader_slot, 1 << reader_slot)
        peer.origin = RemoteOrigin(self, peer)
        place = (reader_slot, self.outbox.ring.position, self.outbox.ring.epoch)
        self.send_frame(peer, FrameKind.ATTACH, place)
        self.watch_link(peer)
        return peer

    def peer_died(self, slot: int, cause: Cause) -> None:
        """Proof of death arrived: take what it had committed, then forget it."""
        if (peer := self._take_last(slot)) is not None:
            self.outbox.evict(peer.reader_slot)
            self._forget(peer, cause)

    def part_from(self, slot: int, cause: Cause) -> None:
        """We stop sending to a process that lives: as `peer_died`, but it may still read what it has been sent."""
        if (peer := self._take_last(slot)) is not None:
            self._forget(peer, cause)

    def _take_last(self, slot: int) -> Peer | None:
        """Take what a peer had committed; it is none any longer."""
        peer = self.peers.pop(slot, None)
        if peer is not None:
            self.unwatch_link(peer)
            self._read_frames(peer)
            self.take_all(peer)
        return peer

    def _forget(self, peer: Peer, cause: Cause) -> None:
        for route in [r for r in self.routes.values() if r.slot == peer.slot]:
            self.route_down(route.actor_id, cause)
        for cell in self.cells.values():
            cell.forget(peer.origin)
        self._collect_readers()
        self._backlog_mask &= ~peer.mask
        self._backlog = deque((payload, rest) for payload, mask in self._backlog if (rest := mask & ~peer.mask))
        peer.link.close()
        if peer.ring_fd >= 0:
            os.close(peer.ring_fd)
        del peer.origin  # the two hold each other, and with them descriptors, until somebody collects garbage

    def take_all(self, peer: Peer) -> None:
        """Handle everything that the peer has committed to its ring."""
        if peer.inbox is not None:
            while self.delivery.handle_all(peer, peer.inbox.poll(POLL_BATCH), False):
                pass

    def send_frame(self, peer: Peer, kind: FrameKind, body: object = None, fds: tuple[int, ...] = ()) -> None:
        """Queue a control frame on the peer's link."""
        peer.link.send(kind, 0, self.codec.encode(body), fds)
        if peer.link.pending:
            self.link_has_backlog(peer)

    def send(self, peer: Peer, payload: bytes) -> None:
        """Put an envelope into our ring for one peer, behind everything sent before."""
        self.send_masked(peer.mask, payload)

    def flush(self) -> None:
        """Send what had found no room, and ring the doorbells of the addressed."""
        self._unflushed = 0
        while self._backlog and self._try_again():
            self._backlog.popleft()
            self._backlog_left += 1
        if self._backlog:
            self.backlog_waits()
        else:
            self._backlog_mask = 0
        self.outbox.flush()
        if self.outbox.uses_links:
            for link in self.outbox.links_pending():
                self.link_has_backlog(next(p for p in self.peers.values() if p.link is link))

    def _try_again(self) -> bool:
        """Send the first message of the backlog. It is waited for, so a lack of memory is waited out."""
        try:
            return self.outbox.try_send(*self._backlog[0])
        except SegmentError as error:
            log.warning("messages of %r wait: %s", self.name, error)
            return False

    def go_around(self) -> None:
        """Who holds the room that the backlog waits for gets its messages over its link, until it has caught up.

        Unless the backlog is its alone: it may be busy in one handler, or stopped, and others must not wait for it.
        """
        if not self._backlog_mask & ~self.outbox.holders(len(self._backlog[0][0])):
            return
        slots = [peer.reader_slot for peer in self.peers.values()]
        for slot in slots:
            self.outbox.set_policy(slot, "spill")
        try:
            if self._try_again():
                self._backlog.popleft()
                self._backlog_left += 1
        finally:
            for slot in slots:
                self.outbox.set_policy(slot, "wait")
        self.flush()

    # Receiving.

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def _collect_readers(self) -> None:
        self._inboxes = tuple((p, p.inbox) for p in self.peers.values() if p.inbox is not None)
        self.readers = tuple(inbox.reader for _, inbox in self._inboxes)

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
                self._collect_readers()
            elif frame.kind < FrameKind.ATTACH:
                assert peer.inbox is not None  # the peer admits us before it sends
                peer.inbox.feed(frame)
            else:
                self.on_frame(peer, frame)
