"""An incarnation in a process of its own: segment, doorbell, link, launch, boot frame, READY, death.

Made by `record` for the root's node. The root keeps the fds of the child's ring and doorbell, so that it can
introduce the child to others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringcast.channels import EncodeError, Frame, Link, RingWriter, Segment, SegmentError, create_segment

from . import platform
from .boot import BOARD_FREE, BOARD_READY, BOARD_SPARE, BOARD_STARTING, CPUS_VARIABLE, Boot
from .child_command import import_path
from .errors import ActorError, Cause, ResourcesExhausted, StartFailed
from .host import Child, ExitCallback
from .launch import ChildProcess
from .memory_kills import num_memory_kills
from .parcel import contents
from .peer import Peer
from .placement import process
from .statistics import NodeStatistics
from .system_calls import calling, explain, is_scarcity
from .tasks import settled
from .wire import FrameKind, name_argument

if TYPE_CHECKING:
    from .root_node import RootNode

TERM_GRACE_S = 0.5
_OUTSIDE_SIGNALS = (-signal.SIGKILL, -signal.SIGTERM)


class ProcessHost:
    """See the module. ``slot`` is the process's number in the system."""

    def __init__(self, root: RootNode, child: Child, incarnation: int, on_exit: ExitCallback) -> None:
        assert isinstance(child.where, process)
        self.child = child
        self.incarnation = incarnation
        self.slot = root.take_slot(child.name)
        self._root = root
        self._on_exit = on_exit
        self._env = dict(child.where.env)
        self._output = child.where.output or root.children.output
        if child.where.cpus is not None:
            self._env[CPUS_VARIABLE] = ",".join(str(cpu) for cpu in sorted(child.where.cpus))
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[int] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._ring: Segment | None = None
        self._bell_fd = -1
        self._process: ChildProcess | None = None
        self._phase = "start"
        self._traceback = ""
        self._stopping = False
        self._end_reason = ""  # that we had
        self._memory_kills: int | None = None  # that the kernel had counted when this incarnation began
        self._phase_timer: asyncio.TimerHandle | None = None
        self._abort_fd = -1
        self._handoff: object = None
        self._on_spare_death: Callable[[Cause], None] | None = None  # set while it is a spare
        # Told what the actor is stalled in, when a declared phase takes longer than it may.
        self.on_phase_stalled: Callable[[str], None] | None = None
        # Told what the actor wants of actors that it owns.
        self.on_owner_request: Callable[[Peer, FrameKind, Any], None] | None = None
        self._statistics: list[asyncio.Future[NodeStatistics]] = []

    def launch_spare(self, on_death: Callable[[Cause], None]) -> None:
        """Start the process, let it prepare and wait for `start`; told of its death before that, on the loop."""
        self._on_spare_death = on_death
        self._try_launch(None)

    async def start(self, handoff: object) -> int:
        """Launch the process, or promote the spare that it is."""
        if self._on_spare_death is None:
            self._try_launch(handoff)
        else:
            self._promote(handoff)
        try:
            return await asyncio.shield(self._ready)
        except asyncio.CancelledError:
            await settled(self._root.tasks.start(self.abandon(), f"{self.child.name}: end"))
            raise

    async def abandon(self) -> None:
        if self._process is not None and not self._gone.is_set():
            self.kill("its start was cancelled")
            await self.wait_gone()

    def _promote(self, handoff: object) -> None:
        self._on_spare_death = None
        self._phase = "start"
        self._memory_kills = num_memory_kills()
        self._show(BOARD_STARTING, self.child.name)
        self._root.send_frame(self._root.peers[self.slot], FrameKind.PROMOTE, handoff)

    def _try_launch(self, handoff: object) -> None:
        try:
            self._launch(handoff)
        except BaseException as error:
            if self._process is None:
                self._release()
            else:  # its slot is free once it is gone
                self.kill(f"its start failed: {type(error).__name__}")
            if isinstance(error, ActorError | OSError | SegmentError):
                kind = ResourcesExhausted if is_scarcity(error) else StartFailed
                raise kind(self.child.name, Cause(f"its process could not be started: {explain(error)}")) from error
            raise

    def _show(self, state: int, label: str) -> None:
        """On the board."""
        root = self._root
        root.board.set_label(self.slot, f"{self.pid} {label}")
        root.board.set_state(self.slot, self.incarnation, state)

    def _launch(self, handoff: object) -> None:
        root, child = self._root, self.child
        is_spare = self._on_spare_death is not None
        title, class_name, class_bytes, content = contents(child.spec, handoff)
        try:
            arguments = root.codec.encode_out(content)
        except EncodeError as error:
            name_argument(error, title, 0)
            raise
        if not isinstance(arguments, bytes):
            arguments.copy()
        boot = Boot(
            slot=self.slot,
            epoch=self.incarnation,
            system_name=root.name,
            actor_id=child.actor_id,
            name=child.name,
            incarnation=self.incarnation,
            class_name=class_name,
            class_bytes=class_bytes,
            arguments=arguments if isinstance(arguments, bytes) else b"",
            large_arguments=0 if isinstance(arguments, bytes) else len(arguments),
            sys_path=import_path(),
            log_level=logging.getLogger("ringcast").getEffectiveLevel(),
            logging=root.children.logging,
            is_spare=is_spare,
        )
        boot_frame = root.codec.encode(boot)  # what cannot travel is found before there is a process
        self._memory_kills = num_memory_kills()
        self._ring = create_segment(RingWriter.size_bytes(root.ring_bytes))
        self._bell_fd = root.bell_fd(self.slot)
        with calling("eventfd2"):
            self._abort_fd = os.eventfd(0, os.EFD_CLOEXEC)
        ours, theirs = Link.pair()
        try:
            self._process = platform.current().start_process(
                child.name, theirs.fileno(), self._env, self._output, self._exited
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        fds = [root.board_fd, self._bell_fd, self._ring.fd, root.bell.fileno(), root.ring_fd, self._abort_fd]
        if not isinstance(arguments, bytes):
            fds.append(arguments.fileno())
        ours.send(FrameKind.BOOT, 0, boot_frame, fds)
        root.hosts[self.slot] = self
        if is_spare:
            self._show(BOARD_SPARE, f"{child.name} (spare)")
        else:
            self._show(BOARD_STARTING, child.name)
        root.connect(self.slot, child.name, ours, os.dup(self._bell_fd), os.dup(self._ring.fd))

    def fds_for_introduction(self) -> tuple[int, int]:
        """(ring, bell) of the child, for another process to map."""
        assert self._ring is not None
        return self._ring.fd, self._bell_fd

    def on_frame(self, peer: Peer, frame: Frame) -> None:
        """A control frame from the child."""
        body: Any = self._root.codec.decode(frame.payload)
        if frame.kind == FrameKind.READY:
            self._enter_phase("", None)
            self._root.board.set_state(self.slot, self.incarnation, BOARD_READY)
            if not self._ready.done():
                self._ready.set_result(body)
        elif frame.kind in (FrameKind.START_FAILED, FrameKind.CRASHED):
            self._traceback = body
        elif frame.kind == FrameKind.PHASE:
            self._enter_phase(*body)
        elif frame.kind == FrameKind.STOPPED:
            self._handoff = body
        elif frame.kind in (FrameKind.SPAWN, FrameKind.STOP_OWNED, FrameKind.GIVE_UP_SPAWN):
            if self.on_owner_request is not None:
                self.on_owner_request(peer, FrameKind(frame.kind), body)
        elif frame.kind == FrameKind.STATISTICS:
            for future in self._statistics:
                if not future.done():
                    future.set_result(body)
            self._statistics.clear()

    def was_forked(self) -> None:
        """See `forks`: here it is no child of this process."""
        if self._process is not None:
            self._process.was_forked()

    @property
    def is_ready(self) -> bool:
        """It is up and not yet being stopped."""
        return self._ready.done() and not self._ready.cancelled() and not self._stopping

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def statistics(self) -> NodeStatistics:
        """Ask the child for its figures; `ActorError` if it ends instead of answering."""
        future: asyncio.Future[NodeStatistics] = self._loop.create_future()
        self._statistics.append(future)
        self._root.send_frame(self._root.peers[self.slot], FrameKind.ASK_STATISTICS)
        return await future

    def begin_run(self) -> None:
        """Its process does so itself, once READY is on its way."""

    async def stop(self, reason: str, timeout_s: float) -> object:
        self._stopping = True
        self._end_reason = self._end_reason or f"it was stopped: {reason}"
        peer = self._root.peers.get(self.slot)
        if peer is not None and not self._gone.is_set():
            self._root.send_frame(peer, FrameKind.STOP, reason)
            self._enter_phase("stop", None)
            os.eventfd_write(self._abort_fd, 1)  # reaches a blocking actor in the middle of a handler
        await self._end_within(timeout_s)
        return self._handoff

    def forsake(self) -> None:
        """The loop is closed: end the process now, without anything that needs a loop."""
        assert self._process is not None
        self._process.abandon()
        self._release()

    async def wait_gone(self) -> None:
        """Wait until its process is reaped and forgotten."""
        await self._gone.wait()

    def kill(self, reason: str) -> None:
        """End it at once; ``reason`` becomes part of its cause of death."""
        assert self._process is not None
        self._end_reason = reason
        self._process.signal(signal.SIGKILL)

    def busy_since(self, progress: int) -> str | None:
        """The handler that has been running since the board showed that progress; None if it has ended."""
        count, number = self._root.board.progress(self.slot)
        return self._handler_name(number) if count == progress and number else None

    def progress(self) -> tuple[int, str]:
        """See `System.progress`."""
        count, number = self._root.board.progress(self.slot)
        return count, self._handler_name(number)

    async def ping(self) -> float:
        """See `System.ping`."""
        assert self._process is not None
        return await self._process.ping()

    def dump_stacks(self, report: Callable[[str], None]) -> None:
        """Have the stacks of its threads written, even while it holds the interpreter; told a moment later."""
        assert self._process is not None
        self._process.dump_stacks(report)

    def _handler_name(self, number: int) -> str:
        names = self.child.handlers
        return names[number - 1] if 0 < number <= len(names) else ""

    def _enter_phase(self, phase: str, stall_after_s: float | None) -> None:
        self._phase = phase
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None
        if stall_after_s is not None and self.on_phase_stalled is not None:
            self._phase_timer = self._loop.call_later(stall_after_s, self.on_phase_stalled, phase)

    async def _end_within(self, timeout_s: float) -> None:
        """Wait for the process's end; then SIGTERM, then SIGKILL."""
        assert self._process is not None
        for limit_s, number in ((timeout_s, signal.SIGTERM), (TERM_GRACE_S, signal.SIGKILL)):
            try:
                async with self._root.patience.limit(limit_s, TERM_GRACE_S if number == signal.SIGKILL else 0.0):
                    await self._gone.wait()
                return
            except TimeoutError:
                self._process.signal(number)
        await self._gone.wait()

    def _exited(self, process: ChildProcess) -> None:
        root = self._root
        peer = root.peers.get(self.slot)
        if peer is not None:
            root.read_link(peer)  # its last words
        _, number = root.board.progress(self.slot)  # of the handler that ran, 0 for none
        summary = process.describe_exit()
        from_outside = process.exit_code in _OUTSIDE_SIGNALS and not self._end_reason
        if from_outside and num_memory_kills() != self._memory_kills:
            from_outside = False
            summary += "; the kernel has counted a kill for want of memory"
        if self._end_reason:
            summary = f"{self._end_reason} ({summary})"
        cause = Cause(
            summary=summary,
            exit_code=process.exit_code,
            last_phase=self._phase,
            last_handler=self._handler_name(number),
            traceback=self._traceback,
            stderr_tail="" if self._traceback else "\n".join(process.tail),
            from_outside=from_outside,
        )
        self._enter_phase("", None)
        if process.has_lines:
            root.keep_until_close(process)
        root.process_died(self.slot, cause)
        self._release()
        self._gone.set()
        for future in self._statistics:
            if not future.done():
                future.set_exception(ActorError(f"actor {self.child.name!r} ended: {cause.summary}"))
        if self._on_spare_death is not None:
            self._on_spare_death(cause)
        elif not self._ready.done():
            self._ready.set_exception(StartFailed(self.child.name, cause))
            self._ready.exception()  # whoever started it may have been cancelled
        elif not self._stopping:
            self._on_exit(cause, process.exit_code == 0)

    def _release(self) -> None:
        self._root.board.set_state(self.slot, self.incarnation, BOARD_FREE)
        self._root.hosts.pop(self.slot, None)
        self._root.give_slot(self.slot)
        if self._ring is not None:
            self._ring.close()
        if self._abort_fd >= 0:
            os.close(self._abort_fd)
            self._abort_fd = -1
