"""What belongs to the HTTP request that runs: its deadline. Set by `Gate`, read where answers are made."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from ..errors import FrontendError

deadline: ContextVar[float | None] = ContextVar("ringcast_request_deadline", default=None)  # by the loop's clock


class DeadlinePassed(FrontendError):
    """Nobody's fault, or everybody's: the request was not answered within its deadline, and was aborted."""

    def __init__(self) -> None:
        super().__init__("the request's deadline passed before its answer was complete: ask for less, or for more time")


def seconds_left() -> float | None:
    """Until the deadline of the request that runs; None if it has none."""
    at = deadline.get()
    return None if at is None else max(0.0, at - asyncio.get_running_loop().time())
