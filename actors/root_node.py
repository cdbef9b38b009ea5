"""The node of the system's first process: owns the board, gives out slots, introduces processes to each other.

What it does not know about actors (where they are, why they are down) it asks the `Directory`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ringcast.channels import Board, Doorbell, Frame, Link, Outbox, RingWriter, create_segment

from . import platform
from .async_node import AsyncNode
from .boot import BOARD_READY, ROOT_SLOT
from .child_settings import DEFAULT_SETTINGS, ChildSettings
from .context import Watch
from .directory import Directory
from .errors import Cause, NotInSystem, ResourcesExhausted
from .events import Event, GaveUp, Stopped
from .forks import FORKED_TEXT
from .patience import Patience
from .peer import Peer
from .ref import Ref
from .route import Route
from .system_calls import calling
from .tasks import Tasks
from .wire import FrameKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from .launch import ChildProcess
    from .process_host import ProcessHost
    from .serving import Guest

MAX_PROCESSES = 64


class RootNode(AsyncNode):
    """See the module. Made inside the loop that it will run on."""

    def __init__(
        self, name: str, directory: Directory, ring_bytes: int, children: ChildSettings = DEFAULT_SETTINGS
    ) -> None:
        self._segments = [create_segment(Board.size_bytes(MAX_PROCESSES))]
        self._segments.append(create_segment(RingWriter.size_bytes(ring_bytes)))
        self.board_fd, self.ring_fd = (segment.fd for segment in self._segments)
        board = Board.create(self.board_fd)
        with calling("eventfd2"):
            bell_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        bell = Doorbell(board, ROOT_SLOT, bell_fd)
        os.close(bell_fd)  # the doorbell keeps a duplicate
        outbox = Outbox(RingWriter(self.ring_fd, bell, epoch=1))
        super().__init__(slot=ROOT_SLOT, name=name, board=board, bell=bell, outbox=outbox)
        self.ring_bytes = ring_bytes
        self.children = children
        self.hosts: dict[int, ProcessHost] = {}
        self.guests: dict[int, Guest] = {}  # programs that came by name, by slot
        self._directory = directory
        self._free_slots = list(range(MAX_PROCESSES - 1, ROOT_SLOT, -1))
        self._bell_fds: dict[int, int] = {}  # by slot
        self._introduced: set[tuple[int, int]] = set()
        self._with_lines: list[ChildProcess] = []  # that have ended, with output to be passed on
        self._watches: dict[int, dict[int, Callable[[], None]]] = {}  # by the watching process's slot and its number
        self._routed: dict[int, set[int]] = {}  # actors here -> the slots of the processes that know the way to them
        self.tasks = Tasks()
        self.patience = Patience()
        board.set_label(ROOT_SLOT, f"{os.getpid()} {name}")
        board.set_state(ROOT_SLOT, 1, BOARD_READY)
        platform.current().node_made(self)

    def was_forked(self) -> None:
        super().was_forked()
        for host in self.hosts.values():
            host.was_forked()

    def close(self) -> None:
        """Let go of the shared memory, even if references to actors live on. Every child is gone by now."""
        for guest in list(self.guests.values()):
            guest.ask_to_leave("the system stops")
            guest.forget(Cause("the system stops"))
        self.stop()
        self._let_go()

    def forsake(self) -> None:
        """The loop is closed, so nothing can be stopped in order: end every child, and let go of everything."""
        for host in list(self.hosts.values()):
            host.forsake()
        for peer in self.peers.values():
            peer.link.close()
            if peer.ring_fd >= 0:
                os.close(peer.ring_fd)
        self.peers.clear()
        self._collect_readers()
        self._let_go()

    def _let_go(self) -> None:
        for process in self._with_lines:
            process.flush_output()
        for segment in self._segments:
            segment.close()
        for fd in self._bell_fds.values():
            os.close(fd)
        self._bell_fds.clear()
        del self.outbox, self.bell, self.board

    def kill_all(self) -> None:
        """End every child at once."""
        for host in list(self.hosts.values()):
            host.kill("the system stops")

    async def end_stragglers(self) -> None:
        """Kill what was in the middle of its start when everything was stopped, and wait until it is reaped."""
        self.kill_all()
        for host in list(self.hosts.values()):
            await host.wait_gone()

    def keep_until_close(self, process: ChildProcess) -> None:
        """It has ended, but its last lines will be passed on later; at the latest when we close."""
        self._with_lines = [other for other in self._with_lines if other.has_lines]
        self._with_lines.append(process)

    def check_usable(self) -> None:
        """`NotInSystem` unless the caller runs on the system's loop, and the system has not stopped."""
        if self.has_forked:
            raise NotInSystem(FORKED_TEXT)
        self.current_loop()

    def take_slot(self, name: str) -> int:
        """A free number for the process of the actor of that name; `ResourcesExhausted` when all are in use."""
        if not self._free_slots:
            text = f"the system has {MAX_PROCESSES} processes, which is as many as it can have"
            raise ResourcesExhausted(name, Cause(text))
        return self._free_slots.pop()

    def bell_fd(self, slot: int) -> int:
        """The eventfd of a slot's doorbell: the same for all processes that have the slot, one after another.

        Who has not yet heard of a death still rings the dead one's bell. That changes the word on the board, which is
        its successor's too, so it must wake the successor; with an eventfd of its own it would sleep on.
        """
        if slot not in self._bell_fds:
            with calling("eventfd2"):
                self._bell_fds[slot] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._bell_fds[slot]

    def give_slot(self, slot: int) -> None:
        self._free_slots.append(slot)

    def process_died(self, slot: int, cause: Cause) -> None:
        """Proof of death: forget the process here and make everybody forget it."""
        self._introduced = {pair for pair in self._introduced if slot not in pair}
        for unsubscribe in self._watches.pop(slot, {}).values():
            unsubscribe()
        for slots in self._routed.values():
            slots.discard(slot)
        self.peer_died(slot, cause)
        self.broadcast(FrameKind.DIED, (slot, cause))

    def broadcast(self, kind: FrameKind, body: object) -> None:
        """A control frame to every child."""
        for peer in list(self.peers.values()):
            self.send_frame(peer, kind, body)

    def actor_down(self, actor_id: int, cause: Cause) -> None:
        """An incarnation has ended: end the calls to it, and forget it here and in the processes that know the way.

        (Those of one in a process of its own learn of its process's death.)
        """
        self.route_down(actor_id, cause)
        for slot in self._routed.pop(actor_id, ()):
            peer = self.peers[slot]
            peer.origin.forget_actor(actor_id)
            self.send_frame(peer, FrameKind.ROUTE, (actor_id, "", -1, 0, None, cause))

    def resolve(self, route: Route) -> None:
        place = self._directory.locate(route.actor_id)
        if isinstance(place, Cause):
            self.route_down(route.actor_id, place)
        else:
            self.route_up(route.actor_id, place.name, place.slot, place.capacity_bytes, place.stall_after_s)

    def known_cause(self, actor_id: int) -> Cause | None:
        if actor_id in self.routes:
            return None
        place = self._directory.locate(actor_id)
        return place if isinstance(place, Cause) else None

    def on_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == FrameKind.RESOLVE:
            self._answer_resolve(peer, self.codec.decode(frame.payload))
        elif frame.kind == FrameKind.SUSPECT:
            self.suspect(*self.codec.decode(frame.payload))
        elif frame.kind == FrameKind.WATCH:
            self._answer_watch(peer, *self.codec.decode(frame.payload))
        elif frame.kind == FrameKind.UNWATCH:
            self._unwatch(peer.slot, self.codec.decode(frame.payload))
        elif peer.slot in self.guests:
            self.guests[peer.slot].on_frame(peer, frame)
        else:
            self.hosts[peer.slot].on_frame(peer, frame)

    def watch(self, ref: Ref) -> Watch:
        return self._directory.watch(ref)

    def suspect(self, actor_id: int, progress: int) -> None:
        self._directory.suspect(actor_id, progress)

    def on_link_closed(self, peer: Peer) -> None:
        """Not a proof of death: the pidfd will tell."""

    def _answer_resolve(self, peer: Peer, actor_id: int) -> None:
        place = self._directory.locate(actor_id)
        if isinstance(place, Cause):
            self.send_frame(peer, FrameKind.ROUTE, (actor_id, "", -1, 0, None, place))
            return
        if place.slot not in (ROOT_SLOT, peer.slot):
            try:
                self._introduce(peer.slot, place.slot)
            except OSError as error:  # no descriptors: the next call asks anew
                cause = Cause(f"it may live, but its process could not be connected with its caller's: {error}")
                self.send_frame(peer, FrameKind.ROUTE, (actor_id, "", -1, 0, None, cause))
                return
        if place.slot == ROOT_SLOT:
            self._routed.setdefault(actor_id, set()).add(peer.slot)
        way = (actor_id, place.name, place.slot, place.capacity_bytes, place.stall_after_s, None)
        self.send_frame(peer, FrameKind.ROUTE, way)

    def _introduce(self, one: int, other: int) -> None:
        pair = (min(one, other), max(one, other))
        if pair in self._introduced:
            return
        ends = Link.pair()
        self._introduced.add(pair)
        for to, about, end in ((one, other, ends[0]), (other, one, ends[1])):
            host = self.guests.get(about) or self.hosts[about]
            fds = (*host.fds_for_introduction(), end.fileno())
            self.send_frame(self.peers[to], FrameKind.CONNECT, (about, self.peers[about].name), fds)
            end.close()

    def _answer_watch(self, peer: Peer, number: int, actor_id: int) -> None:
        watches = self._watches.setdefault(peer.slot, {})

        def tell(event: Event) -> None:
            self.send_frame(peer, FrameKind.EVENT, (number, event))
            if isinstance(event, GaveUp | Stopped):
                watches.pop(number, lambda: None)()

        unsubscribe = watches[number] = self._directory.subscribe(actor_id, tell)
        if isinstance(self._directory.last_event(actor_id), GaveUp | Stopped):  # it was told already
            del watches[number]
            unsubscribe()

    def _unwatch(self, slot: int, number: int) -> None:
        self._watches.get(slot, {}).pop(number, lambda: None)()
