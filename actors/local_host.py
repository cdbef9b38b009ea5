"""Incarnations in the app's own process: an Actor as tasks on the loop, a BlockingActor on a thread.

Made by `record`. Their crash is an exception of ``run``; nothing they raise reaches the app's loop.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import platform
from .actor import Actor, BlockingActor
from .async_cell import AsyncCell
from .blocking_cell import ThreadCell
from .boot import ROOT_SLOT
from .call_context import EMPTY
from .call_scope import inside
from .context import Context, Watch
from .directory import Directory
from .errors import ActorError, Cause, StartFailed
from .host import Child, ExitCallback
from .ref import Ref
from .runner import ActorRunner, ExitInActor

if TYPE_CHECKING:
    from .root_node import RootNode

log = logging.getLogger("ringcast.actors")

# However late it is when an actor's turn to stop comes: it cannot be killed like a process, and without its turn its
# tasks, its thread and the calls in its mailbox would outlive the system.
STOP_AT_LEAST_S = 0.5


class LocalOwner:
    """The context's owner for actors here."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.phase = "start"
        self.cell: ThreadCell | None = None

    def report_phase(self, phase: str, stall_after_s: float | None) -> None:
        self.phase = phase

    def report_progress(self) -> None:
        """Nobody watches for stalls in this process: whoever did would be stalled, too."""

    def watch(self, ref: Ref) -> Watch:
        return self._directory.watch(ref)

    def cancelled(self) -> bool:
        return self.cell is not None and self.cell.cancelled()


class TaskHost:
    """An Actor on the app's loop."""

    slot = ROOT_SLOT

    def __init__(
        self, root: RootNode, directory: Directory, child: Child, incarnation: int, on_exit: ExitCallback
    ) -> None:
        self.child = child
        self._root = root
        self._owner = LocalOwner(directory)
        self._incarnation = incarnation
        self._on_exit = on_exit
        self._runner: ActorRunner | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self, handoff: object) -> int:
        child = self.child
        ref = Ref(child.actor_id, child.name, self._root)
        try:
            actor: Any = child.spec.cls(*child.spec.args, **child.spec.kwargs)
            assert isinstance(actor, Actor)
            cell = AsyncCell(actor, child.actor_id, child.name, None)
            self._runner = ActorRunner(self._root, cell, actor)
            ctx = Context(self._owner, ref, child.name, self._incarnation)
            with inside(EMPTY):  # as in a process of its own; it lives longer than who spawned it waits
                await self._runner.prepare(ctx)
                await self._runner.start(ctx, handoff)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise _start_failed(child.name, self._owner.phase, error) from error
        self._watcher = asyncio.create_task(self._watch_failure(self._runner), name=f"{child.name}: watch")
        return cell.capacity_bytes

    async def _watch_failure(self, runner: ActorRunner) -> None:
        error = await runner.failure()
        await runner.stop(f"it crashed: {error}", orderly=False)
        trace = "".join(traceback.format_exception(error))
        self._on_exit(Cause(f"{type(error).__name__}: {error}", traceback=trace), False)

    async def stop(self, reason: str, timeout_s: float) -> object:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._runner is None:
            return None
        try:
            with inside(EMPTY):
                return await asyncio.wait_for(self._runner.stop(reason), max(timeout_s, STOP_AT_LEAST_S))
        except Exception:  # it has ended all the same, as a process would have; and a restart goes on
            log.exception("on_stop of %r failed", self.child.name)
            return None


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
        self._started: Future[ThreadCell] = Future()
        self._ended: Future[object] = Future()

    async def start(self, handoff: object) -> int:
        self._handoff = handoff
        try:
            platform.current().start_thread(self._live, self.child.name)
            self._cell = await asyncio.wrap_future(self._started)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise _start_failed(self.child.name, self._owner.phase, error) from error
        self._root.cells[self.child.actor_id] = self._cell
        return self._cell.capacity_bytes

    async def stop(self, reason: str, timeout_s: float) -> object:
        self._stop_reason = reason
        if self._cell is None:
            return None
        self._root.cells.pop(self.child.actor_id, None)
        self._cell.stop()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._ended), max(timeout_s, STOP_AT_LEAST_S))
        except TimeoutError:
            raise ActorError(
                f"thread of actor {self.child.name!r} did not end within {timeout_s} s: a thread cannot be killed; "
                "run the actor with where=rt.process()"
            ) from None
        except Exception:
            log.exception("on_stop of %r failed", self.child.name)
            return None
        finally:
            self._cell.fail_queued(f"the actor was stopped: {reason}")

    def _live(self) -> None:
        child = self.child
        try:
            actor: Any = child.spec.cls(*child.spec.args, **child.spec.kwargs)
            assert isinstance(actor, BlockingActor)
            ref = Ref(child.actor_id, child.name, self._root)
            cell = self._owner.cell = ThreadCell(actor, child.actor_id, child.name, None, self._loop)
            ctx = Context(self._owner, ref, child.name, self._incarnation)
            actor.on_prepare(ctx)
            actor.on_start(ctx, self._handoff)
        except BaseException as error:  # SystemExit ends the actor's start, not the app
            self._started.set_exception(error)
            return
        self._started.set_result(cell)
        cell.serve()
        try:
            handoff = actor.on_stop(self._stop_reason)
        except Exception as error:
            self._ended.set_exception(error)
        except BaseException as error:
            self._ended.set_exception(ExitInActor(f"{type(error).__name__}: {error}"))
        else:
            self._ended.set_result(handoff)


def _start_failed(name: str, phase: str, error: BaseException) -> StartFailed:
    trace = "".join(traceback.format_exception(error))
    return StartFailed(name, Cause(f"{type(error).__name__}: {error}", last_phase=phase, traceback=trace))
