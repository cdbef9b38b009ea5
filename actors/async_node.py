"""A node on an asyncio loop: one eventfd and one socket per peer are all that the loop watches.

Everything that it does for its rings is one callback, `_turn` (native/node.c): ring whom it wrote to, take a batch from
every inbox, look for more for a moment (`Doorbell.spin`), arm the bell. An idle node makes no system call and has no
timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, cast

from ringcast.channels import Board, Doorbell, Outbox

from . import platform
from ._native import AsyncNodeCore
from .errors import ActorError, NotInSystem
from .forks import FORKED_TEXT, LeftBehind, end_forked_process, forget_tasks
from .node import Node
from .peer import Peer
from .route import Route
from .system_calls import calling

if TYPE_CHECKING:
    from ringcast.channels.large import LargeMessage

PATIENCE_S: Final = 2e-3  # with a reader that reads nothing while messages for others wait for room
MAX_PATIENCE_S: Final = 0.1  # while nobody else waits
RETRY_S: Final = 0.1  # after a turn that failed


class AsyncNode(AsyncNodeCore, Node):
    """Drives a node on the running loop. `start` and `stop` bracket its life."""

    def __init__(self, *, slot: int, name: str, board: Board, bell: Doorbell, outbox: Outbox) -> None:
        super().__init__(slot=slot, name=name, board=board, bell=bell, outbox=outbox)
        self.loop = asyncio.get_running_loop()
        self._context = Context()  # of turns: none of who happens to send
        self._thread_id = 0  # of the thread that runs the loop
        self._watched_for_writing: set[int] = set()
        self._wrote = asyncio.Event()
        self._patience: asyncio.TimerHandle | None = None
        with calling("sched_getaffinity"):
            self._cores = min(len(os.sched_getaffinity(0)), bell.cores or sys.maxsize)

    def was_forked(self) -> None:
        if self.has_forked:  # the process that forked is itself a copy
            return
        super().was_forked()
        loop, nothing = self.loop, cast(Any, LeftBehind())
        self._running = False
        self.loop = nothing
        forget_tasks(loop)
        if loop.is_running() and threading.get_ident() == self._thread_id:
            loop.call_soon(end_forked_process)  # whoever forked is one of its callbacks

    def start(self) -> None:
        """Begin to receive."""
        self._thread_id = threading.get_ident()
        self._running = True
        self.loop.add_reader(self.bell.fileno(), self._on_bell)
        self._schedule_look()

    def stop(self) -> None:
        """Send what can be sent, then let go of the loop."""
        self.flush()
        self._running = False
        if self._patience is not None:
            self._patience.cancel()
        self.loop.remove_reader(self.bell.fileno())
        for peer in list(self.peers.values()):
            self.unwatch_link(peer)

    def copy_off_loop(self, message: LargeMessage, done: Callable[[Exception | None], None]) -> None:
        loop = self.loop

        def run() -> None:
            error: Exception | None = None
            try:
                message.copy()
            except Exception as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(done, error)

        try:
            platform.current().start_thread(run, "ringcast copy")
        except ActorError:  # no threads are left: the loop copies by itself
            loop.call_soon(run)

    def current_loop(self) -> asyncio.AbstractEventLoop:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self.loop or not self._running:
            if self.has_forked:
                raise NotInSystem(FORKED_TEXT)
            raise NotInSystem(
                f"a reference of system node {self.name!r} was used "
                + ("after the system stopped" if loop is self.loop else "outside the event loop of its system")
            )
        return self.loop

    def on_loop(self, send: Callable[[], object]) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            if not self.loop.is_running():
                send()
            else:
                self._send_from_thread(send)
            return
        if running is not self.loop:
            self.current_loop()  # raises
        send()

    def _send_from_thread(self, send: Callable[[], object]) -> None:
        """An actor on a thread casts: the loop does it, and the thread waits, so that it learns of a failure."""
        changed = platform.current().condition()
        outcome: list[BaseException | None] = []

        def on_the_loop() -> None:
            try:
                send()
            except BaseException as error:
                outcome.append(error)
            else:
                outcome.append(None)
            with changed:
                changed.notify()

        self.loop.call_soon_threadsafe(on_the_loop, context=copy_context())
        with changed:
            while not outcome:
                changed.wait()
        if outcome[0] is not None:
            raise outcome[0]

    def watch_link(self, peer: Peer) -> None:
        self.loop.add_reader(peer.link.fileno(), self.read_link, peer)

    def unwatch_link(self, peer: Peer) -> None:
        self.loop.remove_reader(peer.link.fileno())
        if peer.link.fileno() in self._watched_for_writing:
            self._watched_for_writing.discard(peer.link.fileno())
            self.loop.remove_writer(peer.link.fileno())

    def link_has_backlog(self, peer: Peer) -> None:
        if peer.link.fileno() not in self._watched_for_writing:
            self._watched_for_writing.add(peer.link.fileno())
            self.loop.add_writer(peer.link.fileno(), self._on_writable, peer)

    def backlog_waits(self) -> None:
        if self._patience is None and self._running:
            self._be_patient(PATIENCE_S)

    def _be_patient(self, delay_s: float) -> None:
        self._patience = self.loop.call_later(delay_s, self._lose_patience, self._backlog_left, delay_s)

    def _lose_patience(self, left_then: int, delay_s: float) -> None:
        self._patience = None
        stands = bool(self._backlog) and self._backlog_left == left_then
        if stands:
            self.go_around()
        if self._backlog and self._patience is None:
            self._be_patient(min(2 * delay_s, MAX_PATIENCE_S) if stands else PATIENCE_S)
            self._schedule_turn()  # it arms the bell for room

    def read_link(self, peer: Peer) -> None:
        super().read_link(peer)
        self._schedule_look()  # an overflow frame or a new inbox may have made messages ready

    async def frames_written(self, peer: Peer) -> None:
        """Wait until every frame queued for the peer is with the kernel, or the peer is gone."""
        while peer.link.pending and not peer.link.closed:
            self._wrote.clear()
            await self._wrote.wait()

    def watch_for_stall(self, route: Route) -> None:
        """Look again after the time that its handlers may take. No timer runs once the actor is found idle."""
        if route.stall_timer is None:
            progress, _ = self.board.progress(route.slot)
            self._look_for_stall_later(route, progress)

    def _look_for_stall_later(self, route: Route, progress: int) -> None:
        assert route.stall_after_s is not None
        route.stall_timer = self.loop.call_later(route.stall_after_s, self._look_for_stall, route, progress)

    def _look_for_stall(self, route: Route, progress_then: int) -> None:
        route.stall_timer = None
        if not self._running or self.routes.get(route.actor_id) is not route:
            return
        progress, handler = self.board.progress(route.slot)
        if handler == 0:
            return
        if progress == progress_then:
            self.suspect(route.actor_id, progress)
        self._look_for_stall_later(route, progress)

    def _on_writable(self, peer: Peer) -> None:
        peer.link.pump()
        self._wrote.set()
        if not peer.link.pending:
            self._watched_for_writing.discard(peer.link.fileno())
            self.loop.remove_writer(peer.link.fileno())

    def _schedule_look(self) -> None:
        """Look into the inboxes, though nobody has rung."""
        self._armed = False
        self._schedule_turn()

    def _look_later(self) -> None:
        """After a turn (native/async_node.c) that failed."""
        self.loop.call_later(RETRY_S, self._schedule_look)
