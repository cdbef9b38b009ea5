"""What to say of a value whose type cannot travel: what it is, why it cannot, and what to send instead."""

from __future__ import annotations

from . import values

_PLAIN = (int, float, str, bytes, bytearray, list, dict)
_CODE = (
    "function",
    "method",
    "builtin_function_or_method",
    "module",
    "type",
    "generator",
    "coroutine",
    "async_generator",
)


def refusal_of(cls: type) -> str:
    """The text of the `EncodeError`."""
    what = f"a value of type {_name(cls)} cannot travel in a message"
    base = next((base for base in cls.__mro__[1:] if base in _PLAIN or values.packer_of(base) is not None), None)
    if base is not None:
        return f"{what}: it would arrive as a plain {_name(base)}; convert it to one, or put its parts into a dataclass"
    if issubclass(cls, BaseException):
        return f"{what}: send its text, or raise it: an exception that a handler raises reaches the caller"
    if cls.__name__ in _CODE:
        return f"{what}: code and running things stay in their process; send data"
    return f"{what}: make its class a dataclass, or send plain data (docs/messages.md lists what travels)"


def _name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
