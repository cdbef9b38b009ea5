"""Actors under a name: the side of the system that other programs of this user may call. See docs/names.md.

A program that connects becomes one more process of the system: a slot on the board, a ring, introductions to the
children whose actors it calls. It hosts no actor, and nobody here started it, so nobody here ends it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ringcast.channels import Frame, RingWriter, create_segment
from ringcast.channels.name_door import WELCOME, Door, Visitor
from ringcast.channels.named_aio import LoopWatch

from .boot import BOARD_CONNECTED, BOARD_FREE
from .errors import ActorError, Cause
from .peer import Peer
from .wire import FrameKind

if TYPE_CHECKING:
    from .root_node import RootNode
    from .system import System

KIND: Final = "system"  # of the name
_EPOCH: Final = 1  # of a guest's ring: each has a segment of its own
log = logging.getLogger("ringcast.actors")


def serve(system: System, name: str, actors: Mapping[str, object]) -> Serving:
    """``async with rt.serve(system, name, actors):`` programs of this user can `connect` by that name and call them.

    Args:
        system: is entered, and lives longer than the block.
        name: 1 to 100 letters, digits, '_', '.' and '-'. A name whose owner is dead is taken over.
        actors: what is exported: references by the names under which the others find them.

    Raises (when the block is entered):
        NameTaken: another living program, or block, has the name (`ringcast.channels.NameTaken`).
        NameRefused: it is another user's.
        NotInSystem: a reference is of another system.

    At the end of the block the name is gone, and the calls of the connected programs end with `ActorDied`.
    """
    if not actors:
        raise ActorError(f"serve({name!r}) exports nothing: give references by name, {{'counter': counter}}")
    for label in actors:
        if not isinstance(label, str) or not label:
            raise TypeError(
                f"serve({name!r}) exports an actor as {label!r}: names of actors are strings, and not empty"
            )
    return Serving(system, name, actors)


class Serving:
    """See `serve`."""

    def __init__(self, system: System, name: str, actors: Mapping[str, object]) -> None:
        self.name = name
        self._system = system
        self._actors = dict(actors)
        self._guests: set[Guest] = set()

    async def __aenter__(self) -> Serving:
        exports = []
        for label, reference in self._actors.items():
            ref = self._system._ref(reference)
            exports.append((label, ref._actor_id, ref._name))
        self._exports = exports
        self._root = self._system._running()
        self._door = Door(KIND, self.name)
        self._watch = LoopWatch(self._door.fds, self._look)
        self._watch.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        self._door.close()
        for guest in list(self._guests):
            guest.ask_to_leave(f"{self.name!r} is no longer served")

    @property
    def clients(self) -> list[int]:
        """The process ids of the programs that are connected."""
        return [guest.pid for guest in self._guests]

    def _look(self) -> None:
        for visitor in self._door.look():
            try:
                self._system._running()
                guest = Guest(self._root, visitor, self.name, self._exports, self._guests)
            except (ActorError, OSError) as error:  # no slot, no memory, no descriptor, or the system has stopped
                log.warning("process %d could not be connected to %r: %s", visitor.pid, self.name, error)
                visitor.refuse(f"process {visitor.pid} could not be connected: {error}")
            else:
                self._guests.add(guest)


class Guest:
    """A connected program, as the root sees it: what a `ProcessHost` is to a child."""

    def __init__(
        self,
        root: RootNode,
        visitor: Visitor,
        served: str,
        exports: list[tuple[str, int, str]],
        guests: set[Guest],
    ) -> None:
        self.pid = visitor.pid
        self.name = f"program {visitor.pid}"
        self._root = root
        self._pidfd = visitor.pidfd
        self._guests = guests
        self._loop = asyncio.get_running_loop()
        self.slot = root.take_slot(self.name)
        try:
            self._ring = create_segment(RingWriter.size_bytes(root.ring_bytes))
            self._bell_fd = root.bell_fd(self.slot)
            fds = (root.board_fd, self._bell_fd, self._ring.fd, root.bell.fileno(), root.ring_fd)
            welcome = root.codec.encode((self.slot, _EPOCH, exports))
            peer_fds = os.dup(self._bell_fd), os.dup(self._ring.fd)
        except BaseException:
            root.give_slot(self.slot)
            raise
        visitor.link.send(WELCOME, 0, welcome, fds)
        root.guests[self.slot] = self
        root.board.set_label(self.slot, f"{self.pid} connected to {served}")
        root.board.set_state(self.slot, 1, BOARD_CONNECTED)
        root.connect(self.slot, self.name, visitor.link, *peer_fds)
        self._loop.add_reader(self._pidfd, self._died)

    def fds_for_introduction(self) -> tuple[int, int]:
        """(ring, bell), for a child to map."""
        return self._ring.fd, self._bell_fd

    def on_frame(self, peer: Peer, frame: Frame) -> None:
        """A control frame that only guests send."""
        if frame.kind == FrameKind.LEFT:
            self.forget(Cause(f"process {self.pid} has left"))

    def ask_to_leave(self, reason: str) -> None:
        """Its calls end; it lets go of the rings and says so."""
        if (peer := self._root.peers.get(self.slot)) is not None:
            self._root.send_frame(peer, FrameKind.STOP, reason)

    def forget(self, cause: Cause) -> None:
        """It has let go of everything, or is dead, or nothing is written any longer: give its slot back."""
        if self._root.guests.pop(self.slot, None) is None:
            return
        self._guests.discard(self)
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._root.process_died(self.slot, cause)
        self._root.board.set_state(self.slot, 1, BOARD_FREE)
        self._root.give_slot(self.slot)
        self._ring.close()

    def _died(self) -> None:
        if (peer := self._root.peers.get(self.slot)) is not None:
            self._root.read_link(peer)  # its last words may be that it left
        self.forget(Cause(f"process {self.pid} is dead"))
