"""Incarnations in the app's own process: an Actor as tasks on the loop, a BlockingActor on a thread.

Made by `record`. Their crash is an exception of ``run``; nothing they raise reaches the app's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import platform, tasks
from .actor import Actor, BlockingActor
from .async_cell import AsyncCell
from .blocking_cell import ThreadCell
from .boot import ROOT_SLOT
from .call_context import EMPTY
from .call_scope import inside
from .context import NO_LOOP, Context, Watch
from .directory import Directory
from .errors import ActorError, Cause, ResourcesExhausted, StartFailed
from .failure import describe, summary_of
from .host import Child, ExitCallback
from .owned import Owned
from .placement import Restart, Spec, Where
from .ref import Ref, number_of
from .runner import ActorRunner, ExitInActor

if TYPE_CHECKING:
    from .cell import Cell
    from .root_node import RootNode
    from .timers import Handle, Timer

log = logging.getLogger("ringcast.actors")

# However late it is when an actor's turn to stop comes: it cannot be killed like a process, and without its turn its
# tasks, its thread and the calls in its mailbox would outlive the system.
STOP_AT_LEAST_S = 0.5
LEAVE_AFTER_S = 2.0  # what ignores cancellation for that long is left behind, and said to be


class LocalOwner:
    """The context's owner for actors here."""

    def __init__(self, directory: Directory, owned: Owned | None = None) -> None:
        self._directory = directory
        self._owned = owned
        self.phase = "start"
        self.cell: ThreadCell | None = None
        self.timed_cell: Cell | None = None  # the same, or an AsyncCell
        self.loop = asyncio.get_running_loop()

    def start_timer(self, msg: object, seconds: float, repeats: bool) -> Timer:
        from .timers import ThreadHandle, start_timer

        def on_the_loop(delay_s: float, call: Callable[[], None]) -> Handle:
            return ThreadHandle(self.loop, delay_s, call)

        if self.cell is not None:
            return start_timer(self.cell, on_the_loop, msg, seconds, repeats)
        if self.timed_cell is None:
            raise ActorError("a timer cannot be started in on_prepare: start it in on_start")
        return start_timer(self.timed_cell, self.loop.call_later, msg, seconds, repeats)

    def report_phase(self, phase: str, stall_after_s: float | None) -> None:
        self.phase = phase

    def report_progress(self) -> None:
        """Nobody watches for stalls in this process: whoever did would be stalled, too."""

    def watch(self, ref: Ref) -> Watch:
        return self._directory.watch(ref)

    async def spawn(self, spec: Spec[Any], name: str | None, where: Where, restart: Restart) -> tuple[int, str]:
        if self._owned is None:
            raise ActorError(NO_LOOP)

        def make(actor_id: int) -> Child:
            return Child(actor_id, name or f"{spec.cls.__name__}-{number_of(actor_id)}", spec, where, restart)

        with inside(EMPTY):
            record = await self._owned.spawn(make)
        return record.child.actor_id, record.name

    async def stop_owned(self, ref: Ref, reason: str, timeout_s: float) -> None:
        if self._owned is None:
            raise ActorError(NO_LOOP)
        await self._owned.stop(ref._actor_id, ref._name, reason, timeout_s)

    def cancelled(self) -> bool:
        return self.cell is not None and self.cell.cancelled()


class TaskHost:
    """An Actor on the app's loop."""

    slot = ROOT_SLOT

    def __init__(
        self, root: RootNode, directory: Directory, child: Child, incarnation: int, on_exit: ExitCallback, owned: Owned
    ) -> None:
        self.child = child
        self._root = root
        self._owner = LocalOwner(directory, owned)
        self._incarnation = incarnation
        self._on_exit = on_exit
        self._runner: ActorRunner | None = None
        self._context: Context | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, handoff: object) -> int:
        child = self.child
        ref = Ref(child.actor_id, child.name, self._root, child.local_spec.cls)
        try:
            actor: Any = child.local_spec.cls(*child.local_spec.args, **child.local_spec.kwargs)
            assert isinstance(actor, Actor)
            cell = AsyncCell(actor, child.actor_id, child.name, None)
            self._runner = ActorRunner(self._root, cell, actor)
            self._owner.timed_cell = cell
            ctx = Context(self._owner, ref, child.name, self._incarnation)
            with inside(EMPTY):  # as in a process of its own; it lives longer than who spawned it waits
                await self._runner.prepare(ctx)
                await self._runner.start(ctx, handoff)
            self._context = ctx
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise start_failed(child.name, self._owner.phase, error) from error  # nobody asked for it
        except BaseException as error:
            raise start_failed(child.name, self._owner.phase, error) from error
        return cell.capacity_bytes

    def begin_run(self) -> None:
        assert self._runner is not None and self._context is not None
        with inside(EMPTY):
            self._runner.begin_run(self._context)
            self._watcher = asyncio.create_task(self._watch_failure(self._runner), name=f"{self.child.name}: watch")

    async def _watch_failure(self, runner: ActorRunner) -> None:
        error = await runner.failure()
        failure = describe(error)
        await runner.stop(f"it crashed: {failure.summary}", orderly=False)
        self._on_exit(Cause(failure.summary, traceback=failure.traceback), False)

    async def abandon(self) -> None:
        if self._runner is not None:
            await self._end(self._runner.stop("its start was cancelled", orderly=False), 0.0)

    async def stop(self, reason: str, timeout_s: float) -> object:
        if self._runner is None:
            return None
        try:
            return await self._end(self._runner.stop(reason), timeout_s)
        except Exception as error:  # it has ended all the same, as a process would have; and a restart goes on
            log.error("on_stop of %r failed:\n%s", self.child.name, describe(error).traceback)
            return None

    async def _end(self, work: Coroutine[Any, Any, object], timeout_s: float) -> object:
        """Let the actor end, and cancel what of it has not ended in time."""
        if self._watcher is not None:
            await tasks.cancelled(self._watcher)
        with inside(EMPTY):
            ending = asyncio.create_task(work, name=f"{self.child.name}: end")
        try:
            async with self._root.patience.limit(timeout_s, STOP_AT_LEAST_S):
                await asyncio.wait([ending])
        except TimeoutError:
            tasks.insist(ending)
            await asyncio.wait([ending], timeout=LEAVE_AFTER_S)
        if not ending.done():
            raise ActorError(
                f"the tasks of actor {self.child.name!r} go on after {LEAVE_AFTER_S} s: they ignore cancellation; "
                "run the actor with where=rt.process()"
            )
        if ending.cancelled():
            raise TimeoutError(f"on_stop did not end within {max(timeout_s, STOP_AT_LEAST_S):g} s")
        return ending.result()


class ThreadHost:
    """A BlockingActor on a thread of the app's process."""

    slot = ROOT_SLOT

    def __init__(self, root: RootNode, directory: Directory, child: Child, incarnation: int) -> None:
        self.child = child
        self._root = root
        self._loop = asyncio.get_running_loop()
        self._owner = LocalOwner(directory)
        self._incarnation = incarnation
        self._cell: ThreadCell | None = None
        self._stop_reason = ""
        self._handoff: object = None
        self._unwanted = False  # the start was cancelled: the thread should end
        # What the thread reports: it may do so when nobody waits any more, so neither can be cancelled.
        self._started: Future[ThreadCell | StartFailed] = Future()
        self._ended: Future[tuple[object, BaseException | None]] = Future()
        for future in (self._started, self._ended):
            future.set_running_or_notify_cancel()

    async def start(self, handoff: object) -> int:
        self._handoff = handoff
        try:
            platform.current().start_thread(self._live, self.child.name)
        except ActorError as error:
            raise ResourcesExhausted(self.child.name, Cause(str(error))) from error
        try:
            cell = await asyncio.wrap_future(self._started)
        except asyncio.CancelledError:
            self._unwanted = True
            if self._owner.cell is not None:
                self._owner.cell.stop()
            await tasks.settled(asyncio.create_task(self._wait_for_end(), name=f"{self.child.name}: end"))
            raise
        if isinstance(cell, StartFailed):
            raise cell
        self._cell = cell
        self._root.cells[self.child.actor_id] = cell
        return cell.capacity_bytes

    async def _wait_for_end(self) -> None:
        try:
            async with self._root.patience.limit(STOP_AT_LEAST_S, STOP_AT_LEAST_S):
                await asyncio.wrap_future(self._ended)
        except TimeoutError:
            log.warning("the thread of actor %r goes on: its start was cancelled, and it cannot be", self.child.name)

    async def abandon(self) -> None:
        pass

    def begin_run(self) -> None:
        """A BlockingActor has no ``run``."""

    async def stop(self, reason: str, timeout_s: float) -> object:
        self._stop_reason = reason
        if self._cell is None:
            return None
        self._root.cells.pop(self.child.actor_id, None)
        self._cell.stop()
        try:
            async with self._root.patience.limit(timeout_s, STOP_AT_LEAST_S):
                handoff, error = await asyncio.wrap_future(self._ended)
        except TimeoutError:
            raise ActorError(
                f"thread of actor {self.child.name!r} did not end within {timeout_s} s: a thread cannot be killed; "
                "run the actor with where=rt.process()"
            ) from None
        finally:
            self._cell.fail_queued(f"the actor was stopped: {reason}")
        if isinstance(error, Exception):
            log.error("on_stop of %r failed:\n%s", self.child.name, describe(error).traceback)
        elif error is not None:
            raise error
        return handoff

    def _live(self) -> None:
        """The thread."""
        child = self.child
        try:
            actor: Any = child.local_spec.cls(*child.local_spec.args, **child.local_spec.kwargs)
            assert isinstance(actor, BlockingActor)
            ref = Ref(child.actor_id, child.name, self._root, child.local_spec.cls)
            cell = self._owner.cell = ThreadCell(actor, child.actor_id, child.name, None, self._loop)
            ctx = Context(self._owner, ref, child.name, self._incarnation)
            if self._unwanted:  # before there was a cell to stop
                cell.stop()
            actor.on_prepare(ctx)
            actor.on_start(ctx, self._handoff)
        except BaseException as error:  # SystemExit ends the actor's start, not the app
            self._started.set_result(start_failed(child.name, self._owner.phase, error))
            self._ended.set_result((None, None))
            return
        self._started.set_result(cell)
        cell.serve()
        try:
            self._ended.set_result((actor.on_stop(self._stop_reason), None))
        except (SystemExit, KeyboardInterrupt) as error:
            self._ended.set_result((None, ExitInActor(summary_of(error))))
        except BaseException as error:
            self._ended.set_result((None, error))


def start_failed(name: str, phase: str, error: BaseException) -> StartFailed:
    """The error of a start that raised ``error``."""
    failure = describe(error)
    return StartFailed(name, Cause(failure.summary, last_phase=phase, traceback=failure.traceback))
