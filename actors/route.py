"""The way from one node to one actor: where it lives, and what may still be sent to it.

A route counts the bytes that its actor has not yet taken from its mailbox. Beyond the actor's bound, messages wait
here in order; the node asks `next_allowed` whenever credit or a place to send to arrives. It sends nothing itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .call_context import CallContext

if TYPE_CHECKING:
    from ringcast.channels.large import LargeMessage


class RouteState(Enum):
    """Whether the node knows where the actor lives."""

    RESOLVING = "resolving"
    UP = "up"


UP: Final = RouteState.UP


class Local(NamedTuple):
    """A message to an actor of the same process: its objects as they are. ``kind`` is that of its envelope."""

    kind: int
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: CallContext


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message that waits. ``payload`` is encoded, unless it is a ``local`` one."""

    size_bytes: int
    payload: bytes | LargeMessage
    local: Local | None
    call_id: int | None
    sent: asyncio.Future[None] | None = None  # a waiting cast's caller
    in_cycle: bool = False  # the actor waits for whoever sends this, so it would make no room for it
    dropped: bool = False  # its caller was cancelled before it left
    copying: bool = False  # a thread copies its arrays: what follows waits, so that the order is kept


@dataclass(slots=True, eq=False)
class Route:
    """Where an actor lives (``slot``: the process) and the account of what it was sent."""

    actor_id: int
    name: str
    state: RouteState = RouteState.RESOLVING
    slot: int = -1
    capacity_bytes: int = 0
    outstanding_bytes: int = 0
    stall_after_s: float | None = None
    stall_timer: asyncio.TimerHandle | None = None
    waiting: deque[Outgoing] = field(default_factory=deque)

    def allows(self, size_bytes: int) -> bool:
        """Whether a message of that size may leave now, apart from those that wait before it.

        The receiver returns credit in quarters of its bound, so up to a quarter may be unreturned while its mailbox
        is empty: below that, one message of any size is let in.
        """
        return (
            self.outstanding_bytes + size_bytes <= self.capacity_bytes
            or self.outstanding_bytes < self.capacity_bytes // 4
        )

    @property
    def is_copying(self) -> bool:
        """What waits does so for a copy, not for room."""
        return bool(self.waiting) and self.waiting[0].copying

    def allows_behind(self, size_bytes: int) -> bool:
        """Whether a message of that size may leave behind those that wait, with the present credit."""
        outstanding_bytes = self.outstanding_bytes + sum(outgoing.size_bytes for outgoing in self.waiting)
        return outstanding_bytes + size_bytes <= self.capacity_bytes or outstanding_bytes < self.capacity_bytes // 4

    def next_allowed(self) -> Outgoing | None:
        """Take the next waiting message that may leave now; None if there is none."""
        while self.waiting and self.state is RouteState.UP:
            head = self.waiting[0]
            if not head.dropped and (head.copying or not self.allows(head.size_bytes)):
                return None
            self.waiting.popleft()
            if not head.dropped:
                return head
        return None
