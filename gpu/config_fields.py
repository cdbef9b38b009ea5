"""Typed access to the raw values of a model's config; every complaint names source and key. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ModelFileError, UnsupportedModelError

# Beyond any model, but small enough that a damaged number cannot make a table of a billion layers.
MAX_COUNT = 1 << 24


class Fields:
    """The values of one file or of a part of it. ``source`` names the file in errors, ``prefix`` stands before keys.

    A key that is missing or null has the caller's default; `ModelFileError` if that is None or the value impossible.
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values = values
        self.source = source
        self._prefix = prefix

    def count(self, key: str, default: int | None = None, limit: int = MAX_COUNT) -> int:
        """A whole number of 1 or more."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            raise self.wrong(key, value, f"a whole number from 1 to {limit}")
        return value

    def window(self, key: str, default: int) -> int:
        """A sliding window in tokens, or 0 for none."""
        value = self.values.get(key, default)
        return 0 if value in (None, 0) and value is not False else self.count(key, default)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(key, value, "a positive number")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A number above 0, or None if the key is missing."""
        return None if self.values.get(key) is None else self.positive(key)

    def softcap(self, key: str, default: float) -> float:
        """A number above 0, or 0 for none, which null means too."""
        return 0.0 if self.values.get(key, default) in (None, 0.0) else self.positive(key, default)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def positives(self, key: str, length: int) -> tuple[float, ...]:
        """A list of ``length`` numbers above 0."""
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) != length:
            raise self.wrong(key, value, f"a list of {length} positive numbers")
        part = Fields(dict(enumerate_text(value)), self.source, f"{self._prefix}{key}.")
        return tuple(part.positive(str(index)) for index in range(length))

    def part(self, key: str) -> Fields:
        """The object under ``key``, empty if there is none."""
        value = self._value(key, {}) if self.values.get(key) is not None else {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        return Fields(value, self.source, f"{self._prefix}{key}.")

    def wrong(self, key: str, value: object, wanted: str) -> ModelFileError:
        """The error to raise: which value is not what it must be."""
        return ModelFileError(
            f"{self.source}: {self._prefix}{key} is {value!r}, not {wanted}; the file is damaged: get it again"
        )

    def unsupported(self, what: str, supported: Iterable[str]) -> UnsupportedModelError:
        """The error to raise: what is asked for, and what is implemented instead."""
        return UnsupportedModelError(
            f"{self.source}: {what} is not supported (supported: {', '.join(supported)}); choose another model"
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value


def enumerate_text(values: list[Any]) -> Iterable[tuple[str, Any]]:
    """Pairs of index, as text, and item."""
    return ((str(index), value) for index, value in enumerate(values))
