"""How long the context of a call counts: while its handler runs, or while the block that changes it is open.

Held in a context variable, so that it follows the code of a handler without being passed along, and put into the header
of every call that leaves. Tasks inherit the variable and may live longer; so what it holds is a scope, which is closed
when the handler ends. Then the task is in no call. Scopes of handlers are native (native/scope.c); cells make them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ._native import SCOPE, Scope, current_context
from .call_context import EMPTY, CallContext
from .errors import DeadlineExceeded

if TYPE_CHECKING:
    import asyncio

NO_CALL: Final = Scope(EMPTY)
current = current_context  # the context of the code that runs


class Block:
    """What a ``with`` block changes in the context of the code around it, until it is left.

    The code around it may be a handler that ends before the block is left, in a task that the handler made: what the
    handler gave ends with it, what the block adds goes on.
    """

    __slots__ = ("_around", "_base", "_changed", "_deadline", "_is_retry", "_trace", "is_open")
    _around: Scope | Block

    def __init__(self, *, deadline: float | None = None, trace: str | None = None, is_retry: bool = False) -> None:
        around = _living(SCOPE.get(NO_CALL))
        if isinstance(around, Block):
            around._around = _living(around._around)
        self._around = around
        self._deadline = deadline
        self._trace = trace
        self._is_retry = is_retry
        self._base: CallContext | None = None  # of which _changed is the change
        self._changed = EMPTY
        self.is_open = True

    @property
    def context(self) -> CallContext:
        """The context of the code inside; of that around it once the block was left."""
        around = self._around.context
        if not self.is_open:
            return around
        if around is not self._base:
            deadlines = [at for at in (around.deadline, self._deadline) if at is not None]
            self._base = around
            self._changed = CallContext(
                min(deadlines, default=None),
                around.chain,
                around.trace if self._trace is None else self._trace,
                around.is_retry or self._is_retry,
            )
        return self._changed

    def enter(self) -> Token[Scope | Block]:
        """From here on, in this task, calls are made in it."""
        return SCOPE.set(self)

    def leave(self, token: Token[Scope | Block]) -> None:
        """It ends, also for tasks that were made inside."""
        self.is_open = False
        SCOPE.reset(token)


def _living(scope: Scope | Block) -> Scope | Block:
    """The same, or what is around it if it is a block that was left: tasks that make tasks would else hold them all."""
    while isinstance(scope, Block) and not scope.is_open:
        scope = scope._around
    return scope


class inside:  # reads as a statement: with inside(context):
    """Calls made inside are made in that context, whatever the code around it is in."""

    __slots__ = ("_scope", "_token")

    def __init__(self, context: CallContext) -> None:
        self._scope = Scope(context)

    def __enter__(self) -> None:
        self._token = SCOPE.set(self._scope)

    def __exit__(self, *_: object) -> None:
        self._scope.close()
        SCOPE.reset(self._token)


class deadline:  # reads as a statement: async with rt.deadline(0.5):
    """``async with rt.deadline(seconds):`` everything inside ends by then, here and at every callee.

    Like ``asyncio.timeout``, but the moment travels with the calls: a message that arrives later is not handled, and
    a handler that runs on is cancelled at its own side. Nested deadlines: the earlier one counts. Raises
    `DeadlineExceeded`, which is a ``TimeoutError``.

    In a thread without a loop, ``with rt.deadline(seconds):`` bounds the calls that it makes through a `Portal`;
    other code inside is not interrupted.
    """

    def __init__(self, seconds: float) -> None:
        if seconds != seconds:
            raise ValueError("deadline(nan): give seconds from now")
        self._at = time.monotonic() + seconds
        self._timeout: asyncio.Timeout | None = None

    @staticmethod
    def current() -> float | None:
        """The deadline of the code that runs (``time.monotonic()`` seconds), its caller's included; None without."""
        return current().deadline

    async def __aenter__(self) -> deadline:
        self._block = Block(deadline=self._at)
        self._token = self._block.enter()
        import asyncio  # most of the time that importing this package would take

        self._timeout = asyncio.timeout(self._at - time.monotonic())
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timeout is not None
        self._block.leave(self._token)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except DeadlineExceeded:
            raise
        except TimeoutError as timeout:
            raise DeadlineExceeded("waiting for the answer") from timeout

    def __enter__(self) -> deadline:
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._block = Block(deadline=self._at)
            self._token = self._block.enter()
            return self
        raise RuntimeError("`with rt.deadline(...)` on an event loop would cancel nothing: use `async with`")

    def __exit__(self, *_: object) -> None:
        self._block.leave(self._token)


class trace:  # reads as a statement: with rt.trace(traceparent):
    """``with rt.trace(traceparent):`` calls made inside carry this W3C trace id; `current_trace` reads it."""

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent

    def __enter__(self) -> None:
        self._block = Block(trace=self._traceparent)
        self._token = self._block.enter()

    def __exit__(self, *_: object) -> None:
        self._block.leave(self._token)


def current_trace() -> str | None:
    """The W3C traceparent of the call that runs, if it has one."""
    return current().trace


@contextmanager
def as_retry() -> Iterator[None]:
    """Calls made inside say that they may repeat an earlier one."""
    block = Block(is_retry=True)
    token = block.enter()
    try:
        yield
    finally:
        block.leave(token)
