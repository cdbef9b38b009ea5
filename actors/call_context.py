"""What a call inherits from the call it is made in: deadline, chain of waiting actors, trace id. How it is held by the
code that runs, and for how long, is `call_scope`'s affair.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple


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


def inside_handler(context: CallContext, actor_id: int) -> CallContext:
    """The context of the calls that a handler of that actor makes on behalf of a call with ``context``."""
    return CallContext(context.deadline, (*context.chain, actor_id), context.trace)


def beside_handlers(context: CallContext) -> CallContext:
    """The same for what runs beside the handlers: nobody waits for its actor because of it."""
    return context._replace(is_retry=False) if context.is_retry else context
