"""Repeating calls of methods that declare themselves idempotent. The runtime never does it by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from . import call_scope
from .actor import Call
from .errors import ActorDied

P = ParamSpec("P")
R = TypeVar("R")


def retry(method: Call[P, R], *, attempts: int = 3, backoff_s: float = 0.05) -> Callable[P, Awaitable[R]]:
    """``await rt.retry(ref.get, attempts=5)(key)``: the same call, made again when its actor died.

    The wait before an attempt doubles, starting at ``backoff_s``. Only `ActorDied` is retried. The callee refuses a
    method that is not declared ``@rt.call(idempotent=True)``, on the first attempt already.
    """
    if attempts < 1:
        raise ValueError(f"retry with attempts={attempts}: at least one is needed")

    async def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
        import asyncio  # see `call_scope`

        for attempt in range(attempts):
            try:
                with call_scope.as_retry():
                    answer = method(*args, **kwargs)
                return await answer
            except ActorDied:
                if attempt + 1 == attempts:
                    raise
            await asyncio.sleep(backoff_s * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    return repeated
