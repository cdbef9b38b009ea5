"""What users derive from and decorate with: Actor, BlockingActor, call, stream, Mailbox.

Handlers are ordinary methods when called on an instance (unit tests, the actor's own code); on a reference the same
name asks or tells the actor, with the same argument and result types and no type-checker plugin.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from .context import Context

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """What an actor may have pending from each process that sends to it, in encoded bytes.

    At the bound a cast raises `MailboxFull`; calls and ``cast.wait`` wait. One larger message is let in when the
    mailbox is (nearly) empty.
    """

    capacity: int = 1 << 20

    def __post_init__(self) -> None:
        if self.capacity < 1024:
            raise ValueError(f"Mailbox.capacity is {self.capacity}: at least 1024 bytes are needed")


@dataclass(frozen=True, slots=True)
class Msg(Generic[R_co]):
    """A call written down, to be sent to the members of a group: ``Worker.step.msg(plan)``."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Cast(Protocol[P]):
    """Tell: nothing comes back."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send and return at once; `MailboxFull` at the callee's bound, `ActorDied` if it is known to be gone."""

    def wait(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]:
        """Send, waiting while the callee's mailbox is full."""


class Call(Protocol[P, R_co]):
    """A handler seen through a reference: ``await ref.add(2)`` asks, ``ref.add.cast(2)`` tells."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R_co]:
        """Ask; ends exactly once: value, `RemoteError` or `ActorDied`. Cancelling the caller cancels the callee."""

    @property
    def cast(self) -> Cast[P]:
        """The telling form."""

    def msg(self, *args: P.args, **kwargs: P.kwargs) -> Msg[R_co]:
        """The call written down, for `Group.gather` and `Group.cast`."""


class Stream(Protocol[P, T_co]):
    """A stream handler seen through a reference."""

    def open(self, *args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[AsyncIterator[T_co]]:
        """``async with ref.ticks.open(10) as ticks:``; leaving the block ends the producer."""


class Descriptor:
    """A method marked as a handler: the plain method on an instance."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__isabstractmethod__ = getattr(function, "__isabstractmethod__", False)

    def overridden_by(self, function: Callable[..., Any]) -> Descriptor:
        """The handler that a method is which overrides this one without a decorator: with the same settings."""
        raise NotImplementedError


class CallDescriptor(Descriptor, Generic[P, R]):
    """Made by `call`. On a reference it is a `Call`."""

    def __init__(self, function: Callable[..., Any], concurrent: bool | int, idempotent: bool) -> None:
        super().__init__(function)
        self.concurrent = concurrent
        self.idempotent = idempotent

    def __get__(self, instance: object | None, owner: type | None = None) -> Call[P, R]:
        if instance is None:
            return self  # type: ignore[return-value]
        return self.function.__get__(instance, owner)  # type: ignore[no-any-return]

    def msg(self, *args: Any, **kwargs: Any) -> Msg[Any]:
        return Msg(self.__name__, args, kwargs)

    def overridden_by(self, function: Callable[..., Any]) -> Descriptor:
        return CallDescriptor(function, self.concurrent, self.idempotent)


class StreamDescriptor(Descriptor, Generic[P, T]):
    """Made by `stream`. On a reference it is a `Stream`."""

    def __init__(self, function: Callable[..., Any], window: int, batch: int) -> None:
        super().__init__(function)
        self.window = window
        self.batch = batch

    def __get__(self, instance: object | None, owner: type | None = None) -> Stream[P, T]:
        if instance is None:
            return self  # type: ignore[return-value]
        return self.function.__get__(instance, owner)  # type: ignore[no-any-return]

    def overridden_by(self, function: Callable[..., Any]) -> Descriptor:
        return StreamDescriptor(function, self.window, self.batch)


class CallDecorator(Protocol):
    """What ``rt.call(...)`` with options returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> CallDescriptor[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> CallDescriptor[P, R]: ...


@overload
def call(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> CallDescriptor[P, R]: ...
@overload
def call(function: Callable[Concatenate[Any, P], R], /) -> CallDescriptor[P, R]: ...
@overload
def call(*, concurrent: bool | int = False, idempotent: bool = False) -> CallDecorator: ...
def call(
    function: Callable[..., Any] | None = None, /, *, concurrent: bool | int = False, idempotent: bool = False
) -> Any:
    """Mark a method as a handler. Handlers of one actor run one at a time, in the order of arrival per sender.

    Args:
        concurrent: True lets any number of calls of this handler run at a time, beside the other handlers, each in a
            task of its own (async actors only). A number is the most that run at a time; later ones wait in order,
            count against the mailbox's bound, and do not hold up other handlers.
        idempotent: running it twice has the same effect as once, so `retry` may repeat it.

    A subclass's method of the same name is a handler with these settings, too, unless it is marked itself.
    """
    if type(concurrent) not in (bool, int):
        raise TypeError(f"call(concurrent={concurrent!r}): give True, or how many may run at a time")
    if type(concurrent) is int and concurrent < 1:
        raise ValueError(f"call(concurrent={concurrent}): give True, or a number of 1 or more")
    if function is None:
        return lambda f: CallDescriptor(f, concurrent, idempotent)
    return CallDescriptor(function, concurrent, idempotent)


class StreamDecorator(Protocol):
    """What ``rt.stream(...)`` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], AsyncIterator[T]], /) -> StreamDescriptor[P, T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Iterator[T]], /) -> StreamDescriptor[P, T]: ...


@overload
def stream(function: Callable[Concatenate[Any, P], AsyncIterator[T]], /) -> StreamDescriptor[P, T]: ...
@overload
def stream(function: Callable[Concatenate[Any, P], Iterator[T]], /) -> StreamDescriptor[P, T]: ...
@overload
def stream(*, window: int = 64, batch: int | None = None) -> StreamDecorator: ...
def stream(
    function: Callable[..., Any] | None = None, /, *, window: int = 64, batch: int | None = None
) -> StreamDescriptor[Any, Any] | StreamDecorator:
    """Mark a generator method as a stream. It runs beside the handlers, suspended while its reader is behind.

    ``window`` is how many items may be on their way or unread; up to ``batch`` of them travel in one message, without
    waiting for it to fill up (8 unless told, or the window if that is less).
    """
    if function is not None and not callable(function):
        raise TypeError(f"stream({function!r}): give window and batch by name, as in @rt.stream(window=64)")
    if batch is None:
        batch = min(8, window)
    if type(window) is not int or type(batch) is not int:
        raise TypeError(f"stream(window={window!r}, batch={batch!r}): give whole numbers")
    if not 1 <= batch <= window:
        raise ValueError(f"stream(window={window}, batch={batch}): need 1 <= batch <= window")
    if function is not None:
        return StreamDescriptor(function, window, batch)
    return lambda function: StreamDescriptor(function, window, batch)


class _ActorBase:
    mailbox: ClassVar[Mailbox] = Mailbox()
    # Busy in one handler for longer (seconds), the actor is reported as stalled, in a process of its own. None: never.
    stall_after_s: ClassVar[float | None] = None

    @classmethod
    def handlers(cls) -> dict[str, Descriptor]:
        """The class's handlers and streams by name, inherited ones included.

        In the order of their names: they are numbered by it in every process, and a class that travelled by value has
        another order of definition than the original.
        """
        found: dict[str, Descriptor] = {}
        for base in reversed(cls.__mro__):
            found |= {name: member for name, member in vars(base).items() if isinstance(member, Descriptor)}
        return dict(sorted(found.items()))


def _check_hooks(cls: type[_ActorBase], hooks: dict[str, str]) -> None:
    """``hooks``: their names and what they are called with. `TypeError` for one that could not be called so."""
    for name, parameters in hooks.items():
        function = vars(cls).get(name)
        title = f"{cls.__qualname__}.{name}"
        if isinstance(function, Descriptor):
            raise TypeError(f"{title} is a hook, which the runtime calls: it cannot be a handler")
        if not inspect.isfunction(function):
            continue
        is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if issubclass(cls, Actor) and (is_generator or not inspect.iscoroutinefunction(function)):
            raise TypeError(f"{title} must be async def, without yield: {cls.__qualname__} is an async Actor")
        if not issubclass(cls, Actor) and (is_generator or inspect.iscoroutinefunction(function)):
            raise TypeError(f"{title} must be a plain def, without yield: {cls.__qualname__} is a BlockingActor")
        try:
            inspect.signature(function).bind(None, *parameters.split(", ") if parameters else [])
        except TypeError as error:
            raise TypeError(f"{title} is called as {name}({parameters}): {error}") from None


def _checked_handlers(cls: type[_ActorBase]) -> dict[str, Descriptor]:
    """The class's handlers. One that is overridden by a plain method, of a subclass or a mix-in, becomes that method
    with its settings: what an instance runs is what a reference runs.
    """
    for name, handler in cls.handlers().items():
        member = inspect.getattr_static(cls, name)
        if name.startswith("_"):
            raise TypeError(f"{cls.__qualname__}.{name}: no handler may have a leading underscore: rename it")
        if isinstance(member, Descriptor):
            continue
        if not inspect.isfunction(member):
            raise TypeError(f"{cls.__qualname__}.{name} hides a handler and is not a method: choose another name")
        setattr(cls, name, handler.overridden_by(member))
    for name, member in vars(cls).items():
        if not isinstance(member, Descriptor) and isinstance(getattr(member, "__wrapped__", None), Descriptor):
            raise TypeError(
                f"{cls.__qualname__}.{name}: a decorator hides the handler; put @rt.call or @rt.stream on top"
            )
    return cls.handlers()


class Actor(_ActorBase):
    """An actor with ``async def`` handlers, served on an asyncio loop.

    Flow: ``__init__`` (cheap) -> ``on_prepare`` -> ``on_start`` (READY when it returns) -> handlers one at a time, with
    ``run`` beside them if the class has one -> ``on_stop``. An exception in a handler goes to the caller and the actor
    lives on; an exception in ``run`` kills the actor, and its supervisor decides.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_hooks(cls, {"on_prepare": "ctx", "on_start": "ctx, handoff", "run": "ctx", "on_stop": "reason"})
        for name, member in _checked_handlers(cls).items():
            if isinstance(member, CallDescriptor) and inspect.isasyncgenfunction(member.function):
                raise TypeError(f"{cls.__qualname__}.{name} yields: mark it with @rt.stream")
            if isinstance(member, CallDescriptor) and not inspect.iscoroutinefunction(member.function):
                raise TypeError(
                    f"{cls.__qualname__}.{name} is a plain def on an async Actor: make it async def, "
                    "or derive from BlockingActor"
                )
            if isinstance(member, StreamDescriptor) and not inspect.isasyncgenfunction(member.function):
                raise TypeError(f"{cls.__qualname__}.{name} is no async generator: a stream needs a `yield`")

    async def on_prepare(self, ctx: Context) -> None:
        """What a start needs and may happen early: load libraries, open files. `on_start` follows.

        With ``process(spare=True)`` it runs while the predecessor is still at work: it must leave alone what that one
        owns (a device's memory, a lock), and the time until `on_start` may be any, or for ever.
        """

    async def on_start(self, ctx: Context, handoff: object) -> None:
        """Prepare; READY is sent when this returns. Raising makes the start fail with this traceback.

        ``handoff`` is what the predecessor's ``on_stop`` returned, if this is a restart in order; else None.
        """

    async def run(self, ctx: Context) -> None:
        """The actor's own loop, beside its handlers. Returning is fine: the handlers go on."""

    async def on_stop(self, reason: str) -> object:
        """Clean up on an orderly stop (never on a kill); what it returns is the successor's ``handoff``."""
        return None


class BlockingActor(_ActorBase):
    """The same with plain ``def`` handlers, on the main thread of its process or, `here`, on a thread of its own.

    Its streams are plain generators, suspended between credits. A handler cannot be cancelled from outside; a long
    one may look at ``ctx.cancelled()``.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_hooks(cls, {"on_prepare": "ctx", "on_start": "ctx, handoff", "on_stop": "reason", "on_abort": ""})
        for name, member in _checked_handlers(cls).items():
            if inspect.iscoroutinefunction(member.function) or inspect.isasyncgenfunction(member.function):
                raise TypeError(
                    f"{cls.__qualname__}.{name} is async def on a BlockingActor: make it def, or derive from Actor"
                )
            if isinstance(member, StreamDescriptor) and not inspect.isgeneratorfunction(member.function):
                raise TypeError(f"{cls.__qualname__}.{name} is no generator: a stream needs a `yield`")
            if isinstance(member, CallDescriptor) and member.concurrent:
                raise TypeError(f"{cls.__qualname__}.{name} is concurrent: a BlockingActor has one thread")

    def on_prepare(self, ctx: Context) -> None:
        """What a start needs and may happen early: load libraries, open files. `on_start` follows.

        With ``process(spare=True)`` it runs while the predecessor is still at work: it must leave alone what that one
        owns (a device's memory, a lock), and the time until `on_start` may be any, or for ever.
        """

    def on_start(self, ctx: Context, handoff: object) -> None:
        """Prepare; READY is sent when this returns. Raising makes the start fail with this traceback.

        ``handoff`` is what the predecessor's ``on_stop`` returned, if this is a restart in order; else None.
        """

    def on_stop(self, reason: str) -> object:
        """Clean up on an orderly stop (never on a kill); what it returns is the successor's ``handoff``."""
        return None

    def on_abort(self) -> None:
        """Called on a side thread when the actor must end while a handler runs: abort what it is stuck in."""
