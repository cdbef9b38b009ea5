"""What a call inherits from the call it is made in: deadline, chain of waiting actors, trace id.

Held in a context variable, so that it follows the code of a handler without being passed along, and put into the header
of every call that leaves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import DeadlineExceeded

if TYPE_CHECKING:
    import asyncio


class CallContext(NamedTuple):
    """``deadline`` is absolute, on the machine's monotonic clock (seconds), the same in every process.

    ``chain`` are the ids of the actors whose handlers wait for each other, the outermost first. ``trace`` is a W3C
    traceparent. ``is_retry`` marks an attempt that may repeat an earlier one.
    """

    deadline: float | None = None
    chain: tuple[int, ...] = ()
    trace: str | None = None
    is_retry: bool = False

    def pack(self) -> Any:
        """As it travels: None for the empty context, which is the usual one."""
        if self is EMPTY:
            return None
        return (self.deadline, self.chain, self.trace, self.is_retry)

    def remaining_s(self) -> float:
        """Seconds until the deadline, 0 if it has passed; infinite without one."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline


EMPTY = CallContext()
CURRENT: ContextVar[CallContext] = ContextVar("ringcast_call_context", default=EMPTY)


def unpack(data: Any) -> CallContext:
    """The context that `CallContext.pack` made, if it was not the empty one; `TypeError` or ``ValueError`` if not."""
    deadline, chain, trace, is_retry = data
    if not (
        (deadline is None or isinstance(deadline, (float, int)))
        and isinstance(chain, list)
        and all(isinstance(actor_id, int) for actor_id in chain)
        and (trace is None or isinstance(trace, str))
    ):
        raise TypeError(f"no context of a call: {data!r:.100}")
    return CallContext(deadline, tuple(chain), trace, bool(is_retry))


current = CURRENT.get  # the context of the code that runs


def inside_handler(context: CallContext, actor_id: int) -> CallContext:
    """The context of the calls that a handler of that actor makes on behalf of a call with ``context``."""
    return CallContext(context.deadline, (*context.chain, actor_id), context.trace)


def beside_handlers(context: CallContext) -> CallContext:
    """The same for what runs beside the handlers: nobody waits for its actor because of it."""
    return context._replace(is_retry=False) if context.is_retry else context


def enter(context: CallContext) -> None:
    """From here on, in this task, calls are made in that context."""
    if CURRENT.get() is not context:  # setting a variable costs four times as much as reading it
        CURRENT.set(context)


class deadline:  # reads as a statement: async with rt.deadline(0.5):
    """``async with rt.deadline(seconds):`` everything inside ends by then, here and at every callee.

    Like ``asyncio.timeout``, but the moment travels with the calls: a message that arrives later is not handled, and
    a handler that runs on is cancelled at its own side. Nested deadlines: the earlier one counts. Raises
    `DeadlineExceeded`, which is a ``TimeoutError``.
    """

    def __init__(self, seconds: float) -> None:
        if seconds != seconds:
            raise ValueError("deadline(nan): give seconds from now")
        self._at = time.monotonic() + seconds
        self._timeout: asyncio.Timeout | None = None

    @staticmethod
    def current() -> float | None:
        """The deadline of the code that runs (``time.monotonic()`` seconds), its caller's included; None without."""
        return CURRENT.get().deadline

    async def __aenter__(self) -> deadline:
        outer = CURRENT.get()
        if outer.deadline is not None:
            self._at = min(self._at, outer.deadline)
        self._token = CURRENT.set(outer._replace(deadline=self._at))
        import asyncio  # most of the time that importing this package would take

        self._timeout = asyncio.timeout(self._at - time.monotonic())
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timeout is not None
        CURRENT.reset(self._token)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except DeadlineExceeded:
            raise
        except TimeoutError as timeout:
            raise DeadlineExceeded("waiting for the answer") from timeout


class trace:  # reads as a statement: with rt.trace(traceparent):
    """``with rt.trace(traceparent):`` calls made inside carry this W3C trace id; `current_trace` reads it."""

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent

    def __enter__(self) -> None:
        self._token = CURRENT.set(CURRENT.get()._replace(trace=self._traceparent))

    def __exit__(self, *_: object) -> None:
        CURRENT.reset(self._token)


def current_trace() -> str | None:
    """The W3C traceparent of the call that runs, if it has one."""
    return CURRENT.get().trace


@contextmanager
def as_retry() -> Iterator[None]:
    """Calls made inside say that they may repeat an earlier one."""
    token = CURRENT.set(CURRENT.get()._replace(is_retry=True))
    try:
        yield
    finally:
        CURRENT.reset(token)


@contextmanager
def for_no_call() -> Iterator[None]:
    """What is done inside outlasts the call it is done in: it inherits no deadline, no chain, no trace."""
    token = CURRENT.set(EMPTY)
    try:
        yield
    finally:
        CURRENT.reset(token)
