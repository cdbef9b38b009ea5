"""A living actor and its mailbox, as its node sees them: what arrives, what may be cancelled, who gets the answers.

`Cell` is the part that async and blocking actors share. A cell never lets an exception of user code out: it goes to
the caller, or, for a cast, to the log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ._native import Incoming
from .actor import Actor, BlockingActor, CallDescriptor, Descriptor, StreamDescriptor
from .call_context import EMPTY, CallContext, inside_handler
from .mailbox_meter import MailboxMeter
from .origin import Origin
from .wire import FailureKind

log = logging.getLogger("ringcast.actors")

SHOW_EVERY_S: Final = 0.01


class Panel(NamedTuple):
    """Where a cell shows what it does: its place on the board. Called for every message: pass native functions."""

    advance: Callable[[int], object]  # the number of the handler that begins; 0: none runs
    show: Callable[[int, int, int, int], object]  # depth, arrival of the oldest (µs), handled, time that took (µs)


class Handler(NamedTuple):
    """A handler as its cell sees it. ``number`` is what the board shows while it runs."""

    number: int
    descriptor: Descriptor
    function: Callable[..., Any]
    is_stream: bool
    is_concurrent: bool
    is_idempotent: bool
    begins_at_once: bool  # a coroutine that the mailbox's own task runs, see `Cell.put_and_run`


def _handlers_of(cls: type[Actor] | type[BlockingActor]) -> dict[str, Handler]:
    handlers = {}
    for number, (method, descriptor) in enumerate(cls.handlers().items(), start=1):
        call = descriptor if isinstance(descriptor, CallDescriptor) else None
        handlers[method] = Handler(
            number,
            descriptor,
            descriptor.function,
            is_stream=isinstance(descriptor, StreamDescriptor),
            is_concurrent=call is not None and call.concurrent,
            is_idempotent=call is not None and call.idempotent,
            begins_at_once=call is not None and not call.concurrent and _is_coroutine(call.function),
        )
    return handlers


def _is_coroutine(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


class Cell(ABC):
    """The mailbox side of an actor. Without a ``panel`` nobody sees what it does."""

    def __init__(self, actor: Actor | BlockingActor, actor_id: int, name: str, panel: Panel | None) -> None:
        self.actor = actor
        self.actor_id = actor_id
        self.name = name
        self.capacity_bytes = actor.mailbox.capacity
        self.queue: deque[Incoming] = deque()
        self.meter = MailboxMeter()
        self._panel = panel
        self._shown_at = 0.0
        self._shown_depth = 0
        self._plain_context = inside_handler(EMPTY, actor_id)
        self._handlers = _handlers_of(type(actor))
        self._arrived: asyncio.Future[None] | None = None  # of who waits for the next message

    def put(self, incoming: Incoming) -> None:
        """Add a message to the mailbox."""
        if self._enqueue(incoming):
            arrived = self._arrived
            if arrived is not None and not arrived.done():
                arrived.set_result(None)

    def put_and_run(self, incoming: Incoming) -> bool:
        """The same from a callback of the actor's loop, where an idle actor may handle it at once: True if it has."""
        self.put(incoming)
        return False

    @abstractmethod
    def cancel(self, origin: Origin, call_id: int) -> None:
        """A caller gave up: drop its message, or end its handler or stream."""

    @abstractmethod
    def more(self, origin: Origin, call_id: int, count: int) -> None:
        """The reader of a stream has consumed so many items."""

    @abstractmethod
    def forget(self, origin: Origin) -> None:
        """A caller's process died: end its streams and what runs beside the mailbox for it."""

    def fail_queued(self, text: str) -> None:
        """The actor ends: end the calls that it will not handle."""
        while self.queue:
            incoming = self.queue.popleft()
            if incoming.call_id is not None:
                incoming.origin.fail(self.name, incoming.call_id, FailureKind.GONE, None, text, "")

    def _enqueue(self, incoming: Incoming) -> bool:
        if incoming.context is not EMPTY and self._would_wait_for_itself(incoming):
            return False
        incoming.arrived_at = time.monotonic()
        queue = self.queue
        queue.append(incoming)
        if len(queue) > self.meter.peak_depth:
            self.meter.peak_depth = len(queue)
        return True

    def _would_wait_for_itself(self, incoming: Incoming) -> bool:
        """Answer a call that comes, through others, from this actor's own handler: it could never be handled."""
        if incoming.call_id is None or self.actor_id not in incoming.context.chain:
            return False
        handler = self._handlers.get(incoming.method)
        if handler is not None and not handler.is_stream and not handler.is_concurrent:
            chain = " -> ".join(f"#{actor_id}" for actor_id in (*incoming.context.chain, self.actor_id))
            text = f"{self.name}.{incoming.method} was asked by a handler that {self.name} itself waits for ({chain})"
            incoming.origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.CYCLE, None, text, "")
            return True
        return False

    def _take(self) -> tuple[Incoming, Handler | None]:
        """The next message and its handler; None if it is not to be handled (the caller has been told)."""
        queue = self.queue
        incoming = queue.popleft()
        handler = self._admit(incoming)
        panel = self._panel
        if handler is not None and panel is not None:
            panel.advance(handler.number)
            if (self._shown_depth and not queue) or incoming.began_at - self._shown_at > SHOW_EVERY_S:
                self._show_figures(panel, incoming.began_at)
        return incoming, handler

    def _admit(self, incoming: Incoming) -> Handler | None:
        """The handler of a message that has left the mailbox; see `_take`."""
        incoming.began_at = now = time.monotonic()
        self.meter.took(now, incoming.arrived_at)
        incoming.origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
        handler = self._handlers.get(incoming.method)
        if handler is None or handler.is_stream is not incoming.is_stream:
            self._failed(incoming, self._misuse(incoming, handler))
            return None
        if incoming.context is not EMPTY and self._refuses(incoming, handler):
            return None
        return handler

    def _show_figures(self, panel: Panel, now: float) -> None:
        """Put depth, arrival of the oldest and totals on the board, and remember when."""
        queue, meter = self.queue, self.meter
        self._shown_at = now
        self._shown_depth = len(queue)
        oldest_us = int(queue[0].arrived_at * 1e6) if queue else 0
        panel.show(len(queue), oldest_us, meter.handled, int(meter.handling_time_s * 1e6))

    def _show_idle(self) -> None:
        panel = self._panel
        if panel is not None:
            panel.advance(0)
            self._show_figures(panel, self.meter.taken_at)

    def _context_of(self, incoming: Incoming) -> CallContext:
        """Of the calls that the message's handler makes."""
        if incoming.context is EMPTY:
            return self._plain_context
        return inside_handler(incoming.context, self.actor_id)

    def _misuse(self, incoming: Incoming, handler: Handler | None) -> Exception:
        title = type(self.actor).__qualname__
        if handler is None:
            known = ", ".join(self._handlers) or "none"
            return AttributeError(f"{title} has no handler {incoming.method!r} (it has: {known})")
        how = "open it with .open(...)" if not incoming.is_stream else "call it"
        return TypeError(f"{title}.{incoming.method} is {'no' if incoming.is_stream else 'a'} stream: {how}")

    def _refuses(self, incoming: Incoming, handler: Handler) -> bool:
        """End a message whose context forbids to handle it."""
        context = incoming.context
        if context.is_retry and not handler.is_idempotent:
            title = f"{type(self.actor).__qualname__}.{incoming.method}"
            self._failed(incoming, TypeError(f"{title} is not declared idempotent, so it is never retried"))
            return True
        if incoming.call_id is not None and context.expired():
            self.meter.expired += 1
            where = f"while the call waited in the mailbox of {self.name!r}"
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.DEADLINE, None, where, "")
            return True
        return False

    def _drop_queued(self, origin: Origin, call_id: int) -> bool:
        for incoming in self.queue:
            if incoming.call_id == call_id and incoming.origin == origin:
                self.queue.remove(incoming)
                origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
                return True
        return False

    def _succeeded(self, incoming: Incoming, value: Any) -> None:
        self.meter.handled_since(time.monotonic(), incoming.began_at)
        if incoming.call_id is not None and not incoming.quiet:
            incoming.origin.reply(self.name, incoming.call_id, value)

    def _failed(self, incoming: Incoming, error: BaseException) -> None:
        self.meter.handled_since(time.monotonic(), incoming.began_at)
        self.meter.failed += 1
        trace = "".join(traceback.format_exception(error))
        if incoming.call_id is not None:
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.RAISED, error, describe(error), trace)
        else:
            log.error("cast %s.%s failed:\n%s", self.name, incoming.method, trace)


def describe(error: BaseException) -> str:
    """The text of an exception, even of one whose ``__str__`` raises."""
    try:
        return str(error)
    except Exception as second:
        return f"<{type(error).__name__} whose text cannot be had: {type(second).__name__}>"
