"""An actor's class and arguments as they travel to a process: from the root, or from an actor that spawns another one.

The root starts what an actor in another process spawned without ever loading its class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringcast.channels import EncodeError

from .boot import class_for_travel
from .wire import name_argument

if TYPE_CHECKING:
    from ringcast.channels import Codec

    from .placement import Spec


@dataclass(frozen=True, slots=True)
class Parcel:
    """See the module. Sent as a list of its fields."""

    title: str  # of the class
    class_name: str  # see `boot.class_for_travel`
    class_bytes: bytes
    arguments: bytes  # encoded (args, kwargs)
    handlers: list[str]
    stall_after_s: float | None


def contents(spec: Spec[Any] | Parcel, handoff: object) -> tuple[str, str, bytes, tuple[Any, Any, object]]:
    """What a boot frame is made of: the class's title, name and bytes, and (args, kwargs, hand-off).

    Of a parcel (arguments, None, hand-off): its arguments are encoded already, and nobody here can decode them.
    """
    if isinstance(spec, Parcel):
        return spec.title, spec.class_name, spec.class_bytes, (spec.arguments, None, handoff)
    return spec.cls.__qualname__, *class_for_travel(spec.cls), (spec.args, dict(spec.kwargs), handoff)


def pack(spec: Spec[Any], codec: Codec) -> Parcel:
    """``TypeError`` or `EncodeError` if the class, or an argument, cannot travel."""
    cls = spec.cls
    class_name, class_bytes = class_for_travel(cls)
    try:
        arguments = codec.encode((spec.args, dict(spec.kwargs)))
    except EncodeError as error:
        name_argument(error, cls.__qualname__, 0)
        raise
    return Parcel(cls.__name__, class_name, class_bytes, arguments, list(cls.handlers()), cls.stall_after_s)
