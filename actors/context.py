"""What the runtime gives an actor: its name, its own reference, phases and watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from .errors import ActorError
from .events import Event, GaveUp, Stopped
from .placement import Restart, Spec, Where, check_spawn, process
from .ref import Ref

if TYPE_CHECKING:
    from .actor import Actor, BlockingActor, Msg
    from .timers import Timer

A = TypeVar("A", bound="Actor | BlockingActor")
NO_LOOP: Final = "a BlockingActor has no event loop to wait for another actor's start on: make the owner an rt.Actor"


class Watch(AsyncIterator[Event]):
    """The events of one actor, from its present state on; ends after `GaveUp` or `Stopped`.

    Close it (``aclose``) or leave the ``async for`` and forget it: it holds nothing but a queue.
    """

    def __init__(self) -> None:
        self.unsubscribe: Callable[[], object] | None = None  # set by the runtime
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    def put(self, event: Event) -> None:
        """Called by the runtime."""
        self._events.put_nowait(event)

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, GaveUp | Stopped):
            await self.aclose()
        return event

    async def aclose(self) -> None:
        """Stop watching."""
        if not self._ended:
            self._ended = True
            assert self.unsubscribe is not None
            self.unsubscribe()


class ContextOwner(Protocol):
    """What a context needs of the place that hosts the actor."""

    def report_phase(self, phase: str, stall_after_s: float | None) -> None:
        """Tell the supervisor what the actor is doing now, and how long that may take."""

    def report_progress(self) -> None:
        """Show that the handler that runs is at work."""

    def watch(self, ref: Ref) -> Watch:
        """Subscribe to an actor's events."""

    def start_timer(self, msg: object, seconds: float, repeats: bool) -> Timer:
        """See `Context.after` and `Context.every`."""

    async def spawn(self, spec: Spec[Any], name: str | None, where: Where, restart: Restart) -> tuple[int, str]:
        """Start an actor that this one owns; its id and name."""

    async def stop_owned(self, ref: Ref, reason: str, timeout_s: float) -> None:
        """Stop one of them."""

    def cancelled(self) -> bool:
        """Whether the handler that runs should end."""


class Context:
    """Given to ``on_start`` and ``run``. ``incarnation`` counts the actor's starts from 1."""

    def __init__(self, owner: ContextOwner, ref: Ref, name: str, incarnation: int) -> None:
        self._owner = owner
        self._ref = ref
        self.name = name
        self.incarnation = incarnation

    @property
    def self_ref(self) -> Any:
        """The actor's own reference, to give to others."""
        return self._ref

    def phase(self, name: str, stall_after: float | None = None) -> None:
        """Name what the actor is doing: told in `ActorDied` and shown while it starts.

        ``stall_after`` (seconds) is how long the phase may take, in a process of its own, before the actor counts as
        stalled (see `Restart.on_stall`); a new phase, and READY, end it.
        """
        if stall_after is not None and stall_after <= 0:
            raise ValueError(f"stall_after of phase {name!r} is {stall_after}: it must be positive seconds")
        self._owner.report_phase(name, stall_after)

    def progress(self) -> None:
        """Report progress of the running handler: the time after which it counts as stalled starts again.

        It costs one store into shared memory. Call it from the handler's own thread, in each round of a long loop.
        """
        self._owner.report_progress()

    def after(self, seconds: float, msg: Msg[Any]) -> Timer:
        """Send the actor itself a message after ``seconds``: ``ctx.after(5, Cache.expire.msg(key))``.

        The message arrives like a cast, and an exception of its handler is logged. Timers end with the incarnation
        that started them. They can be started from ``on_start`` on; keep the context for handlers.
        """
        return self._owner.start_timer(msg, seconds, False)

    def every(self, seconds: float, msg: Msg[Any]) -> Timer:
        """Send the message at every multiple of ``seconds`` from now, until the timer is cancelled.

        Messages do not pile up: one is skipped while the previous one waits in the mailbox or is being handled.
        """
        return self._owner.start_timer(msg, seconds, True)

    def cancelled(self) -> bool:
        """For long handlers of a BlockingActor: the caller has given up, its deadline has passed, or a stop waits."""
        return self._owner.cancelled()

    def watch(self, ref: object) -> Watch:
        """The life of another actor; the first event tells its present state."""
        if not isinstance(ref, Ref):
            raise ActorError(f"watch needs a reference, not {type(ref).__name__}")
        return self._owner.watch(ref)

    async def spawn(
        self,
        spec: Spec[A],
        *,
        name: str | None = None,
        where: Where = process(),  # noqa: B008 (a frozen value)
        restart: Restart = Restart(),  # noqa: B008
    ) -> A:
        """Start an actor that this one owns; its reference, typed as the actor, when it is READY. From `on_start` on.

        It is supervised by its own ``restart`` policy. It ends when this actor ends, whatever way: after its
        ``on_stop``, which may still ask it, and before it is started again. For an `Actor`; one in a process of its own
        can own actors in processes only.

        Raises:
            StartFailed: with the traceback of the actor that did not start.
            ActorError: this actor stops, or its kind or ``where`` does not allow it.
        """
        check_spawn(spec, name, where, restart)
        actor_id, called = await self._owner.spawn(spec, name, where, restart)
        return cast(A, Ref(actor_id, called, self._ref._sender))

    async def stop(self, ref: object, reason: str = "its owner stopped it", timeout_s: float = 5.0) -> None:
        """Stop an actor that this one has spawned, in order; `ActorError` if it is another's."""
        if not isinstance(ref, Ref):
            raise TypeError(f"a reference that ctx.spawn returned is needed, not {type(ref).__name__}")
        await self._owner.stop_owned(ref, reason, timeout_s)
