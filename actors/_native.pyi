"""Types of the actors' native core: the way of a message through a mailbox. See native/actors.h."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Final, Self, final

from ringcast.channels import Doorbell, Inbox, Message, Outbox, RingReader, RingWriter
from ringcast.channels.large import LargeMessage

from .actor import Actor, BlockingActor
from .async_cell import Begun
from .call_context import CallContext
from .call_scope import Block
from .calls import Calls
from .cell import Cell, Handler, Panel
from .delivery import Delivery
from .mailbox_meter import MailboxMeter
from .node import Node
from .origin import Origin
from .peer import Peer

BUCKETS: Final[int]
SCOPE: Final[ContextVar[Scope | Block]]  # of the code that runs
POLL_BATCH: Final[int]  # messages of one inbox at once
SPIN_S: Final[float]  # how long to poll for more before sleeping, while messages come that close together

@final
class Incoming:
    """A message in a mailbox. ``call_id`` is None for a cast; ``quiet``: answer only if it fails."""

    def __new__(
        cls,
        call_id: int | None,
        method: str,
        args: Any,
        kwargs: Any,
        origin: Origin,
        size_bytes: int,
        context: CallContext,
        is_stream: bool = False,
        quiet: bool = False,
        /,
    ) -> Incoming: ...
    @property
    def call_id(self) -> int | None: ...
    @property
    def method(self) -> str: ...
    @property
    def args(self) -> Any: ...
    @property
    def kwargs(self) -> Any: ...
    origin: Origin
    @property
    def size_bytes(self) -> int: ...
    @property
    def context(self) -> CallContext: ...
    @property
    def is_stream(self) -> bool: ...
    @property
    def quiet(self) -> bool: ...
    arrived_at: float  # monotonic seconds, set by the mailbox
    began_at: float

class MeterCore:
    """What one mailbox counts. Times are monotonic seconds."""

    peak_depth: int
    failed: int
    expired: int
    @property
    def handled(self) -> int: ...
    @property
    def taken_at(self) -> float: ...
    @property
    def queue_time_s(self) -> float: ...
    @property
    def handling_time_s(self) -> float: ...
    @property
    def queue_histogram(self) -> list[int]: ...
    @property
    def handling_histogram(self) -> list[int]: ...
    def took(self, now: float, arrived_at: float, /) -> None: ...
    def handled_since(self, now: float, began_at: float, /) -> None: ...

def current_context() -> CallContext:
    """The context of the code that runs."""

@final
class Scope:
    """The context of a call, for as long as the call is open; then the empty one."""

    def __new__(cls, context: CallContext) -> Scope: ...
    @property
    def context(self) -> CallContext: ...
    @property
    def is_open(self) -> bool: ...
    def close(self) -> None:
        """The call has ended."""

class CellCore:
    """A mailbox: what arrives, what is taken out, and the end of a handler that succeeded.

    A subclass supplies what it calls: ``_would_wait_for_itself``, ``_misused``, ``_refuses``; and if it has a task,
    ``_begin_beside``, ``_enter``, ``_leave``, ``_ended_by``, ``_waits``, ``_was_cancelled``.
    """

    def __init__(
        self,
        actor: Actor | BlockingActor,
        actor_id: int,
        name: str,
        capacity_bytes: int,
        queue: deque[Incoming],
        meter: MailboxMeter,
        handlers: dict[str, Handler],
        plain_context: CallContext,
        panel: Panel | None,
        /,
    ) -> None: ...
    @property
    def actor(self) -> Any: ...
    @property
    def actor_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def queue(self) -> deque[Incoming]: ...
    @property
    def meter(self) -> MailboxMeter: ...
    @property
    def _handlers(self) -> dict[str, Handler]: ...
    @property
    def _plain_context(self) -> CallContext: ...
    _panel: Panel | None
    @property
    def _current(self) -> Incoming | None:
        """Whose handler runs, or waits."""
    _arrived: asyncio.Future[None] | None  # of who waits for the next message
    _timer: asyncio.TimerHandle | None  # the deadline of the handler
    _task: asyncio.Task[None] | None  # that serves the mailbox
    _context: Context | None  # of that task
    _begun: Begun | None  # a handler that began before that task had a turn, and waits
    _stopping: bool

    def put(self, incoming: Incoming, /) -> None:
        """Add a message to the mailbox."""
    def put_and_run(self, incoming: Incoming, /) -> bool:
        """The same from a callback of the actor's loop, where an idle actor may handle it at once: True if it has."""
    def _enqueue(self, incoming: Incoming, /) -> bool:
        """False: it was answered and is no message."""
    def _take(self) -> tuple[Incoming, Handler | None]:
        """The next message and its handler; None if it is not to be handled (the caller has been told)."""
    def _admit(self, incoming: Incoming, /) -> Handler | None:
        """The handler of a message that has left the mailbox; see `_take`."""
    def _admit_at_once(self, incoming: Incoming, /) -> Handler | None:
        """The handler of one that does not wait in it; see `_take`."""
    def _begin(self, incoming: Incoming, /) -> None:
        """Its handler begins: ``_enter``, or the same for the empty context."""
    def _finish(self, incoming: Incoming, value: Any, /) -> bool:
        """`_succeeded`, and `_close` if nothing else is left to settle: True."""
    def _open(self, incoming: Incoming, context: CallContext, /) -> None:
        """A handler begins: from here on, in this task, calls are made in that context."""
    def _close(self) -> None:
        """It has ended, and with it that context, also for tasks that it has made."""
    def _succeeded(self, incoming: Incoming, value: Any, /) -> None:
        """A handler has returned."""
    def _show_idle(self) -> None:
        """No handler runs, and no message waits."""

class RemoteOriginCore:
    """The way back to a caller in another process. A subclass supplies ``_send`` and ``_cannot_travel``."""

    def __new__(cls, node: Node, peer: Peer, encode: Callable[[object], bytes | LargeMessage]) -> Self: ...
    @property
    def _node(self) -> Node: ...
    @property
    def _peer(self) -> Peer: ...
    def reply(self, name: str, call_id: int, value: Any, /) -> None:
        """End the call, or the stream, with a value."""
    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int, /) -> None:
        """A message of that size left the mailbox: credit is returned in quarters of its capacity."""
    def forget_actor(self, actor_id: int, /) -> None:
        """The actor is gone: what its mailbox has not returned as credit is void."""

class DeliveryCore:
    """An envelope from a ring to the mailbox or to the call that it is meant for.

    A subclass supplies ``_take_other``, ``_gone`` and ``_undecodable``.
    """

    def __new__(cls, node: Node, decode: Callable[[Any], Any]) -> Self: ...
    @property
    def _node(self) -> Node: ...
    def handle(self, peer: Peer, data: bytes | memoryview, /) -> None:
        """Act on one message that came from the peer."""
    def handle_all(self, peer: Peer, messages: list[Message], is_alone: bool, /) -> int:
        """The same for what a ring's reader returned; how many that were.

        ``is_alone``: there is none behind it that might cancel it.
        """

class NodeCore:
    """What a node does for every message. A subclass supplies ``schedule_flush``, ``flush`` and ``read_link``."""

    bell: Doorbell
    outbox: Outbox
    cells: dict[int, Cell]
    calls: Calls
    delivery: Delivery
    readers: tuple[RingReader, ...]  # of the rings of all peers
    asked: int  # calls and streams that left since the last turn
    _inboxes: tuple[tuple[Peer, Inbox], ...]
    _backlog: deque[tuple[bytes, int]]
    _backlog_mask: int  # of the readers of what has been in it since it was last empty
    _unflushed: int  # messages sent since the last flush

    def send_masked(self, mask: int, payload: bytes | LargeMessage, /) -> None:
        """Put an envelope into our ring for several peers: one record that all of them read."""
    def poll_once(self) -> int:
        """Handle a batch from every inbox; the number of messages handled."""
    @property
    def _space_wanted(self) -> tuple[RingWriter, ...]:
        """For waits: our ring, if messages wait for room in it."""

class AsyncNodeCore(NodeCore):
    """What a node does in every turn of its loop. A subclass supplies ``_look_later``, for after one that failed."""

    loop: asyncio.AbstractEventLoop
    _context: Context  # of turns
    _running: bool
    _turn_scheduled: bool
    _armed: bool  # the bell rings for anything new; else look first
    _looks_for_answers: bool
    _cores: int  # that a callee may run on

    def schedule_flush(self) -> None:
        """Ring the doorbells of what was sent, soon."""
    def _schedule_turn(self) -> None:
        """Have a turn as soon as the loop can."""
    def _turn(self) -> None:
        """One turn's work; another one follows if there may be more to do, else the bell is armed."""
    def _on_bell(self) -> None:
        """The bell was rung."""
    def _poll_on(self) -> bool:
        """Look on for a moment, if that is worth while, and handle what has come; else False, and arm or stay so."""
