"""Instances of dataclasses, NamedTuples and Enums in messages, which need no registration.

Called by the codec. Their class travels by its qualified name, once in a message, and the receiver imports its module;
a class that cannot be imported by name travels by value (`by_value`). Restoring an instance sets its fields as copying
and pickling do: neither ``__init__`` nor ``__post_init__`` runs a second time.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from . import importable
from .errors import DecodeError, EncodeError
from .values import keep_tuple

TAG: Final = 9  # [class, or its number in the message; values of the fields; other attributes, if there are any]
CLASS_TAG: Final = 10  # [number in the message, name, definition or b"", names of the fields or None]

_DATACLASS, _NAMED_TUPLE, _ENUM, _FLAG = range(4)
_CLASSES_KEPT: Final = 1024


class Known(NamedTuple):
    """What this process knows of a class that travels."""

    cls: type[Any]
    kind: int
    fields: tuple[str, ...]
    other_slots: tuple[str, ...]  # attributes that are no fields and lie in slots
    has_dict: bool
    cached: frozenset[str]  # attributes that are computed again when they are needed
    name: str
    definition: bytes  # empty if the name is enough


_received: dict[tuple[str, bytes, tuple[str, ...]], Known] = {}


def packer_of(cls: type) -> Callable[[dict[type, int], Any], tuple[int, list[Any]]] | None:
    """What packs instances of that class, given the numbers of the classes that its message has named; else None."""
    kind = _kind_of(cls)
    if kind is None:
        return None
    known = _describe(cls, kind)

    def pack(named: dict[type, int], value: Any) -> tuple[int, list[Any]]:
        number: Any = named.get(cls)
        if number is None:
            named[cls] = number = len(named)
            number = _Named(number, known)
        return TAG, [number, *_contents(known, value)]

    return pack


class _Named(NamedTuple):
    """A class that a message names for the first time."""

    number: int
    known: Known


def pack_class(named: _Named) -> tuple[int, list[Any]]:
    """The same for `_Named`, which packed instances contain."""
    number, known = named
    fields = None if known.kind >= _ENUM else list(known.fields)
    return CLASS_TAG, [number, known.name, known.definition, fields]


NAMED: Final[type] = _Named


def _contents(known: Known, value: Any) -> list[Any]:
    if known.kind == _ENUM:
        return [value.name]
    if known.kind == _FLAG:
        return [int(value.value)]
    if known.kind == _NAMED_TUPLE:
        contents = [keep_tuple(item) for item in value]
    else:
        contents = [keep_tuple(getattr(value, name)) for name in known.fields]
    others = {name: getattr(value, name) for name in known.other_slots if hasattr(value, name)}
    if known.has_dict:
        attributes = value.__dict__
        if known.kind == _NAMED_TUPLE or len(attributes) != len(known.fields):
            skipped = {*known.fields, *known.cached} if known.kind == _DATACLASS else known.cached
            others |= {name: item for name, item in attributes.items() if name not in skipped}
    if others:
        contents.append(others)
    return contents


def step(value: object, index: int) -> str:
    """Words for an element of what an instance was packed as."""
    cls: Any = type(value)
    kind = _kind_of(cls)
    fields: tuple[str, ...] = ()
    if kind == _NAMED_TUPLE:
        fields = cls._fields
    elif kind == _DATACLASS:
        fields = tuple(field.name for field in dataclasses.fields(cls))
    return f".{fields[index - 1]}" if 0 < index <= len(fields) else ".__dict__"


def rebuild_class(named: dict[int, Known], packed: object) -> Known:
    """A class that a message names for the first time. `DecodeError` if it is not as the sender has it."""
    match packed:
        case [int(number), str(name), bytes(definition), (list() | None) as fields] if all(
            type(field) is str for field in fields or ()
        ):
            known = named[number] = _find(name, definition, tuple(fields or ()))
            return known
    raise DecodeError(f"an extension of tag {CLASS_TAG} names no class")


def rebuild(named: dict[int, Known], packed: object) -> Any:
    """The instance that was packed."""
    match packed:
        case [Known() as known, *contents]:
            return _restore(known, contents)
        case [int(number), *contents] if number in named:
            return _restore(named[number], contents)
    raise DecodeError(f"an extension of tag {TAG} is no instance of a class that the message has named")


def _restore(known: Known, contents: list[Any]) -> Any:
    cls = known.cls
    if known.kind >= _ENUM:
        (what,) = contents
        return cls(what) if known.kind == _FLAG else _member(cls, what)
    count = len(known.fields)
    if not count <= len(contents) <= count + 1:
        raise DecodeError(f"a {known.name} of {len(contents)} fields, not {count}")
    if known.kind == _NAMED_TUPLE:
        made = tuple.__new__(cls, contents[:count])
    else:
        made = object.__new__(cls)
        for name, value in zip(known.fields, contents, strict=False):
            object.__setattr__(made, name, value)
    if len(contents) > count:
        for name, value in contents[count].items():
            object.__setattr__(made, name, value)
    return made


def _member(cls: Any, name: object) -> Any:
    member = cls.__members__.get(name)
    if member is None:
        raise DecodeError(f"enum {cls.__qualname__} has no member {name!r}: do both processes run the same code?")
    return member


def _find(name: str, definition: bytes, fields: tuple[str, ...]) -> Known:
    key = (name, definition, fields)
    known = _received.get(key)
    if known is not None and (definition or importable.look_up(_module(name), name.partition(":")[2]) is known.cls):
        return known
    if definition:
        from . import by_value

        cls: Any = by_value.load(definition)
    else:
        cls = importable.find(name)
    kind = _kind_of(cls) if isinstance(cls, type) else None
    if kind is None:
        raise DecodeError(f"{name} is no dataclass, NamedTuple or Enum here")
    known = _describe(cls, kind, definition)
    if kind < _ENUM and known.fields != fields:
        raise DecodeError(
            f"a {name} came with the fields {', '.join(fields)}, but has {', '.join(known.fields)} here: "
            "do both processes run the same code?"
        )
    if len(_received) >= _CLASSES_KEPT:
        _received.clear()
    _received[key] = known
    return known


def _module(name: str) -> object:
    return sys.modules.get(name.partition(":")[0])


def _kind_of(cls: type) -> int | None:
    """Of what kind a class is that travels; None if it does not."""
    if isinstance(cls, enum.EnumMeta):
        return _FLAG if issubclass(cls, enum.Flag) else _ENUM
    fields = getattr(cls, "_fields", None)
    if issubclass(cls, tuple):
        return _NAMED_TUPLE if isinstance(fields, tuple) and hasattr(cls, "_make") else None
    return _DATACLASS if dataclasses.is_dataclass(cls) else None


def _describe(cls: type[Any], kind: int, definition: bytes | None = None) -> Known:
    """``definition``: what the class came as, if it came; else it is made if the class needs one."""
    fields: tuple[str, ...] = ()
    if kind == _NAMED_TUPLE:
        fields = cls._fields
    elif kind == _DATACLASS:
        fields = tuple(field.name for field in dataclasses.fields(cls))
        try:
            object.__new__(cls)
        except TypeError as error:
            raise EncodeError(
                f"a value of type {importable.name_of(cls)} cannot travel in a message: it is a dataclass, but also "
                f"more than its fields ({error}); send its parts"
            ) from error
    slots = tuple(name for name in _slots_of(cls) if name not in fields) if kind < _ENUM else ()
    cached = frozenset(
        name for base in cls.__mro__ for name, item in vars(base).items() if type(item) is functools.cached_property
    )
    if definition is None:
        definition = b"" if importable.is_importable(cls) else _definition_of(cls)
    has_dict = kind < _ENUM and hasattr(cls, "__dict__") and bool(cls.__dictoffset__)
    return Known(cls, kind, fields, slots, has_dict, cached | {"__orig_class__"}, importable.name_of(cls), definition)


def _slots_of(cls: type) -> list[str]:
    names = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                hidden = name.startswith("__") and not name.endswith("__")
                names.append(f"_{base.__name__.lstrip('_')}{name}" if hidden else name)
    return names


def _definition_of(cls: type) -> bytes:
    from . import by_value

    try:
        return by_value.dump(cls)
    except TypeError as error:
        raise EncodeError(str(error)) from error
