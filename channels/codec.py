"""msgpack with registered message types. Encodes for every mailbox; knows no ring and no actor.

A registered dataclass travels as an msgpack extension (its tag) around its fields in order, so a message costs no
field names on the wire and decodes into the same class. Undecodable bytes raise `DecodeError`, never anything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgpack

from .errors import DecodeError, EncodeError

T = TypeVar("T")

_BY_TAG: dict[int, type] = {}
_TAG_AND_FIELDS: dict[type, tuple[int, tuple[str, ...]]] = {}


def message(tag: int) -> Callable[[type[T]], type[T]]:
    """Register a dataclass under an extension tag, 1 to 127, unique in the program.

    ``ValueError`` if the tag is taken by another class; the decorated class is returned unchanged.
    """

    def register(cls: type[T]) -> type[T]:
        if not 1 <= tag <= 127:
            raise ValueError(f"message tag {tag} of {cls.__qualname__} is outside 1..127")
        if not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls.__qualname__} is not a dataclass: put @message above @dataclass")
        taken = _BY_TAG.get(tag)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"message tag {tag} of {cls.__qualname__} is taken by {taken.__qualname__}")
        _BY_TAG[tag] = cls
        _TAG_AND_FIELDS[cls] = (tag, tuple(f.name for f in dataclasses.fields(cls)))
        return cls

    return register


class Codec:
    """Encodes and decodes values: the msgpack types, tuples (arrive as lists), registered messages.

    ``extra`` maps a class to (tag, pack, unpack) for types whose decoding needs context, such as actor references;
    subclasses of the class are packed the same way.
    """

    def __init__(
        self, extra: Mapping[type, tuple[int, Callable[[Any], bytes], Callable[[bytes], Any]]] | None = None
    ) -> None:
        self._extra = dict(extra or {})
        self._unpack_extra = {tag: unpack for tag, _, unpack in self._extra.values()}
        self._packer = msgpack.Packer(default=self._pack_other, use_bin_type=True, strict_types=False)

    def encode(self, value: object) -> bytes:
        """Bytes of ``value``; `EncodeError` names the type that cannot travel."""
        try:
            data: bytes = self._packer.pack(value)
        except EncodeError:
            self._packer.reset()
            raise
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            self._packer.reset()
            raise EncodeError(f"cannot encode {type(value).__name__}: {error}") from error
        return data

    def decode(self, data: bytes | memoryview) -> Any:
        """The value of ``data``; `DecodeError` on anything malformed."""
        try:
            return msgpack.unpackb(data, ext_hook=self._unpack_other, strict_map_key=False, raw=False)
        except DecodeError:
            raise
        except Exception as error:  # msgpack raises a dozen unrelated types on bad bytes
            raise DecodeError(f"cannot decode a message of {len(data)} bytes: {error}") from error

    def _pack_other(self, value: object) -> msgpack.ExtType:
        registered = _TAG_AND_FIELDS.get(type(value))
        if registered is not None:
            tag, fields = registered
            return msgpack.ExtType(tag, Codec.encode(self._nested(), [getattr(value, name) for name in fields]))
        for cls, (tag, pack, _) in self._extra.items():
            if isinstance(value, cls):
                return msgpack.ExtType(tag, pack(value))
        raise EncodeError(
            f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot travel in a message: "
            "register it with ringcast.channels.message, or send plain data"
        )

    def _nested(self) -> Codec:
        """A codec for the fields of a message: a Packer cannot be re-entered while it packs."""
        return Codec(self._extra)

    def _unpack_other(self, tag: int, data: bytes) -> Any:
        cls = _BY_TAG.get(tag)
        if cls is not None:
            fields = self.decode(data)
            try:
                return cls(*fields)
            except TypeError as error:
                raise DecodeError(f"fields of {cls.__qualname__} do not fit: {error}") from error
        unpack = self._unpack_extra.get(tag)
        if unpack is None:
            raise DecodeError(f"unknown message tag {tag}: is the module that registers it imported?")
        return unpack(data)
