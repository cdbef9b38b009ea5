"""Python's ordinary types in messages: dates, decimals, paths, sets and so on, and each one's way there and back.

Called by the codec for what msgpack has no type for. A value travels as a list: the number of its type in the table
below, and what it is made of. Only these exact types do: a subclass would arrive as its base.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .errors import DecodeError, EncodeError

TAG: Final = 8

_FACTORIES: Final = {cls.__name__: cls for cls in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)}


class KeptTuple:
    """A tuple that arrives as one. Plain ones arrive as lists, which can be no keys and no members of sets."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def keep_tuple(value: object) -> object:
    """The value, so that it arrives as a tuple if it is one."""
    return KeptTuple(value) if type(value) is tuple else value


# To lists.


def _of_int(value: int) -> list[Any]:
    return [value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


def _of_items(value: Any) -> list[Any]:
    return [keep_tuple(item) for item in value]


def _of_pairs(value: dict[Any, Any]) -> list[Any]:
    return [part for key, item in value.items() for part in (keep_tuple(key), item)]


def _of_defaultdict(value: Any) -> list[Any]:
    factory = value.default_factory
    name: str | None = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and _FACTORIES.get(name) is not factory:
        raise EncodeError(
            f"a defaultdict whose default_factory is {factory!r} cannot travel: a built-in type or None can; "
            "send dict(value)"
        )
    return [name, *_of_pairs(value)]


def _of_datetime(value: Any) -> list[Any]:
    parts = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
    return [value.fold, value.tzinfo, *parts]


def _of_time(value: Any) -> list[Any]:
    return [value.fold, value.tzinfo, value.hour, value.minute, value.second, value.microsecond]


def _of_timezone(value: Any) -> list[Any]:
    return list(value.__getinitargs__())  # (offset,) or (offset, name), as pickle has them


def _of_zone(value: Any) -> list[Any]:
    if value.key is None:
        raise EncodeError("a ZoneInfo without a key cannot travel: make it with ZoneInfo(key)")
    return [value.key]


# And back.


def _to_datetime(fold: int, zone: Any, *parts: int) -> Any:
    return _library("datetime").datetime(*parts, tzinfo=zone, fold=fold)


def _to_time(fold: int, zone: Any, *parts: int) -> Any:
    return _library("datetime").time(*parts, tzinfo=zone, fold=fold)


def _to_pairs(*parts: Any) -> dict[Any, Any]:
    if len(parts) % 2:
        raise DecodeError("a dict's last key has no value")
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _to_defaultdict(name: str | None, *parts: Any) -> Any:
    factory = None if name is None else _FACTORIES[name]
    return _library("collections").defaultdict(factory, _to_pairs(*parts))


def _library(name: str) -> Any:
    """A module of the standard library, which may not have been needed before."""
    return sys.modules.get(name) or importlib.import_module(name)


class _Kind(NamedTuple):
    """How one type travels. ``pack`` makes a list of a value, ``rebuild`` takes its elements."""

    module: str
    name: str
    pack: Callable[[Any], list[Any]]
    rebuild: Callable[..., Any]
    step: Callable[[Any, int], str] = lambda value, index: f"[{index}]"  # element of the list -> words for errors


def _member(value: Any, index: int) -> str:
    return " (a member)"


def _zone_step(value: Any, index: int) -> str:
    return ".tzinfo"


def _pair_step(value: Any, index: int) -> str:
    return f"[{list(value)[index // 2]!r}]" if index % 2 else ".keys()"


# The position in the table is the number on the wire: new ones come last.
_KINDS: Final = (
    _Kind("builtins", "int", _of_int, lambda data: int.from_bytes(data, "little", signed=True)),
    _Kind("builtins", "tuple", _of_items, lambda *items: items),
    _Kind("builtins", "complex", lambda v: [v.real, v.imag], complex),
    _Kind("builtins", "range", lambda v: [v.start, v.stop, v.step], range),
    _Kind("builtins", "slice", lambda v: [v.start, v.stop, v.step], slice),
    _Kind("builtins", "set", _of_items, lambda *items: set(items), _member),
    _Kind("builtins", "frozenset", _of_items, lambda *items: frozenset(items), _member),
    _Kind("datetime", "datetime", _of_datetime, _to_datetime, _zone_step),
    _Kind("datetime", "date", lambda v: [v.year, v.month, v.day], lambda *p: _library("datetime").date(*p)),
    _Kind("datetime", "time", _of_time, _to_time, _zone_step),
    _Kind(
        "datetime",
        "timedelta",
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda *p: _library("datetime").timedelta(*p),
    ),
    _Kind("datetime", "timezone", _of_timezone, lambda *p: _library("datetime").timezone(*p)),
    _Kind("zoneinfo", "ZoneInfo", _of_zone, lambda key: _library("zoneinfo").ZoneInfo(key)),
    _Kind("decimal", "Decimal", lambda v: [str(v)], lambda text: _library("decimal").Decimal(text)),
    _Kind(
        "fractions",
        "Fraction",
        lambda v: [v.numerator, v.denominator],
        lambda *p: _library("fractions").Fraction(*p),
    ),
    _Kind("uuid", "UUID", lambda v: [v.bytes], lambda data: _library("uuid").UUID(bytes=data)),
    _Kind("pathlib", "PosixPath", lambda v: [os.fsencode(v)], lambda b: _library("pathlib").PosixPath(os.fsdecode(b))),
    _Kind(
        "pathlib",
        "PurePosixPath",
        lambda v: [os.fsencode(v)],
        lambda b: _library("pathlib").PurePosixPath(os.fsdecode(b)),
    ),
    _Kind("pathlib", "PureWindowsPath", lambda v: [str(v)], lambda text: _library("pathlib").PureWindowsPath(text)),
    _Kind(
        "collections",
        "OrderedDict",
        _of_pairs,
        lambda *p: _library("collections").OrderedDict(_to_pairs(*p)),
        _pair_step,
    ),
    _Kind("collections", "Counter", _of_pairs, lambda *p: _library("collections").Counter(_to_pairs(*p)), _pair_step),
    _Kind(
        "collections",
        "defaultdict",
        _of_defaultdict,
        _to_defaultdict,
        lambda v, index: _pair_step(v, index - 1),
    ),
    _Kind(
        "collections",
        "deque",
        lambda v: [v.maxlen, *v],
        lambda most, *items: _library("collections").deque(items, most),
        lambda v, index: f"[{index - 1}]",
    ),
)
_NUMBERS: Final = {kind.name: number for number, kind in enumerate(_KINDS)}
_TUPLE: Final = _NUMBERS["tuple"]


def packer_of(cls: type) -> Callable[[Any], tuple[int, list[Any]]] | None:
    """What packs values of that exact type; None if it is none of these types."""
    number = _number_of(cls)
    if number is None:
        return None
    pack = _KINDS[number].pack
    return lambda value: (TAG, [number, *pack(value)])


def rebuild(packed: object) -> Any:
    """The value that was packed. Anything that makes no sense raises."""
    match packed:
        case [int(number), *parts] if 0 <= number < len(_KINDS):
            return _KINDS[number].rebuild(*parts)
    raise DecodeError(f"an extension of tag {TAG} is no value of an ordinary type")


def step(value: object, index: int) -> str | None:
    """Words for an element of what ``value`` was packed as; None if it is of none of these types."""
    number = _number_of(type(value))
    return None if number is None else _KINDS[number].step(value, index - 1)


def _number_of(cls: type) -> int | None:
    if cls is KeptTuple:
        return _TUPLE
    number = _NUMBERS.get(cls.__name__)
    if number is None:
        return None
    kind = _KINDS[number]
    return number if getattr(sys.modules.get(kind.module), kind.name, None) is cls else None
