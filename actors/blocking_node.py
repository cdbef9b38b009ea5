"""A node on a process's main thread, for a BlockingActor: receive, run one handler, answer, wait.

It sleeps in one native wait on its doorbell and its links with the GIL released; no timer runs but those that its actor
started.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from ringcast.channels import Board, Doorbell, Outbox

from ._native import SPIN_S
from .errors import ActorError
from .loops import send_all
from .node import Node
from .peer import Peer
from .route import Route

LOOK_EVERY_S: Final = 0.01  # at links, while there are messages


class Alarm:
    """Calls that are due at a time."""

    __slots__ = ("at", "call", "number")

    def __init__(self, at: float, number: int, call: Callable[[], None]) -> None:
        self.at = at
        self.number = number
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: Alarm) -> bool:
        return (self.at, self.number) < (other.at, other.number)

    def cancel(self) -> None:
        self.call = None


class Alarms:
    """The alarms of a node without a loop, the next one first."""

    def __init__(self) -> None:
        self._heap: list[Alarm] = []
        self._numbers = count()

    def call_later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Call it from `ring_due`, once that time has passed."""
        alarm = Alarm(time.monotonic() + seconds, next(self._numbers), call)
        heappush(self._heap, alarm)
        return alarm

    def remaining_s(self) -> float | None:
        """The time until the next one; None if there is none."""
        while self._heap and self._heap[0].call is None:
            heappop(self._heap)
        return max(0.0, self._heap[0].at - time.monotonic()) if self._heap else None

    def ring_due(self) -> int:
        """Make the calls that are due; their number."""
        if not self._heap:
            return 0
        rung, now = 0, time.monotonic()
        while self._heap and self._heap[0].at <= now:
            call = heappop(self._heap).call
            if call is not None:
                call()
                rung += 1
        return rung


class BlockingNode(Node):
    """Drives a node without an event loop. Its actor may cast; it cannot ask (there is no loop to await on)."""

    def __init__(self, *, slot: int, name: str, board: Board, bell: Doorbell, outbox: Outbox) -> None:
        super().__init__(slot=slot, name=name, board=board, bell=bell, outbox=outbox)
        self._watched: dict[int, Peer] = {}
        self._looked_at = 0.0
        self.alarms = Alarms()

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
        handled = self.alarms.ring_due()
        while polled := self.poll_once():
            handled += polled
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
        timeout_s = self.alarms.remaining_s()
        ready = self.bell.wait(self.readers, self._space_wanted, list(self._watched), timeout_s, SPIN_S)
        self._read_links(ready)

    def _read_links(self, fds: list[int]) -> None:
        for fd in fds:
            peer = self._watched.get(fd)
            if peer is not None:
                self.read_link(peer)
