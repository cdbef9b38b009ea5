"""A living actor and its mailbox, as its node sees them: what arrives, what may be cancelled, who gets the answers.

`Cell` is the part that async and blocking actors share; what every message takes part in is native/cell.c. A cell
never lets an exception of user code out: it goes to the caller, or, for a cast, to the log.
"""

from __future__ import annotations

import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ._native import CellCore, Incoming
from .actor import Actor, BlockingActor, CallDescriptor, Descriptor, StreamDescriptor
from .call_context import EMPTY, CallContext, inside_handler
from .failure import describe
from .mailbox_meter import MailboxMeter
from .origin import Origin
from .ref import number_of
from .wire import FailureKind

if TYPE_CHECKING:
    from .timers import Timer

log = logging.getLogger("ringcast.actors")


class Panel(NamedTuple):
    """Where a cell shows what it does: its place on the board. Called for every message: pass native functions.

    native/cell.c reads it, and `Handler`, by position.
    """

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
    limit: int | None  # how many of it may run at a time, if it is concurrent


def _handlers_of(cls: type[Actor] | type[BlockingActor]) -> dict[str, Handler]:
    handlers = {}
    for number, (method, descriptor) in enumerate(cls.handlers().items(), start=1):
        call = descriptor if isinstance(descriptor, CallDescriptor) else None
        handlers[method] = Handler(
            number,
            descriptor,
            descriptor.function,
            is_stream=isinstance(descriptor, StreamDescriptor),
            is_concurrent=call is not None and bool(call.concurrent),
            is_idempotent=call is not None and call.idempotent,
            begins_at_once=call is not None and not call.concurrent and _is_coroutine(call.function),
            limit=call.concurrent if call is not None and type(call.concurrent) is int else None,
        )
    return handlers


def _is_coroutine(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


class Cell(CellCore, ABC):
    """The mailbox side of an actor. Without a ``panel`` nobody sees what it does."""

    def __init__(self, actor: Actor | BlockingActor, actor_id: int, name: str, panel: Panel | None) -> None:
        super().__init__(
            actor,
            actor_id,
            name,
            actor.mailbox.capacity,
            deque[Incoming](),
            MailboxMeter(),
            _handlers_of(type(actor)),
            inside_handler(EMPTY, actor_id),
            panel,
        )
        self.timers: set[Timer] = set()  # that are active

    @abstractmethod
    def cancel(self, origin: Origin, call_id: int) -> None:
        """A caller gave up: drop its message, or end its handler or stream."""

    @abstractmethod
    def more(self, origin: Origin, call_id: int, count: int) -> None:
        """The reader of a stream has consumed so many items."""

    @abstractmethod
    def forget(self, origin: Origin) -> None:
        """A caller's process died: end its streams and what runs beside the mailbox for it."""

    @property
    def _serves(self) -> bool:
        """Whether messages are handled; not while the actor starts or stops."""
        return True

    def takes_calls_of(self, method: str) -> bool:
        """Whether the actor has a handler of that name that is no stream."""
        handler = self._handlers.get(method)
        return handler is not None and not handler.is_stream

    def fail_queued(self, text: str) -> None:
        """The actor ends: end its timers, and the calls that it will not handle."""
        for timer in list(self.timers):
            timer.cancel()
        while self.queue:
            incoming = self.queue.popleft()
            if incoming.call_id is not None:
                incoming.origin.fail(self.name, incoming.call_id, FailureKind.GONE, None, text, "")

    def _would_wait_for_itself(self, incoming: Incoming) -> bool:
        """Answer a call that comes, through others, from this actor's own handler: it could never be handled."""
        if incoming.call_id is None or self.actor_id not in incoming.context.chain:
            return False
        handler = self._handlers.get(incoming.method)
        if not self._serves or (handler is not None and not handler.is_stream and not handler.is_concurrent):
            chain = " -> ".join(f"#{number_of(actor_id)}" for actor_id in (*incoming.context.chain, self.actor_id))
            waiting = "a handler" if self._serves else "its on_start or on_stop, or by a handler"
            text = f"{self.name}.{incoming.method} was asked by {waiting} that {self.name} itself waits for ({chain})"
            incoming.origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.CYCLE, None, text, "")
            return True
        return False

    def _context_of(self, incoming: Incoming) -> CallContext:
        """Of the calls that the message's handler makes."""
        if incoming.context is EMPTY:
            return self._plain_context
        return inside_handler(incoming.context, self.actor_id)

    def _misused(self, incoming: Incoming, handler: Handler | None) -> None:
        """End a message (native/cell.c) to what is no handler, or one of another kind."""
        title = type(self.actor).__qualname__
        if handler is None:
            known = ", ".join(self._handlers) or "none"
            self._failed(incoming, AttributeError(f"{title} has no handler {incoming.method!r} (it has: {known})"))
            return
        how = "open it with .open(...)" if not incoming.is_stream else "call it"
        kind = "no" if incoming.is_stream else "a"
        self._failed(incoming, TypeError(f"{title}.{incoming.method} is {kind} stream: {how}"))

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
        return self._drop_from(self.queue, origin, call_id)

    def _drop_from(self, queue: deque[Incoming], origin: Origin, call_id: int) -> bool:
        """Drop a call that waits, if it does: nobody waits for its answer."""
        for incoming in queue:
            if incoming.call_id == call_id and incoming.origin == origin:
                queue.remove(incoming)
                origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
                return True
        return False

    def _failed(self, incoming: Incoming, error: BaseException) -> None:
        self.meter.handled_since(time.monotonic(), incoming.began_at)
        self.meter.failed += 1
        _, text, trace = describe(error)
        if incoming.call_id is not None:
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.RAISED, error, text, trace)
        else:
            log.error("cast %s.%s failed:\n%s", self.name, incoming.method, trace)
