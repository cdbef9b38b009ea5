"""References: plain data that names an actor, with its handlers as typed attributes.

A reference is what `System.spawn` returns (typed as the actor's class) and what travels in messages and spec
arguments. It holds no connection: the node of the process it is used in finds the way, and finds it again after a
restart of the actor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .actor import Msg
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

    __slots__ = ("__dict__", "_actor_id", "_name", "_sender")
    _actor_id: int
    _name: str
    _sender: Sender | None

    def __init__(self, actor_id: int, name: str, sender: Sender | None) -> None:
        set_slot = object.__setattr__
        set_slot(self, "_actor_id", actor_id)
        set_slot(self, "_name", name)
        set_slot(self, "_sender", sender)

    def __getattr__(self, method: str) -> BoundCall:
        """Called once for each method: what it returns is kept, for a look-up that fails first is slow."""
        if method.startswith("_"):
            raise AttributeError(method)
        bound = self.__dict__[method] = BoundCall(Ref(self._actor_id, self._name, self._sender), method)
        return bound

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name!r} cannot be set on {self!r}: it is a reference, not the actor")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other._actor_id == self._actor_id and other._sender is self._sender

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"<Ref {self._name!r} #{number_of(self._actor_id)}>"

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
    """The bytes of a reference in a message: its id, 8 bytes little-endian, and its name in UTF-8."""
    return ref._actor_id.to_bytes(8, "little") + ref._name.encode()


def unpack_ref(data: bytes, sender: Sender | None) -> Ref:
    """The reference in ``data``, bound to the receiver's node, or to none. ``ValueError`` if it is no reference."""
    if len(data) < 8:
        raise ValueError(f"a reference of {len(data)} bytes: 8 are needed")
    return Ref(int.from_bytes(data[:8], "little"), data[8:].decode(), sender)
