"""A living actor and its mailbox: takes messages one at a time, runs the handlers, answers their callers.

`Cell` is what a node needs to know; `AsyncCell` serves an Actor on the loop. A cell never lets an exception of user
code out: it goes to the caller, or, for a cast, to the log.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .actor import Actor, BlockingActor
from .origin import Origin
from .wire import FailureKind

log = logging.getLogger("ringcast.actors")


@dataclass(slots=True)
class Incoming:
    """A message in a mailbox. ``call_id`` is None for a cast."""

    call_id: int | None
    method: str
    args: Any
    kwargs: Any
    origin: Origin
    size_bytes: int


class Cell(ABC):
    """The mailbox side of an actor. ``on_handler`` is told the number of the handler that runs (0: none)."""

    def __init__(
        self, actor: Actor | BlockingActor, actor_id: int, name: str, on_handler: Callable[[int], None]
    ) -> None:
        self.actor = actor
        self.actor_id = actor_id
        self.name = name
        self.capacity_bytes = actor.mailbox.capacity
        self.queue: deque[Incoming] = deque()
        self._on_handler = on_handler
        self._handlers = {
            method: (number, descriptor.function)
            for number, (method, descriptor) in enumerate(type(actor).handlers().items(), start=1)
        }

    @abstractmethod
    def put(self, incoming: Incoming) -> None:
        """Add a message to the mailbox."""

    @abstractmethod
    def cancel(self, origin: Origin, call_id: int) -> None:
        """A caller gave up: drop its message, or cancel its handler if it runs."""

    def fail_queued(self, text: str) -> None:
        """The actor ends: end the calls that it will not handle."""
        while self.queue:
            incoming = self.queue.popleft()
            if incoming.call_id is not None:
                incoming.origin.fail(self.name, incoming.call_id, FailureKind.GONE, None, text, "")

    def _take(self) -> tuple[Incoming, Callable[..., Any] | None]:
        """The next message and its handler; None if the class has no such handler (the caller is told)."""
        incoming = self.queue.popleft()
        incoming.origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
        number, function = self._handlers.get(incoming.method, (0, None))
        if function is None:
            known = ", ".join(self._handlers) or "none"
            error = AttributeError(
                f"{type(self.actor).__qualname__} has no handler {incoming.method!r} (it has: {known})"
            )
            self._failed(incoming, error)
        self._on_handler(number)
        return incoming, function

    def _drop_queued(self, origin: Origin, call_id: int) -> bool:
        for incoming in self.queue:
            if incoming.call_id == call_id and incoming.origin is origin:
                self.queue.remove(incoming)
                origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
                return True
        return False

    def _succeeded(self, incoming: Incoming, value: Any) -> None:
        if incoming.call_id is not None:
            incoming.origin.reply(self.name, incoming.call_id, value)

    def _failed(self, incoming: Incoming, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        if incoming.call_id is not None:
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.RAISED, error, describe(error), trace)
        else:
            log.error("cast %s.%s failed:\n%s", self.name, incoming.method, trace)


class AsyncCell(Cell):
    """Serves an Actor: handlers run one at a time on the loop."""

    def __init__(self, actor: Actor, actor_id: int, name: str, on_handler: Callable[[int], None]) -> None:
        super().__init__(actor, actor_id, name, on_handler)
        self._arrived: asyncio.Future[None] | None = None
        self._current: Incoming | None = None
        self._cancelling = False
        self._task: asyncio.Task[None] | None = None

    def put(self, incoming: Incoming) -> None:
        self.queue.append(incoming)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def cancel(self, origin: Origin, call_id: int) -> None:
        current = self._current
        if current is not None and current.call_id == call_id and current.origin is origin:
            self._cancelling = True
            assert self._task is not None
            self._task.cancel()
        else:
            self._drop_queued(origin, call_id)

    async def serve(self) -> None:
        """Handle messages until cancelled."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        while True:
            while not self.queue:
                self._arrived = loop.create_future()
                await self._arrived
                self._arrived = None
            incoming, function = self._take()
            if function is not None:
                await self._run(incoming, function)
            self._on_handler(0)

    async def _run(self, incoming: Incoming, function: Callable[..., Any]) -> None:
        self._current = incoming
        try:
            value = await function(self.actor, *incoming.args, **incoming.kwargs)
        except asyncio.CancelledError:
            if not self._cancelling:
                if incoming.call_id is not None:
                    incoming.origin.fail(
                        self.name, incoming.call_id, FailureKind.CANCELLED, None, "the actor stops", ""
                    )
                raise
        except BaseException as error:  # SystemExit of a handler must not end the host's loop
            self._failed(incoming, error)
        else:
            self._succeeded(incoming, value)
        finally:
            self._current = None
            if self._cancelling:  # the handler's cancellation is not the serving task's
                self._cancelling = False
                assert self._task is not None
                self._task.uncancel()


def describe(error: BaseException) -> str:
    """The text of an exception, even of one whose ``__str__`` raises."""
    try:
        return str(error)
    except Exception as second:
        return f"<{type(error).__name__} whose text cannot be had: {type(second).__name__}>"
