"""Timers of an actor: a message to itself that comes later, once or repeatedly. Made by `Context.after` and `every`.

A message that is due goes into the actor's own mailbox, so handlers stay one at a time; the timers of an incarnation
end with it, because its cell cancels them. Time is the event loop's, or what the node of a BlockingActor waits by.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ._native import Incoming
from .actor import Msg
from .call_context import EMPTY
from .wire import FailureKind

if TYPE_CHECKING:
    import asyncio

    from .cell import Cell

log = logging.getLogger("ringcast.actors")


class Timer:
    """Returned by `Context.after` and `Context.every`."""

    def __init__(self) -> None:
        self.is_active = True  # a message is still to come

    def cancel(self) -> None:
        """Send no further message; one that is in the mailbox already is handled. Cancelling it again does nothing."""
        self.is_active = False


class Handle(Protocol):
    """What `CallLater` returns."""

    def cancel(self) -> None:
        """Do not call."""


CallLater = Callable[[float, Callable[[], None]], Handle]


class MessageTimer(Timer):
    """Puts ``msg`` into the mailbox of ``cell`` after ``seconds``; then, with ``repeats``, at every multiple of them at
    which the message before has been handled.
    """

    def __init__(self, cell: Cell, call_later: CallLater, msg: Msg[Any], seconds: float, repeats: bool) -> None:
        super().__init__()
        self._cell = cell
        self._call_later = call_later
        self._msg = msg
        self._seconds = seconds
        self._repeats = repeats
        self._is_pending = False  # a message of ours is in the mailbox or being handled
        self._due = time.monotonic() + seconds
        cell.timers.add(self)
        self._handle = call_later(seconds, self._fire)

    def cancel(self) -> None:
        super().cancel()
        self._handle.cancel()
        self._cell.timers.discard(self)

    def _fire(self) -> None:
        if not self.is_active:
            return
        if self._repeats:
            now = time.monotonic()
            late = now - self._due
            if late < self._seconds:
                self._due += self._seconds
            else:  # some were missed: the next multiple from now on
                self._due = now + self._seconds - late % self._seconds
            self._handle = self._call_later(max(0.0, self._due - now), self._fire)
        else:
            self.is_active = False
            self._cell.timers.discard(self)
        if not self._is_pending:
            self._is_pending = True
            msg = self._msg
            self._cell.put(Incoming(1, msg.method, msg.args, dict(msg.kwargs), self, 0, EMPTY, False))

    # The message's origin: see `origin.Origin`.

    def reply(self, name: str, call_id: int, value: Any) -> None:
        """It has been handled."""
        self._is_pending = False

    def fail(
        self, name: str, call_id: int, kind: FailureKind, error: BaseException | None, text: str, trace: str
    ) -> None:
        """Its handler raised, or was stopped."""
        self._is_pending = False
        if kind == FailureKind.RAISED:
            log.error("timer's %s.%s failed:\n%s", name, self._msg.method, trace or text)

    def items(self, name: str, call_id: int, items: list[Any], window: int) -> None:
        """No stream is asked for."""

    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int) -> None:
        """It owes nobody room."""


class ThreadHandle:
    """`loop.call_later`, asked for by another thread than the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._seconds = seconds
        self._call = call
        loop.call_soon_threadsafe(self._arm)

    def cancel(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._disarm)

    def _arm(self) -> None:
        self._handle = self._loop.call_later(self._seconds, self._call)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def start_timer(cell: Cell, call_later: CallLater, msg: object, seconds: float, repeats: bool) -> Timer:
    """A timer of the actor behind ``cell``. ``TypeError`` and ``ValueError`` say what cannot be sent, or when."""
    check_seconds(seconds, repeats)
    if not isinstance(msg, Msg):
        raise TypeError(f"a timer takes a message made by Class.method.msg(...), not {msg!r}")
    if not cell.takes_calls_of(msg.method):
        raise TypeError(f"{type(cell.actor).__qualname__} has no handler {msg.method!r} that a timer could call")
    return MessageTimer(cell, call_later, msg, seconds, repeats)


def check_seconds(seconds: float, repeats: bool) -> None:
    """``ValueError`` for times that do not come, ``TypeError`` for what is no time."""
    if not hasattr(seconds, "__float__"):
        raise TypeError(f"a timer is given a number of seconds, not {seconds!r}")
    if not (0 <= seconds < math.inf) or (repeats and seconds == 0):
        raise ValueError(f"a timer of {seconds} seconds: give a finite number {'above' if repeats else 'not below'} 0")
