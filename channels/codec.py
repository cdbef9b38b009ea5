"""msgpack with registered message types. Encodes for every mailbox; knows no ring and no actor.

A registered dataclass travels as a msgpack extension: its tag around the list of its fields, so it costs no field
names on the wire and decodes into the same class. Bytes that are no message raise `DecodeError`, never anything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgpack

from .errors import DecodeError, EncodeError

T = TypeVar("T")

# Tags 1 to 15 are for references and other types of the actor runtime that need context to decode (`extra` below),
# 16 to 31 for its own messages, 32 to 63 for the engine's; the others are free.
MAX_TAG: Final = 127
MAX_DEPTH: Final = 64  # messages within messages

_Fields = Callable[[Any], tuple[Any, ...]]
_BY_TAG: dict[int, type] = {}
_TAG_AND_FIELDS: dict[type, tuple[int, _Fields]] = {}


def message(tag: int) -> Callable[[type[T]], type[T]]:
    """Register a dataclass under an extension tag, 1 to 127, unique in the program.

    Its fields travel by position, in the order of their declaration: both ends need the same declaration, though a
    sender may lack last fields that have defaults. ``ValueError`` if the tag is taken by another class, ``TypeError``
    if the class cannot be rebuilt from its fields; the class is returned unchanged.
    """

    def register(cls: type[T]) -> type[T]:
        if not 1 <= tag <= MAX_TAG:
            raise ValueError(f"message tag {tag} of {cls.__qualname__} is outside 1..{MAX_TAG}")
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls.__qualname__} is not a dataclass: put @message above @dataclass")
        for field in dataclasses.fields(cls):
            if not field.init or field.kw_only:
                raise TypeError(f"field {field.name} of {cls.__qualname__} cannot be given by position")
        taken = _BY_TAG.get(tag)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"message tag {tag} of {cls.__qualname__} is taken by {taken.__qualname__}")
        _BY_TAG[tag] = cls
        _TAG_AND_FIELDS[cls] = (tag, _fields_of([field.name for field in dataclasses.fields(cls)]))
        return cls

    return register


def _fields_of(names: list[str]) -> _Fields:
    """A function from an instance to the tuple of its fields."""
    if not names:
        return lambda value: ()
    if len(names) == 1:
        get = attrgetter(names[0])
        return lambda value: (get(value),)
    return attrgetter(*names)


class Codec:
    """Encodes and decodes values: the msgpack types, tuples (arrive as lists), registered messages.

    ``extra`` maps a class to (tag, pack, unpack) for types whose decoding needs context, such as actor references;
    subclasses of the class are packed the same way. One thread uses a codec at a time.
    """

    def __init__(
        self, extra: Mapping[type, tuple[int, Callable[[Any], bytes], Callable[[bytes], Any]]] | None = None
    ) -> None:
        self._extra = dict(extra or {})
        self._unpack_extra = {tag: unpack for tag, _, unpack in self._extra.values()}
        self._packers: list[msgpack.Packer] = []  # one per depth: a packer cannot be re-entered while it packs
        self._pack_depth = 0
        self._unpack_depth = 0

    def encode(self, value: object) -> bytes:
        """Bytes of ``value``; `EncodeError` names the type that cannot travel."""
        try:
            return self._pack(value)
        except EncodeError:
            raise
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodeError(f"cannot encode a {_name(type(value))}: {error}") from error

    def decode(self, data: bytes | memoryview) -> Any:
        """The value of ``data``; `DecodeError` on anything malformed."""
        try:
            return self._unpack(data)
        except DecodeError:
            raise
        except Exception as error:  # msgpack, and the constructors of messages, raise a dozen unrelated types
            raise DecodeError(f"cannot decode a message of {len(data)} bytes: {_told(error)}") from error

    def _pack(self, value: object) -> bytes:
        depth = self._pack_depth
        if depth == len(self._packers):
            if depth == MAX_DEPTH:
                raise EncodeError(f"messages are nested deeper than {MAX_DEPTH}")
            self._packers.append(msgpack.Packer(default=self._pack_other, use_bin_type=True))
        packer = self._packers[depth]
        self._pack_depth = depth + 1
        try:
            data: bytes = packer.pack(value)
        except BaseException:
            packer.reset()
            raise
        finally:
            self._pack_depth = depth
        return data

    def _pack_other(self, value: object) -> msgpack.ExtType:
        registered = _TAG_AND_FIELDS.get(type(value))
        if registered is not None:
            tag, fields = registered
            try:
                return msgpack.ExtType(tag, self._pack(fields(value)))
            except EncodeError:
                raise
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                raise EncodeError(f"cannot encode the fields of a {_name(type(value))}: {error}") from error
        for cls, (tag, pack, _) in self._extra.items():
            if isinstance(value, cls):
                return msgpack.ExtType(tag, pack(value))
        if isinstance(value, int):
            raise EncodeError(f"an int of {value.bit_length()} bits cannot travel: 64 bits are the limit")
        raise EncodeError(
            f"a value of type {_name(type(value))} cannot travel in a message: "
            "register it with ringcast.channels.message, or send plain data"
        )

    def _unpack(self, data: bytes | memoryview) -> Any:
        if self._unpack_depth == MAX_DEPTH:
            raise DecodeError(f"messages are nested deeper than {MAX_DEPTH}")
        self._unpack_depth += 1
        try:
            return msgpack.unpackb(data, ext_hook=self._unpack_other, strict_map_key=False)
        finally:
            self._unpack_depth -= 1

    def _unpack_other(self, tag: int, data: bytes) -> Any:
        cls = _BY_TAG.get(tag)
        if cls is not None:
            fields = self._unpack(data)
            if not isinstance(fields, list):
                raise DecodeError(f"the fields of a {_name(cls)} came as a {_name(type(fields))}, not as a list")
            try:
                return cls(*fields)
            except Exception as error:  # too few, too many, or refused by the class's own checks
                raise DecodeError(f"the fields of a {_name(cls)} do not fit: {_told(error)}") from error
        unpack = self._unpack_extra.get(tag)
        if unpack is None:
            raise DecodeError(f"unknown message tag {tag}: is the module that registers it imported?")
        return unpack(data)


def _name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _told(error: Exception) -> str:
    """An exception in words; many of msgpack's have no message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
