"""A node on a process's main thread, for a BlockingActor: receive, run one handler, answer, wait.

It sleeps in one native wait on its doorbell and its links with the GIL released, and has no timer.
"""

from __future__ import annotations

import asyncio
import select
import time
from typing import Final

from ringcast.channels import Board, Doorbell, Outbox

from ._native import SPIN_S
from .errors import ActorError
from .loops import send_all
from .node import Node
from .peer import Peer
from .route import Route

LOOK_EVERY_S: Final = 0.01  # at links, while there are messages


class BlockingNode(Node):
    """Drives a node without an event loop. Its actor may cast; it cannot ask (there is no loop to await on)."""

    def __init__(self, *, slot: int, name: str, board: Board, bell: Doorbell, outbox: Outbox) -> None:
        super().__init__(slot=slot, name=name, board=board, bell=bell, outbox=outbox)
        self._watched: dict[int, Peer] = {}
        self._looked_at = 0.0

    def current_loop(self) -> asyncio.AbstractEventLoop:
        raise ActorError(
            f"BlockingActor {self.name!r} has no event loop to wait for a reply on: "
            "use .cast, or make the calling actor an rt.Actor"
        )

    def schedule_flush(self) -> None:
        """Nothing to do: `step` flushes after each batch and each handler."""

    def watch_for_stall(self, route: Route) -> None:
        """Not here: there is no loop for a timer, and this actor does not wait for what it casts."""

    def watch_link(self, peer: Peer) -> None:
        self._watched[peer.link.fileno()] = peer

    def unwatch_link(self, peer: Peer) -> None:
        self._watched.pop(peer.link.fileno(), None)

    def link_has_backlog(self, peer: Peer) -> None:
        """A full link: frames are few and small, so they are written as soon as the peer reads."""
        send_all(peer.link)

    def backlog_waits(self) -> None:
        """Not here: a link that is full would hold up this thread for as long as the one that is slow."""

    def receive(self) -> int:
        """Handle everything that is there without waiting; the number of messages."""
        handled = 0
        while count := self.poll_once():
            handled += count
        self.flush()
        return handled

    def look_if_due(self) -> None:
        """Where there is always a next message, who wants to stop this actor, or to meet it, is heard all the same."""
        now = time.monotonic()
        if now - self._looked_at > LOOK_EVERY_S:
            self._looked_at = now
            self.look()

    def look(self) -> None:
        """Take in what has arrived, links included, without waiting and without running a handler."""
        poll = select.poll()
        for fd in self._watched:
            poll.register(fd, select.POLLIN)
        self._read_links([fd for fd, _ in poll.poll(0)])
        self.receive()

    def wait(self) -> None:
        """Sleep until a message, a frame or needed space arrives."""
        ready = self.bell.wait(self.readers, self._space_wanted, list(self._watched), None, SPIN_S)
        self._read_links(ready)

    def _read_links(self, fds: list[int]) -> None:
        for fd in fds:
            peer = self._watched.get(fd)
            if peer is not None:
                self.read_link(peer)
