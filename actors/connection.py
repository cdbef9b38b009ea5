"""Calls actors of another program, which serves them under a name. See docs/names.md.

This process takes part in the other program's system as one more process, through a node of its own; it may do so in
several, and have a system of its own besides.
"""

from __future__ import annotations

import asyncio
import os
import time
from types import TracebackType
from typing import Final, TypeVar, cast

from ringcast.channels import Board, Codec, Doorbell, Frame, Link, Outbox, RingWriter
from ringcast.channels.name_door import Knock
from ringcast.channels.named_aio import attach

from .actor import Actor, BlockingActor
from .async_node import AsyncNode
from .boot import ROOT_SLOT
from .child_node import ChildControl
from .context import Watch
from .errors import ActorError, Cause, NotInSystem
from .events import GaveUp
from .peer import Peer
from .ref import Ref
from .serving import KIND
from .wire import FrameKind

A = TypeVar("A", bound=Actor | BlockingActor)

LEAVE_TIMEOUT_S: Final = 5.0  # for what was sent and has not found room
_LOOK_EVERY_S: Final = 0.002  # meanwhile


def connect(name: str) -> Remote:
    """``async with rt.connect(name) as remote:`` call the actors that another program serves under that name.

    Raises (when the block is entered), all of them at once and of `ringcast.channels`:
        NameUnknown: nobody serves it, or its owner is dead.
        NameRefused: it is another user's, or the system has as many processes as it can.
        NameMismatch: its owner runs another version of ringcast.

    An owner that lives but does not answer is waited for: use ``asyncio.timeout``. When the owner dies, every call
    ends with `ActorDied`, and so does every later one.
    """
    return Remote(name)


class Remote:
    """A connection to another program's system; see `connect`. Its references may be used inside the block only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._node: ConnectedNode | None = None
        self._has_left = False
        self._exports: dict[str, tuple[int, str]] = {}

    async def __aenter__(self) -> Remote:
        if self._node is not None:
            raise ActorError(f"the connection to {self.name!r} was entered before: make a new one")
        self._node = await attach(KIND, self.name, self._join)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._node is not None
        if not self._has_left:
            self._has_left = True
            await self._node.leave()

    @property
    def actors(self) -> list[str]:
        """The names under which actors are exported."""
        return list(self._exports)

    def find(self, name: str, cls: type[A]) -> A:
        """The reference of an exported actor, typed as ``cls``, the class (or its twin here) whose handlers it has.

        `ActorError` if there is none of that name.
        """
        if self._node is None:
            raise NotInSystem(f"the connection to {self.name!r} was not entered: use `async with`")
        if not (isinstance(cls, type) and issubclass(cls, Actor | BlockingActor)):
            raise TypeError(f"find needs the actor's class, not {cls!r}")
        if name not in self._exports:
            raise ActorError(
                f"{self.name!r} exports no actor {name!r}; it exports {', '.join(map(repr, self._exports))}"
            )
        actor_id, actor_name = self._exports[name]
        return cast(A, Ref(actor_id, actor_name, self._node))

    def watch(self, ref: object) -> Watch:
        """The events of an actor; the first is its present state, and `GaveUp` is the end of its program."""
        if self._node is None or not isinstance(ref, Ref) or ref._sender is not self._node:
            raise NotInSystem(f"{ref!r} is not a reference of the connection to {self.name!r}")
        return self._node.watch(ref)

    def _join(self, knock: Knock, welcome: Frame) -> ConnectedNode:
        node = ConnectedNode.made_of(self.name, knock, welcome)
        self._exports = {label: (actor_id, name) for label, actor_id, name in node.exports}
        return node


class ConnectedNode(ChildControl, AsyncNode):
    """The node of a program that is connected: hosts no actor, and outlives the system that it is connected to."""

    def __init__(self, *, slot: int, name: str, board: Board, bell: Doorbell, outbox: Outbox) -> None:
        super().__init__(slot=slot, name=name, board=board, bell=bell, outbox=outbox)
        self.exports: list[tuple[str, int, str]] = []
        self._ended: Cause | None = None  # why nobody here can be called any longer
        self._server_pid = 0
        self._own_pid = os.getpid()
        self._pidfd = -1

    @classmethod
    def made_of(cls, name: str, knock: Knock, welcome: Frame) -> ConnectedNode:
        """Join the system as its root says. Takes the knock over."""
        board_fd, bell_fd, ring_fd, root_bell_fd, root_ring_fd = welcome.fds
        try:
            slot, epoch, exports = Codec().decode(welcome.payload)
            board = Board(board_fd)
            board.advance(slot, 0)  # the slot may have been another process's
            bell = Doorbell(board, slot, bell_fd)
            outbox = Outbox(RingWriter(ring_fd, bell, epoch=epoch))
            node = cls(slot=slot, name=name, board=board, bell=bell, outbox=outbox)
        finally:
            for fd in (board_fd, bell_fd, ring_fd):
                os.close(fd)
        node.exports = [(label, actor_id, actor_name) for label, actor_id, actor_name in exports]
        node._server_pid, node._pidfd = knock.pid, knock.pidfd
        node.start()
        peer = node.connect_root(knock.link, root_bell_fd, root_ring_fd)
        node.handle_frames(peer, knock.behind)
        node.loop.add_reader(node._pidfd, node._server_died)
        return node

    async def leave(self) -> None:
        """Send what waits, as far as it finds room in time, then let go of everything."""
        if self.has_forked:
            return  # it is our parent's to leave
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        try:
            while self._ended is None and self._has_unsent() and time.monotonic() < deadline:
                self.flush()
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:  # a cancellation gives up what waits, and nothing else
            self._end(Cause(f"the connection to {self.name!r} was closed here"))
            self.stop()
            self._forget_pidfd()
            del self.outbox, self.bell, self.board

    def watch(self, ref: Ref) -> Watch:
        if self._ended is None:
            return super().watch(ref)
        watch = Watch()
        watch.unsubscribe = lambda: None
        watch.put(GaveUp(self._ended))
        return watch

    def known_cause(self, actor_id: int) -> Cause | None:
        return self._ended

    def on_frame(self, peer: Peer, frame: Frame) -> None:
        if self._ended is None:
            super().on_frame(peer, frame)
            return
        for fd in frame.fds:  # of a process that there is no time left to meet
            os.close(fd)

    def suspect(self, actor_id: int, progress: int) -> None:
        if self._ended is None:
            super().suspect(actor_id, progress)

    def on_stop_requested(self) -> None:
        """The system wants us to leave. Not in the middle of its frames."""
        self.loop.call_soon(self._end, Cause(self.stop_reason or "it is no longer served"))

    def on_link_closed(self, peer: Peer) -> None:
        if peer.slot == ROOT_SLOT:
            self._end(
                Cause(f"process {self._server_pid}, which served {self.name!r}, is dead or has stopped its system")
            )

    def _server_died(self) -> None:
        if (root := self.peers.get(ROOT_SLOT)) is not None:
            self.read_link(root)  # it may have said why
        self._end(Cause(f"process {self._server_pid}, which served {self.name!r}, is dead"))

    def _end(self, cause: Cause) -> None:
        """No call can be answered any longer: end them all, let go of the rings, and say so."""
        self._forget_pidfd()
        if self._ended is not None:
            return
        self._ended = cause
        self.flush()
        root = self.peers[ROOT_SLOT]
        # The root gives our place to others once it has read this, so it goes after the last look at any ring.
        may_speak = not root.link.closed and not root.link.pending and os.getpid() == self._own_pid
        goodbye = Link(os.dup(root.link.fileno())) if may_speak else None
        for slot in list(self.peers):
            self.part_from(slot, cause)
        if goodbye is not None:
            goodbye.send(FrameKind.LEFT, 0)
            goodbye.close()
        for actor_id in list(self.routes):
            self.route_down(actor_id, cause)
        for watch in list(self._watches.values()):
            watch.put(GaveUp(cause))

    def _has_unsent(self) -> bool:
        return (
            self.has_backlog
            or any(peer.link.pending for peer in self.peers.values())
            or any(route.waiting for route in self.routes.values())
        )

    def _forget_pidfd(self) -> None:
        if self._pidfd >= 0:
            self.loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
