"""A living actor and its mailbox, as its node sees them: what arrives, what may be cancelled, who gets the answers.

`Cell` is the part that async and blocking actors share. A cell never lets an exception of user code out: it goes to
the caller, or, for a cast, to the log.
"""

from __future__ import annotations

import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .actor import Actor, BlockingActor, CallDescriptor, Descriptor, StreamDescriptor
from .call_context import EMPTY, CallContext
from .mailbox_meter import MailboxMeter
from .origin import Origin
from .wire import FailureKind

log = logging.getLogger("ringcast.actors")


@dataclass(slots=True)
class Incoming:
    """A message in a mailbox. ``call_id`` is None for a cast; ``quiet``: answer only if it fails."""

    call_id: int | None
    method: str
    args: Any
    kwargs: Any
    origin: Origin
    size_bytes: int
    context: CallContext = EMPTY
    is_stream: bool = False
    quiet: bool = False
    arrived_at: float = 0.0  # monotonic seconds, set by the mailbox
    began_at: float = 0.0


class Cell(ABC):
    """The mailbox side of an actor. ``on_handler`` is told the number of the handler that runs (0: none)."""

    def __init__(
        self, actor: Actor | BlockingActor, actor_id: int, name: str, on_handler: Callable[[Cell, int], None]
    ) -> None:
        self.actor = actor
        self.actor_id = actor_id
        self.name = name
        self.capacity_bytes = actor.mailbox.capacity
        self.queue: deque[Incoming] = deque()
        self.meter = MailboxMeter()
        self._on_handler = on_handler
        self._handlers: dict[str, tuple[int, Descriptor]] = {
            method: (number, descriptor)
            for number, (method, descriptor) in enumerate(type(actor).handlers().items(), start=1)
        }

    def put(self, incoming: Incoming) -> None:
        """Add a message to the mailbox."""
        if incoming.context.chain and self._would_wait_for_itself(incoming):
            return
        incoming.arrived_at = time.monotonic()
        self.queue.append(incoming)
        if len(self.queue) > self.meter.peak_depth:
            self.meter.peak_depth = len(self.queue)

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

    def _would_wait_for_itself(self, incoming: Incoming) -> bool:
        """Answer a call that comes, through others, from this actor's own handler: it could never be handled."""
        if incoming.call_id is None or self.actor_id not in incoming.context.chain:
            return False
        _, descriptor = self._handlers.get(incoming.method, (0, None))
        if isinstance(descriptor, CallDescriptor) and not descriptor.concurrent:
            chain = " -> ".join(f"#{actor_id}" for actor_id in (*incoming.context.chain, self.actor_id))
            text = f"{self.name}.{incoming.method} was asked by a handler that {self.name} itself waits for ({chain})"
            incoming.origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.CYCLE, None, text, "")
            return True
        return False

    def _take(self) -> tuple[Incoming, Descriptor | None]:
        """The next message and its handler; None if it is not to be handled (the caller has been told)."""
        incoming = self.queue.popleft()
        incoming.began_at = self.meter.took(incoming.arrived_at)
        incoming.origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
        number, descriptor = self._handlers.get(incoming.method, (0, None))
        refusal = self._refusal(incoming, descriptor)
        if refusal is not None:
            self._failed(incoming, refusal)
            return incoming, None
        if incoming.context.expired() and incoming.call_id is not None:
            self.meter.expired += 1
            where = f"while the call waited in the mailbox of {self.name!r}"
            incoming.origin.fail(self.name, incoming.call_id, FailureKind.DEADLINE, None, where, "")
            return incoming, None
        self._on_handler(self, number)
        return incoming, descriptor

    def _refusal(self, incoming: Incoming, descriptor: Descriptor | None) -> Exception | None:
        title = type(self.actor).__qualname__
        if descriptor is None:
            known = ", ".join(self._handlers) or "none"
            return AttributeError(f"{title} has no handler {incoming.method!r} (it has: {known})")
        if isinstance(descriptor, StreamDescriptor) is not incoming.is_stream:
            how = "open it with .open(...)" if not incoming.is_stream else "call it"
            return TypeError(f"{title}.{incoming.method} is {'no' if incoming.is_stream else 'a'} stream: {how}")
        if incoming.context.is_retry and not (isinstance(descriptor, CallDescriptor) and descriptor.idempotent):
            return TypeError(f"{title}.{incoming.method} is not declared idempotent, so it is never retried")
        return None

    def _drop_queued(self, origin: Origin, call_id: int) -> bool:
        for incoming in self.queue:
            if incoming.call_id == call_id and incoming.origin == origin:
                self.queue.remove(incoming)
                origin.took(self.actor_id, incoming.size_bytes, self.capacity_bytes)
                return True
        return False

    def _succeeded(self, incoming: Incoming, value: Any) -> None:
        self.meter.handled_since(incoming.began_at)
        if incoming.call_id is not None and not incoming.quiet:
            incoming.origin.reply(self.name, incoming.call_id, value)

    def _failed(self, incoming: Incoming, error: BaseException) -> None:
        self.meter.handled_since(incoming.began_at)
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
