"""The life of an actor on an event loop, in any process: prepare, start, serve with run beside, stop.

Hosts (a child process, the app's own process) call it and decide what a failure means; it reports nothing itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from .actor import Actor
from .async_cell import AsyncCell
from .call_context import EMPTY, inside_handler
from .call_scope import inside
from .context import Context
from .failure import summary_of
from .node import Node
from .tasks import insist, insist_later

T = TypeVar("T")


class ExitInActor(Exception):
    """User code raised SystemExit or KeyboardInterrupt (the cause), which would have ended the loop it runs on."""


class CancelledItself(Exception):
    """User code ended with a CancelledError that nobody asked for, or cancelled the task that it runs in."""


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """Await user code; what asyncio would let through to the loop's owner becomes an ordinary exception."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CancelledItself("the actor awaited something that was cancelled") from error
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitInActor(summary_of(error)) from error


class ActorRunner:
    """One incarnation of an Actor on a node's loop."""

    def __init__(self, node: Node, cell: AsyncCell, actor: Actor) -> None:
        self._node = node
        self._cell = cell
        self._actor = actor
        self._in_hook = inside_handler(EMPTY, cell.actor_id)  # its actor handles nothing before a hook has returned
        self._serve: asyncio.Task[None] | None = None
        self._run: asyncio.Task[None] | None = None
        self._stopping = False

    async def prepare(self, ctx: Context) -> None:
        """Run ``on_prepare``. Exceptions of user code come out."""
        with inside(self._in_hook):
            await contained(self._actor.on_prepare(ctx))

    async def start(self, ctx: Context, handoff: object) -> None:
        """Run ``on_start``, then begin to serve. Exceptions of user code come out. `begin_run` follows READY."""
        self._node.cells[self._cell.actor_id] = self._cell
        try:
            with inside(self._in_hook):
                await contained(self._actor.on_start(ctx, handoff))
        except BaseException:
            self._forget("the actor did not start")
            raise
        self._serve = self._cell.start()

    def begin_run(self, ctx: Context) -> None:
        """Begin ``run``, which may ask its own actor: that is READY, and others can be told where it is."""
        self._run = asyncio.create_task(self._run_contained(ctx), name=f"{self._cell.name}: run")

    async def _run_contained(self, ctx: Context) -> None:
        await contained(self._actor.run(ctx))

    async def failure(self) -> BaseException:
        """Wait until the actor's own loop, or its mailbox, raises, and return what it raised."""
        assert self._serve is not None and self._run is not None
        running = {self._serve, self._run}
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    return error
                if task.cancelled() and not self._stopping:  # a mailbox that nobody serves would look alive
                    return CancelledItself(f"the task {task.get_name()!r} was cancelled by the actor's own code")
        never: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        return await never  # stopped in order: no failure will come

    async def stop(self, reason: str, *, orderly: bool = True) -> object:
        """End ``run`` and the handler in progress, then ``on_stop``; its value is the hand-off."""
        self._stopping = True
        if self._run is not None:
            insist(self._run)
            await _ended(self._run)
        if self._serve is not None:
            self._cell.stop()
            insist_later(self._serve)
            await _ended(self._serve)
        await self._cell.close()
        try:
            with inside(self._in_hook):
                return await contained(self._actor.on_stop(reason)) if orderly else None
        finally:
            self._forget(f"the actor was stopped: {reason}")

    def _forget(self, text: str) -> None:
        self._node.cells.pop(self._cell.actor_id, None)
        self._cell.fail_queued(text)


async def _ended(task: asyncio.Task[None]) -> None:
    if not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
