"""One actor through all its incarnations: its state, its host, what it owns. Made and driven by a `Supervisor`.

It starts and stops its actor and notices its death; what follows from a death is its supervisor's decision. Starts and
stops run in tasks of the system, one at a time, so that a caller that is cancelled leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from .actor import Actor
from .directory import Directory, Place
from .errors import Cause, ResourcesExhausted, StartFailed
from .events import GaveUp, Restarting, Stalled
from .failure import summary_of
from .host import Child, ExitCallback, Host
from .local_host import TaskHost, ThreadHost
from .member import Member, State
from .owned import Owned
from .placement import process
from .process_host import ProcessHost
from .root_node import RootNode
from .spare import SpareKeeper
from .tasks import awaited, ended, insist, settled

if TYPE_CHECKING:
    from .branch import Branch

log = logging.getLogger("ringcast.actors")

STOP_STARTED_TIMEOUT_S = 5.0  # for an actor that was stopped, or whose start was cancelled, while it started


class Record(Member):
    """See the module."""

    def __init__(self, child: Child, root: RootNode, directory: Directory, parent: Branch) -> None:
        super().__init__(child.name, child.restart)
        self.child = child
        self.host: Host | None = None
        self.handoff: object = None  # of an incarnation that was stopped in order, for the next one
        self._root = root
        self._directory = directory
        self.parent = parent
        self._capacity_bytes = 0
        self._reported_progress = -1
        self._early_exit: tuple[Cause, bool] | None = None  # it died between READY and our hearing of that
        self._turn = asyncio.Lock()  # one start or end at a time, whoever wants it
        self._starting: asyncio.Task[int] | None = None
        self._ending: asyncio.Task[None] | None = None  # it is being stopped for good
        self.owned = Owned(child.name, root, directory)
        self._spares: SpareKeeper | None = None
        if isinstance(child.where, process) and child.where.spare:
            self._spares = SpareKeeper(child.name, lambda: self._process_host(self.incarnation + 1))

    @property
    def is_excused(self) -> bool:
        return self.cause.from_outside and self.restart.outside_kills == "ignore"

    def place(self) -> Place | Cause:
        """Where it is, or why it is not."""
        if self.state is not State.READY or self.host is None:
            return self.cause
        return Place(self.name, self.host.slot, self._capacity_bytes, self.child.stall_after_s)

    # Starting.

    async def start(self) -> None:
        starting = self._root.tasks.start(self._start_in_turn(), f"{self.name}: start")
        await settled(starting, starting.cancel)

    async def _start_in_turn(self) -> None:
        async with self._turn:
            await self.owned.ended()
            if self.state in (State.STARTING, State.DOWN):
                await self._start()

    async def _start(self) -> None:
        self.incarnation += 1
        incarnation = self.incarnation
        self._early_exit = None
        cancellation: asyncio.CancelledError | None = None
        handoff, self.handoff = self.handoff, None
        try:
            host = self.host = self._make_host(incarnation)
            self.owned.open()
            starting = self._starting = self._root.tasks.start(host.start(handoff), f"{self.name}: host")
            cancellation = await ended(starting, lambda: insist(starting))
            self._starting = None
            if starting.cancelled() or starting.exception() is not None or cancellation or self.has_ended:
                self.host = None
                await self._undo_start(host, starting)
                if cancellation is not None:
                    raise cancellation
                if self.has_ended:  # it was stopped while it started
                    return
                if starting.cancelled():
                    raise StartFailed(self.name, Cause("its start was cancelled by the actor's own code"))
            self._capacity_bytes = starting.result()
        except asyncio.CancelledError:
            self.cause = Cause("its start was cancelled")
            raise
        except ResourcesExhausted as error:  # there was no incarnation
            self.incarnation -= 1
            self.handoff = handoff
            self.cause = error.cause
            raise
        except StartFailed as error:
            self._start_has_failed(error.cause)
            raise
        except Exception as error:  # it has no slot, or what was to travel to it cannot
            self._start_has_failed(Cause(summary_of(error)))
            raise
        finally:
            cancellation = None  # it holds this frame
        self._tell_ready()
        host.begin_run()
        if self._spares is not None:
            self._spares.begin(incarnation)
        early_exit: tuple[Cause, bool] | None = self._early_exit  # set while we waited
        if early_exit is not None:
            self._on_exit(*early_exit)

    def _start_has_failed(self, cause: Cause) -> None:
        self.cause = cause
        self.host = None
        if self.incarnation > 1:  # nobody watches a first start
            self._tell_died(cause)

    async def _undo_start(self, host: Host, starting: asyncio.Task[int]) -> None:
        """End what a start that failed or is not wanted any more has left."""
        if not starting.cancelled() and starting.exception() is None:
            reason = self.cause.summary if self.has_ended else "its start was cancelled"
            undo = self._root.tasks.start(host.stop(reason, STOP_STARTED_TIMEOUT_S), f"{self.name}: stop")
        else:
            undo = self._root.tasks.start(host.abandon(), f"{self.name}: stop")
        await ended(undo, lambda: None)
        await self._end_owned(STOP_STARTED_TIMEOUT_S)

    # Stopping.

    async def stop(self, reason: str, timeout_s: float) -> None:
        if self.state is not State.STOPPED:
            was_ready = self.state is State.READY
            self.state = State.STOPPED
            self.cause = Cause(f"it was stopped: {reason}")
            end = self._end_for_good(reason, timeout_s, was_ready)
            self._ending = self._root.tasks.start(end, f"{self.name}: stop")
        if self._ending is not None:
            await awaited(self._ending)

    async def _end_for_good(self, reason: str, timeout_s: float, was_ready: bool) -> None:
        """End it, or the start or stop that is under way."""
        try:
            if self._starting is not None:
                insist(self._starting)
            spare = self._spares.drop() if self._spares is not None else None
            async with self._turn:
                if was_ready:
                    await self._end(reason, timeout_s)
                await self.owned.ended()
            if spare is not None:
                await spare.wait_gone()
        finally:
            self._ending = None
            self._tell_stopped(reason)
            self._forget()

    async def discard(self, cause: Cause) -> None:
        """Its first start failed or was cancelled: nothing of it is left, and nobody refers to it."""
        if self.state is State.READY:
            await self.stop(cause.summary, STOP_STARTED_TIMEOUT_S)
        if self._ending is not None:
            await self._ending
        if self.state is not State.STOPPED:
            self.state = State.STOPPED
            self.cause = cause
            self._tell(GaveUp(cause))
            self._forget()

    async def stop_for_restart(self, reason: str, timeout_s: float, plan: Restarting | None) -> None:
        if self.state is State.READY:
            stop = self._stop_in_turn(reason, timeout_s, plan)
            await settled(self._root.tasks.start(stop, f"{self.name}: stop for restart"))

    async def _stop_in_turn(self, reason: str, timeout_s: float, plan: Restarting | None) -> None:
        # A start may be waiting for its turn, too: were we down before it is ours, that one would run beside us.
        async with self._turn:
            if self.state is not State.READY:
                return
            self.state = State.DOWN
            try:
                await self._end(reason, timeout_s)
            except BaseException:
                plan = None
                raise
            finally:
                if plan is not None:
                    self.announce(plan)
                elif not self.has_ended:
                    self._tell_died(self.cause)

    async def _end(self, reason: str, timeout_s: float) -> None:
        self.cause = Cause(f"it was stopped: {reason}")
        host, self.host = self.host, None
        deadline = time.monotonic() + timeout_s
        try:
            if host is not None:
                self.handoff = await host.stop(reason, timeout_s)  # it ends the calls that it has
        finally:
            self._root.actor_down(self.child.actor_id, self.cause)
            await self._end_owned(max(0.0, deadline - time.monotonic()))  # its on_stop may have asked them

    async def _end_owned(self, timeout_s: float) -> None:
        self.owned.begin_to_end(timeout_s)
        await settled(self._root.tasks.start(self.owned.ended(), f"{self.name}: end of what it owns"))

    # Deaths.

    def give_up(self, cause: Cause) -> None:
        if self.has_ended:
            return
        if self._spares is not None:
            self._spares.drop()
        if self.restart.kind != "temporary":
            log.error("actor %r is given up: %s", self.name, cause.summary)
        super().give_up(cause)
        self._directory.name_is_free(self)
        if self.restart.kind == "temporary":
            self._forget()

    def revive(self) -> None:
        if self.state is State.FAILED:
            self._directory.take_name(self)
        super().revive()

    def suspect(self, progress: int) -> None:
        """Verify a report that it is stalled in a handler, and act on it once."""
        host = self.host
        if self.state is not State.READY or not isinstance(host, ProcessHost) or progress == self._reported_progress:
            return
        handler = host.busy_since(progress)
        if handler is not None:
            self._reported_progress = progress
            self._stalled(host, f"handler {handler!r}")

    def _stalled(self, host: ProcessHost, where: str) -> None:
        """Say so, with its stacks, and kill it if its policy says that."""

        def report(stacks: str) -> None:
            if self.host is not host:
                return
            log.warning("actor %r is stalled in %s:\n%s", self.name, where, stacks)
            self._tell_stalled(Stalled(self.incarnation, where, stacks))
            if self.restart.on_stall == "kill":
                host.kill(f"it was stalled in {where}, and killed by its policy")

        host.dump_stacks(report)

    def _forget(self) -> None:
        """It has ended for good: its arguments and hand-off go with it, and what became of it is remembered a while."""
        self.handoff = None
        self._watchers.clear()
        self.parent.forget(self)
        self._directory.forget(self)

    def _make_host(self, incarnation: int) -> Host:
        child = self.child
        if isinstance(child.where, process):
            spare = self._spares.take() if self._spares is not None else None
            return spare or self._process_host(incarnation)
        if issubclass(child.local_spec.cls, Actor):
            return TaskHost(self._root, self._directory, child, incarnation, self._exit_of(incarnation), self.owned)
        return ThreadHost(self._root, self._directory, child, incarnation)

    def _process_host(self, incarnation: int) -> ProcessHost:
        host = ProcessHost(self._root, self.child, incarnation, self._exit_of(incarnation))
        host.on_owner_request = self.owned.on_frame
        host.on_phase_stalled = lambda phase: self._stalled(host, f"phase {phase!r}")
        return host

    def _exit_of(self, incarnation: int) -> ExitCallback:
        def on_exit(cause: Cause, clean: bool) -> None:
            if self.incarnation == incarnation:
                self._on_exit(cause, clean)

        return on_exit

    def _on_exit(self, cause: Cause, clean: bool) -> None:
        if self.state in (State.STARTING, State.DOWN):
            self._early_exit = (cause, clean)
            return
        if self.state is not State.READY:
            return
        log.warning("actor %r died: %s", self.name, cause.summary)
        self.cause = cause
        self.host = None
        self.state = State.DOWN
        self._root.actor_down(self.child.actor_id, cause)
        self.owned.begin_to_end(STOP_STARTED_TIMEOUT_S)
        self._tell_died(cause)
        self.parent.member_died(self, clean)
