"""What users derive from and decorate with: Actor, BlockingActor, call, Mailbox.

Handlers are ordinary methods when called on an instance (unit tests, the actor's own code); on a reference the same
name asks or tells the actor, with the same argument and result types and no type-checker plugin.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from .context import Context

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


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


class CallDescriptor(Generic[P, R]):
    """A method marked with `call`. On an instance it is the plain method; on a reference, a `Call`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__isabstractmethod__ = getattr(function, "__isabstractmethod__", False)

    def __get__(self, instance: object | None, owner: type | None = None) -> Call[P, R]:
        if instance is None:
            return self  # type: ignore[return-value]
        return self.function.__get__(instance, owner)  # type: ignore[no-any-return]


@overload
def call(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> CallDescriptor[P, R]: ...
@overload
def call(function: Callable[Concatenate[Any, P], R]) -> CallDescriptor[P, R]: ...
def call(function: Callable[..., Any]) -> CallDescriptor[Any, Any]:
    """Mark a method as a handler. Handlers of one actor run one at a time, in the order of arrival per sender."""
    return CallDescriptor(function)


class _ActorBase:
    mailbox: ClassVar[Mailbox] = Mailbox()

    @classmethod
    def handlers(cls) -> dict[str, CallDescriptor[Any, Any]]:
        """The class's handlers by name, inherited ones included."""
        found: dict[str, CallDescriptor[Any, Any]] = {}
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                if isinstance(member, CallDescriptor):
                    found[name] = member
        return found


class Actor(_ActorBase):
    """An actor with ``async def`` handlers, served on an asyncio loop.

    Flow: ``__init__`` (cheap) -> ``on_start`` (READY when it returns) -> handlers one at a time, with ``run`` beside
    them if the class has one -> ``on_stop``. An exception in a handler goes to the caller and the actor lives on; an
    exception in ``run`` kills the actor, and its supervisor decides.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, member in vars(cls).items():
            if isinstance(member, CallDescriptor) and not inspect.iscoroutinefunction(member.function):
                raise TypeError(
                    f"{cls.__qualname__}.{name} is a plain def on an async Actor: make it async def, "
                    "or derive from BlockingActor"
                )

    async def on_start(self, ctx: Context, handoff: object) -> None:
        """Prepare; READY is sent when this returns. Raising makes the start fail with this traceback."""

    async def run(self, ctx: Context) -> None:
        """The actor's own loop, beside its handlers. Returning is fine: the handlers go on."""

    async def on_stop(self, reason: str) -> object:
        """Clean up on an orderly stop (never on a kill)."""
        return None


class BlockingActor(_ActorBase):
    """The same with plain ``def`` handlers, on the main thread of its process or, `here`, on a thread of its own."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, member in vars(cls).items():
            if isinstance(member, CallDescriptor) and inspect.iscoroutinefunction(member.function):
                raise TypeError(
                    f"{cls.__qualname__}.{name} is async def on a BlockingActor: make it def, or derive from Actor"
                )

    def on_start(self, ctx: Context, handoff: object) -> None:
        """Prepare; READY is sent when this returns. Raising makes the start fail with this traceback."""

    def on_stop(self, reason: str) -> object:
        """Clean up on an orderly stop (never on a kill)."""
        return None
