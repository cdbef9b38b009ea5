"""Checks of single values, for `SamplingParams` and admission. `InvalidRequest` names field, value and range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from .errors import InvalidRequest

MAX_TOKEN_ID = 2**31 - 1
HALF_PAIR = re.compile(r"[\ud800-\udfff]")
MAX_TOKEN_IDS = 1 << 20  # in a list; more than any vocabulary has


def number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Check that ``value`` is a finite number from ``low`` (or above it) to ``high``."""
    bracket = "(" if above else "["
    if not _is_number(value) or not low <= value <= high or (above and value == low):  # type: ignore[operator]
        raise InvalidRequest(f"{name} is {value!r}: it must be a number in {bracket}{low:g}, {high:g}]", name)


def integer(name: str, value: object, low: int, high: int) -> None:
    """Check that ``value`` is an integer from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name} is {value!r}: it must be an integer in [{low}, {high}]", name)


def boolean(name: str, value: object) -> None:
    """Check that ``value`` is True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {value!r}: it must be true or false", name)


def strings(name: str, value: object, *, at_most: int, max_chars: int) -> tuple[str, ...]:
    """One string or several, none of them empty or longer than ``max_chars``, without repetitions."""
    if value is None:
        return ()
    items = (value,) if isinstance(value, str) else value
    if isinstance(items, list | tuple) and len(items) > at_most:
        raise InvalidRequest(f"{name} holds {len(items)} strings: at most {at_most} are allowed", name)
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise InvalidRequest(f"{name} is {value!r}: it must be a string or a list of strings", name)
    if not all(items):
        raise InvalidRequest(f"{name} holds an empty string: each needs at least one character", name)
    if (longest := max(map(len, items), default=0)) > max_chars:
        raise InvalidRequest(f"{name} holds a string of {longest} characters: at most {max_chars} are allowed", name)
    for item in items:
        unicode_text(name, item)
    return tuple(dict.fromkeys(items))


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """A list of token ids, without repetitions."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} is {value!r}: it must be a list of token ids", name)
    if len(value) > MAX_TOKEN_IDS:
        raise InvalidRequest(f"{name} holds {len(value)} token ids: at most {MAX_TOKEN_IDS} are allowed", name)
    if not all(type(token_id) is int and 0 <= token_id <= MAX_TOKEN_ID for token_id in value):
        for index, token_id in enumerate(value):
            integer(f"{name}[{index}]", token_id, 0, MAX_TOKEN_ID)
    return tuple(dict.fromkeys(value))


def token_biases(name: str, value: object, limit: float) -> dict[int, float] | None:
    """Token id -> bias in [-limit, limit]. Ids may be decimal strings: JSON's objects have no other keys."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} is {value!r}: it must map token ids to numbers", name)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token_id = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 else key
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id <= MAX_TOKEN_ID:
            raise InvalidRequest(f"{name} has the key {key!r}: keys are token ids in [0, {MAX_TOKEN_ID}]", name)
        number(f"{name}[{token_id}]", bias, -limit, limit)
        biases[token_id] = float(bias)
    return biases or None


def unicode_text(name: str, text: str) -> None:
    """Check that a text has a UTF-8 form: that it holds no half of a surrogate pair."""
    if not text.isascii() and HALF_PAIR.search(text):
        raise InvalidRequest(f"{name}: the text holds half of a surrogate pair: it is not valid Unicode", name)


def below(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Check that every id is one of the model's."""
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise InvalidRequest(f"{name} holds the token id {largest}: ids must be below {vocab_size}", name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
