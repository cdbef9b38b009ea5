"""A child's side of the root's control frames, for nodes of both kinds, and the context of the actor it hosts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, Final

from ringcast.channels import ORPHANED, Board, Doorbell, Frame, Link, Outbox

from .async_node import AsyncNode
from .blocking_cell import BlockingCell
from .blocking_node import BlockingNode
from .boot import ROOT_SLOT
from .context import NO_LOOP, Watch
from .errors import ActorError, Cause, StartFailed
from .events import GaveUp, Stopped
from .parcel import pack
from .peer import Peer
from .placement import Restart, Spec, Where, process
from .ref import Ref
from .route import Route
from .tasks import ended
from .wire import FrameKind

if TYPE_CHECKING:
    from .node import Node
    from .timers import Handle, Timer

    _Base = Node
else:
    _Base = object

NOT_PROMOTED: Final = object()


class ChildControl(_Base):
    """Mixed into a node: the root says who the peers are, what died, and when to stop."""

    stop_reason: str | None = None
    promotion: object = NOT_PROMOTED  # a spare's: what its predecessor hands off, once it is to take its place
    _last_watch = 0

    def on_stop_requested(self) -> None:
        """The root asked for an orderly stop; ``stop_reason`` is set."""

    def on_promoted(self) -> None:
        """The root wants this spare to become the actor; ``promotion`` is set."""

    def connect_root(self, link: Link, bell_fd: int, ring_fd: int) -> Peer:
        """The root is the first peer."""
        self._watches: dict[int, Watch] = {}
        return self.connect(ROOT_SLOT, "root", link, bell_fd, ring_fd)

    def to_root(self, kind: FrameKind, body: object) -> None:
        """Send a control frame to the root."""
        self.send_frame(self.peers[ROOT_SLOT], kind, body)

    def cancelled(self) -> bool:
        """Whether the handler that runs should end: never true for async ones, which get an exception."""
        return False

    def report_phase(self, phase: str, stall_after_s: float | None) -> None:
        self.to_root(FrameKind.PHASE, (phase, stall_after_s))

    def report_progress(self) -> None:
        _, handler = self.board.progress(self.slot)
        self.board.advance(self.slot, handler)

    def start_timer(self, msg: object, seconds: float, repeats: bool) -> Timer:
        from .timers import start_timer  # few actors have timers

        if not self.cells:
            raise ActorError("a timer cannot be started in on_prepare: start it in on_start")
        (cell,) = self.cells.values()
        return start_timer(cell, self.call_later, msg, seconds, repeats)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Handle:
        """Call it on this node's thread, after that time."""
        raise NotImplementedError

    def suspect(self, actor_id: int, progress: int) -> None:
        self.to_root(FrameKind.SUSPECT, (actor_id, progress))

    def watch(self, ref: Ref) -> Watch:
        self._last_watch += 1
        number = self._last_watch
        watch = self._watches[number] = Watch()
        watch.unsubscribe = lambda: self._unwatch(number)
        self.to_root(FrameKind.WATCH, (number, ref._actor_id))
        return watch

    def _unwatch(self, number: int) -> None:
        if self._watches.pop(number, None) is not None and ROOT_SLOT in self.peers:
            self.to_root(FrameKind.UNWATCH, number)

    async def spawn(self, spec: Spec[Any], name: str | None, where: Where, restart: Restart) -> tuple[int, str]:
        raise ActorError(NO_LOOP)

    async def stop_owned(self, ref: Ref, reason: str, timeout_s: float) -> None:
        raise ActorError(NO_LOOP)

    def on_owned(self, body: Any) -> None:
        """The root has answered a request about an actor that ours owns."""

    def resolve(self, route: Route) -> None:
        self.to_root(FrameKind.RESOLVE, route.actor_id)

    def known_cause(self, actor_id: int) -> Cause | None:
        return None

    def on_frame(self, peer: Peer, frame: Frame) -> None:
        body: Any = self.codec.decode(frame.payload)
        if frame.kind == FrameKind.CONNECT:
            slot, name = body
            ring_fd, bell_fd, link_fd = frame.fds
            self.connect(slot, name, Link(link_fd), bell_fd, ring_fd)
        elif frame.kind == FrameKind.ROUTE:
            actor_id, name, slot, capacity_bytes, stall_after_s, cause = body
            if cause is None:
                self.route_up(actor_id, name, slot, capacity_bytes, stall_after_s)
            else:
                self.take_all(peer)  # what the actor had answered comes first
                self.route_down(actor_id, cause)
        elif frame.kind == FrameKind.DIED:
            self.peer_died(*body)
        elif frame.kind == FrameKind.EVENT:
            number, event = body
            if (watch := self._watches.get(number)) is not None:
                watch.put(event)
                if isinstance(event, GaveUp | Stopped):  # the root has forgotten it
                    del self._watches[number]
        elif frame.kind == FrameKind.STOP:
            self.stop_reason = body
            self.on_stop_requested()
        elif frame.kind == FrameKind.PROMOTE:
            self.promotion = body
            self.on_promoted()
        elif frame.kind == FrameKind.OWNED:
            self.on_owned(body)
        elif frame.kind == FrameKind.ASK_STATISTICS:
            from .statistics import node_statistics

            self.to_root(FrameKind.STATISTICS, node_statistics(self))

    def on_link_closed(self, peer: Peer) -> None:
        if peer.slot == ROOT_SLOT:
            os._exit(ORPHANED)  # the native watch is about to do the same


def _outcome(body: Any) -> tuple[Any, ActorError | None]:
    """What an OWNED frame says: (actor id and name, None), or (None, the error)."""
    _, value, name, cause, text = body
    if isinstance(cause, Cause):
        return None, StartFailed(name, cause)
    return (value, None) if value is not None else (None, ActorError(text))


class AsyncChildNode(ChildControl, AsyncNode):
    """The node of a process that hosts an Actor."""

    def __init__(self, *, slot: int, name: str, board: Board, bell: Doorbell, outbox: Outbox) -> None:
        super().__init__(slot=slot, name=name, board=board, bell=bell, outbox=outbox)
        self._requests: dict[int, asyncio.Future[tuple[int, str]]] = {}  # about actors that ours owns
        self._last_request = 0
        self.stop_requested = asyncio.Event()
        self.promoted = asyncio.Event()

    def on_stop_requested(self) -> None:
        self.stop_requested.set()

    def on_promoted(self) -> None:
        self.promoted.set()

    def call_later(self, seconds: float, call: Callable[[], None]) -> Handle:
        return self.loop.call_later(seconds, call)

    async def spawn(self, spec: Spec[Any], name: str | None, where: Where, restart: Restart) -> tuple[int, str]:
        if not isinstance(where, process):
            raise ActorError(
                "an actor in a process of its own can own actors in processes only: use where=rt.process()"
            )
        if where.output is not None and not isinstance(where.output, str):
            raise ActorError("process(output=...) of an actor that an actor in a process owns: give a string")
        parcel = pack(spec, self.codec)
        content = [getattr(parcel, field.name) for field in fields(parcel)]
        cpus = None if where.cpus is None else sorted(where.cpus)
        place = [dict(where.env), cpus, where.spare, where.output]
        number, answer = self._new_request()
        self.to_root(FrameKind.SPAWN, (number, content, name, place, list(astuple(restart))))
        cancellation = await ended(answer, lambda: self.to_root(FrameKind.GIVE_UP_SPAWN, (number,)))
        if cancellation is None:
            return answer.result()
        if answer.exception() is None:  # it was up a moment before
            actor_id, name = answer.result()
            stop = asyncio.ensure_future(self.stop_owned(Ref(actor_id, name, self), "its spawn was cancelled", 1.0))
            await ended(stop, lambda: None)
        raise cancellation

    async def stop_owned(self, ref: Ref, reason: str, timeout_s: float) -> None:
        number, answer = self._new_request()
        self.to_root(FrameKind.STOP_OWNED, (number, ref._actor_id, reason, timeout_s))
        await answer

    def on_owned(self, body: Any) -> None:
        answer = self._requests.pop(body[0])
        if answer.done():
            return
        value, error = _outcome(body)
        if error is None:
            answer.set_result((value[0], value[1]))
        else:
            answer.set_exception(error)

    def _new_request(self) -> tuple[int, asyncio.Future[tuple[int, str]]]:
        self._last_request += 1
        answer = self._requests[self._last_request] = self.loop.create_future()
        return self._last_request, answer


class BlockingChildNode(ChildControl, BlockingNode):
    """The node of a process that hosts a BlockingActor."""

    def call_later(self, seconds: float, call: Callable[[], None]) -> Handle:
        return self.alarms.call_later(seconds, call)

    def cancelled(self) -> bool:
        self.look()
        return self.stop_reason is not None or any(
            cell.cancelled() for cell in self.cells.values() if isinstance(cell, BlockingCell)
        )
