"""References: plain data that names an actor, with its handlers as typed attributes.

A reference is what `System.spawn` returns (typed as the actor's class) and what travels in messages and spec
arguments. It holds no connection: the node of the process it is used in finds the way, and finds it again after a
restart of the actor.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, Protocol

from .actor import Actor, BlockingActor, Descriptor, Msg
from .errors import NotInSystem

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from .consumer import StreamReader

REF_TAG = 1
NUMBER_BITS = 32  # of an actor's id: its number within its system; the bits above are the system's own


def number_of(actor_id: int) -> int:
    """The number of an actor within its system, which is what texts show of its id."""
    return actor_id & ((1 << NUMBER_BITS) - 1)


class Sender(Protocol):
    """What a reference needs of the node that it is bound to."""

    def ask(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]: ...
    def tell(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def tell_waiting(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[None]: ...
    def open(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamReader: ...


class Ref:
    """One actor, whatever its incarnation. Equal and hashable by id; ``ref.method(...)`` asks it."""

    __slots__ = ("__dict__", "_actor_id", "_cls", "_name", "_sender")
    _actor_id: int
    _name: str
    _sender: Sender | None
    _cls: type | str | None  # the actor's class; "module:qualname" of one that is looked up here; None: not known

    def __init__(self, actor_id: int, name: str, sender: Sender | None, cls: type | str | None = None) -> None:
        set_slot = object.__setattr__
        set_slot(self, "_actor_id", actor_id)
        set_slot(self, "_name", name)
        set_slot(self, "_sender", sender)
        set_slot(self, "_cls", cls)

    def __getattr__(self, method: str) -> BoundCall:
        """Called once for each method: what it returns is kept, for a look-up that fails first is slow."""
        if method.startswith("_"):
            raise AttributeError(method)
        cls = _loaded(self._cls) if isinstance(self._cls, str) else self._cls
        if cls is not None:
            _check_handler(cls, method)
        bound = self.__dict__[method] = BoundCall(Ref(self._actor_id, self._name, self._sender, self._cls), method)
        return bound

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name!r} cannot be set on {self!r}: it is a reference, not the actor")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other._actor_id == self._actor_id and other._sender is self._sender

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"<Ref {self._name!r} #{number_of(self._actor_id)}>"

    def __dir__(self) -> list[str]:
        """What a shell completes: the handlers, where the class is known."""
        cls = _loaded(self._cls) if isinstance(self._cls, str) else self._cls
        handlers = cls.handlers() if cls is not None and issubclass(cls, Actor | BlockingActor) else ()
        return sorted({*super().__dir__(), *handlers})

    def __copy__(self) -> Ref:
        return self

    def __deepcopy__(self, memo: object) -> Ref:
        return self  # as what it names does not change, a copy is the same: `dataclasses.asdict` copies deeply

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} travels in messages and spec arguments of its system, not by pickle")


class BoundCall:
    """``ref.method``: call it to ask, ``.cast`` it to tell, ``.open`` it if it is a stream."""

    __slots__ = ("_method", "_ref", "cast")

    def __init__(self, ref: Ref, method: str) -> None:
        self._ref = ref
        self._method = method
        self.cast = BoundCast(ref, method)

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        ref = self._ref
        return (ref._sender or sender_of(ref)).ask(ref, self._method, args, kwargs)

    def open(self, *args: Any, **kwargs: Any) -> StreamReader:
        return sender_of(self._ref).open(self._ref, self._method, args, kwargs)

    def msg(self, *args: Any, **kwargs: Any) -> Msg[Any]:
        return Msg(self._method, args, kwargs)


class BoundCast:
    """``ref.method.cast``: call it to tell at once, ``.wait`` it to tell when there is room."""

    __slots__ = ("_method", "_ref")

    def __init__(self, ref: Ref, method: str) -> None:
        self._ref = ref
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        sender_of(self._ref).tell(self._ref, self._method, args, kwargs)

    def wait(self, *args: Any, **kwargs: Any) -> Awaitable[None]:
        return sender_of(self._ref).tell_waiting(self._ref, self._method, args, kwargs)


def sender_of(ref: Ref) -> Sender:
    if ref._sender is None:
        raise NotInSystem(f"{ref!r} is bound to no system: it was made outside one")
    return ref._sender


def pack_ref(ref: Ref) -> bytes:
    """The bytes of a reference in a message: its id, 8 bytes little-endian, its name, and behind a NUL its class."""
    cls = ref._cls
    class_name = f"{cls.__module__}:{cls.__qualname__}" if isinstance(cls, type) else cls or ""
    return ref._actor_id.to_bytes(8, "little") + f"{ref._name}\0{class_name}".encode()


def unpack_ref(data: bytes, sender: Sender | None) -> Ref:
    """The reference in ``data``, bound to the receiver's node, or to none. ``ValueError`` if it is no reference."""
    if len(data) < 8:
        raise ValueError(f"a reference of {len(data)} bytes: 8 are needed")
    name, _, class_name = bytes(data[8:]).decode().partition("\0")
    return Ref(int.from_bytes(data[:8], "little"), name, sender, class_name or None)


def _loaded(class_name: str) -> type | None:
    """The class of that name, if this process has imported it. What was defined in `__main__` may be another one here,
    or have been defined anew: it is not looked for.
    """
    module_name, _, qualname = class_name.partition(":")
    found: object = sys.modules.get(module_name)
    if found is None or module_name == "__main__":
        return None
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and issubclass(found, Actor | BlockingActor) else None


def _check_handler(cls: type, name: str) -> None:
    """`AttributeError` if the actor's class has no handler of that name."""
    member = inspect.getattr_static(cls, name, None)
    if isinstance(member, Descriptor):
        return
    if callable(member):
        raise AttributeError(f"{cls.__qualname__}.{name} is no handler: mark it with @rt.call to ask it by reference")
    if member is not None:
        raise AttributeError(f"{cls.__qualname__}.{name} is no handler: ask the actor for it, in one that returns it")
    from difflib import get_close_matches  # for this alone

    handlers = list(cls.handlers()) if issubclass(cls, Actor | BlockingActor) else []
    close = get_close_matches(name, handlers)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has: {', '.join(handlers) or 'none'}"
    raise AttributeError(f"{cls.__qualname__} has no handler {name!r} ({hint})")
