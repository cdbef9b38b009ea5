"""The key-value part of a GGUF header. Owned by `gguf_file`; also read by the frontend for tokenizer and template.

Values are found in one pass but decoded only when asked for: a vocabulary of 49,000 strings costs 15 ms to step over.
Every read is checked against the end of the file. Imports neither numpy nor torch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from mmap import mmap
from typing import Any, NamedTuple

from .errors import ModelFileError

_STRING, _ARRAY, _BOOL = 8, 9, 7
# GGUF value type -> struct letter (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)
_LETTER = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_MAX_ARRAY_DEPTH = 4


class _Value(NamedTuple):
    offset: int
    type: int


class Cursor:
    """A position in the header that refuses to move past the end of the file. ``name`` stands in the errors."""

    def __init__(self, data: mmap, name: str) -> None:
        self.data = data
        self.name = name
        self.offset = 0
        self.size = len(data)

    def fail(self, what: str) -> ModelFileError:
        """The error to raise: what is wrong in this file, and the remedy."""
        return ModelFileError(f"{self.name}: not a usable GGUF file: {what}; download the file again")

    def skip(self, size: int) -> int:
        """Step over ``size`` bytes and return where they begin."""
        start = self.offset
        if size > self.size - start:
            raise self.fail(f"the header ends at byte {self.size}, in the middle of a value (truncated?)")
        self.offset = start + size
        return start

    def number(self, letter: str) -> Any:
        """One little-endian number of a struct type."""
        layout = "<" + letter
        return struct.unpack_from(layout, self.data, self.skip(struct.calcsize(layout)))[0]

    def text(self) -> str:
        """A string: 64-bit length, then UTF-8."""
        length = self.number("Q")
        start = self.skip(length)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"the string at byte {start} is not UTF-8") from error


class Metadata(Mapping[str, Any]):
    """Keys and values of a GGUF file. Lists are decoded at their first use; `ModelFileError` on damaged values."""

    def __init__(self, cursor: Cursor, count: int) -> None:
        """Step over ``count`` pairs, leaving ``cursor`` behind the last."""
        self._cursor = cursor
        self._values: dict[str, _Value] = {}
        self._decoded: dict[str, Any] = {}
        for _ in range(count):
            key = cursor.text()
            if key in self._values:
                raise cursor.fail(f"the key {key!r} occurs twice")
            value_type = cursor.number("I")
            self._values[key] = _Value(cursor.offset, value_type)
            self._step_over(value_type, 0)

    def __getitem__(self, key: str) -> Any:
        if key not in self._decoded:
            value = self._values[key]
            cursor = Cursor(self._cursor.data, self._cursor.name)
            cursor.offset = value.offset
            self._decoded[key] = _decode(cursor, value.type)
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _step_over(self, value_type: int, depth: int) -> None:
        cursor = self._cursor
        if value_type == _STRING:
            cursor.skip(cursor.number("Q"))
        elif value_type == _ARRAY:
            self._step_over_array(depth)
        elif value_type in _LETTER:
            cursor.skip(struct.calcsize("<" + _LETTER[value_type]))
        else:
            raise cursor.fail(f"unknown value type {value_type} before byte {cursor.offset}")

    def _step_over_array(self, depth: int) -> None:
        cursor = self._cursor
        item_type, count = cursor.number("I"), cursor.number("Q")
        if item_type in _LETTER:
            cursor.skip(count * struct.calcsize("<" + _LETTER[item_type]))
        elif item_type == _STRING:
            _step_over_strings(cursor, count)
        elif item_type == _ARRAY and depth < _MAX_ARRAY_DEPTH:
            for _ in range(count):
                self._step_over_array(depth + 1)
        else:
            raise cursor.fail(f"unknown or too deeply nested item type {item_type} before byte {cursor.offset}")


def _step_over_strings(cursor: Cursor, count: int) -> None:
    """The hot loop of opening a file (98,000 strings in SmolLM2's), so it is written flat."""
    data, offset, last = cursor.data, cursor.offset, cursor.size - 8
    unpack = struct.Struct("<Q").unpack_from
    if count * 8 > cursor.size - offset:
        raise cursor.fail(f"an array at byte {offset} claims {count} strings, more than the file can hold (truncated?)")
    for _ in range(count):
        if offset > last:
            raise cursor.fail("an array of strings runs past the end of the file (truncated?)")
        offset += 8 + unpack(data, offset)[0]
    cursor.skip(offset - cursor.offset)


def _decode(cursor: Cursor, value_type: int) -> Any:
    if value_type == _STRING:
        return cursor.text()
    if value_type == _BOOL:
        return bool(cursor.number("B"))
    if value_type != _ARRAY:
        return cursor.number(_LETTER[value_type])
    item_type, count = cursor.number("I"), cursor.number("Q")
    if item_type in (_STRING, _ARRAY):
        return [_decode(cursor, item_type) for _ in range(count)]
    layout = f"<{count}{_LETTER[item_type]}"
    numbers = struct.unpack_from(layout, cursor.data, cursor.skip(struct.calcsize(layout)))
    return [bool(number) for number in numbers] if item_type == _BOOL else list(numbers)
