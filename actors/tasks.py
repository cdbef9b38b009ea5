"""Tasks that a system starts for itself, and waiting for them under cancellation.

A start, a stop or a repair runs in a task of the system's own. Whoever asked for it may be cancelled, once or at every
await (as in anyio's scopes): the work ends in order all the same, and the system waits for it when it is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

log = logging.getLogger("ringcast.actors")

INSIST_EVERY_S: Final = 0.5


class Tasks:
    """The tasks of one system that have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run it beside whatever runs; somebody waits for the result with `settled`, or nobody does."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def all_ended(self) -> None:
        """Wait until none is left, those included that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def ended(task: asyncio.Future[Any], on_cancel: Callable[[], object]) -> asyncio.CancelledError | None:
    """Wait until ``task`` has ended, however often the caller is cancelled meanwhile.

    ``on_cancel`` is called at the caller's first cancellation, and should shorten the wait. Returns the last
    cancellation, which the caller has to raise when it has cleaned up; None if there was none.
    """
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            if cancellation is None:
                on_cancel()
            cancellation = error
    if not task.cancelled():
        task.exception()  # it is known now
    return cancellation


async def settled(task: asyncio.Task[T], on_cancel: Callable[[], object] = lambda: None) -> T:
    """The result of ``task``, which is waited for as in `ended`; then the caller's own cancellation is raised."""
    cancellation = await ended(task, on_cancel)
    if cancellation is not None:
        try:
            raise cancellation
        finally:
            del cancellation  # the exception holds this frame
    return task.result()


async def awaited(task: asyncio.Task[T]) -> T:
    """The result of ``task``, which goes on if the caller is cancelled; then its failure is logged."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_report)
        raise


def insist(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and again every half second until it has ended: user code may swallow a cancellation."""
    if not task.done():
        task.cancel()
        insist_later(task)


def insist_later(task: asyncio.Task[Any]) -> None:
    """The same for a task that has been cancelled already."""
    again = asyncio.get_running_loop().call_later(INSIST_EVERY_S, insist, task)
    task.add_done_callback(lambda _: again.cancel())


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task (see `insist`) and wait until it has ended, whatever way."""
    insist(task)
    with suppress(BaseException):
        await settled(task)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("%s failed: %s", task.get_name(), error)
