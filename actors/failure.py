"""Exceptions of user code in words: type name, text and traceback, for callers, supervisors and logs.

Describing one must end well whatever the exception is, for a call ends only when its failure was described: user code
(``__str__``, notes) runs under protection, attributes are read past what a class has overridden, and sizes are bounded.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple

MAX_TEXT: Final = 64 << 10  # characters of an exception's text,
MAX_TRACEBACK: Final = 256 << 10  # of the whole traceback, causes included
MAX_NOTES: Final = 20
FIRST_FRAMES, LAST_FRAMES = 20, 180  # of a deeper stack these are shown
MAX_GROUP_WIDTH, MAX_GROUP_DEPTH = 15, 10

CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Failure(NamedTuple):
    """An exception in words. All three texts are clean Unicode and can be encoded."""

    type_name: str
    text: str
    traceback: str

    @property
    def summary(self) -> str:
        """As the last line of a traceback."""
        return f"{self.type_name}: {self.text}" if self.text else self.type_name


def describe(error: BaseException) -> Failure:
    """The exception in words. Never raises; bounded in size."""
    return Failure(type_name_of(error), _text_of(error), _with_causes(error, 0))


def summary_of(error: BaseException) -> str:
    """Its type and text only."""
    return Failure(type_name_of(error), _text_of(error), "").summary


def type_name_of(error: BaseException | None) -> str:
    """The name of its class; "" for None."""
    return "" if error is None else _clean(_slot(type, "__name__", type(error)), MAX_TEXT)


def _slot(cls: type, name: str, of: Any) -> Any:
    """What a built-in class keeps under that name, whatever a subclass has put in front of it."""
    return cls.__dict__[name].__get__(of)


def _clean(text: Any, limit: int) -> str:
    """So much of a text, as a plain string that can be encoded."""
    if not isinstance(text, str):
        return "<unknown>"
    length = str.__len__(text)
    cut = str.__getitem__(text, slice(limit))
    cut = str.encode(cut, "utf-8", "backslashreplace").decode()
    return cut if length <= limit else f"{cut}... ({length:,} characters in all)"


def _protected(make: Callable[[], Any], limit: int) -> str:
    """A text that user code makes."""
    try:
        return _clean(make(), limit)
    except BaseException as second:  # a SystemExit there must not end the process instead of the call
        return f"<the text cannot be had: {type_name_of(second)}>"


def _text_of(error: BaseException) -> str:
    return _protected(lambda: str(error), MAX_TEXT)


def _with_causes(error: BaseException, depth: int) -> str:
    """The exception behind those that led to it, as far as there is room: the outermost is never left out."""
    parts: list[str] = []
    size = 0
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None:
        seen.add(id(current))
        part = _alone(current, depth)
        if size and size + len(part) > MAX_TRACEBACK:
            parts.append("(earlier exceptions are left out)\n")
            break
        parts.append(part)
        size += len(part)
        cause, context = _slot(BaseException, "__cause__", current), _slot(BaseException, "__context__", current)
        is_suppressed = _slot(BaseException, "__suppress_context__", current)
        if cause is not None and id(cause) not in seen:
            parts.append(CAUSE)
            current = cause
        elif cause is None and context is not None and not is_suppressed and id(context) not in seen:
            parts.append(CONTEXT)
            current = context
        else:
            current = None
    return "".join(reversed(parts))


def _alone(error: BaseException, depth: int) -> str:
    """One exception: its stack, then its type and text, its notes, and the members of a group."""
    lines = _stack(_slot(BaseException, "__traceback__", error))
    if issubclass(type(error), SyntaxError):
        lines += _place_in_source(error)
    text = _text_of(error)
    title = _title(type(error))
    lines.append(f"{title}: {text}\n" if text else f"{title}\n")
    lines += _notes(error)
    whole = "".join(lines)
    if len(whole) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        whole = f"{whole[:half]}\n... ({len(whole):,} characters in all)\n{whole[-half:]}"
    if issubclass(type(error), BaseExceptionGroup):
        whole += _members(error, depth, MAX_TRACEBACK - len(whole))
    return whole


def _title(cls: type[BaseException]) -> str:
    module = _protected(lambda: _slot(type, "__module__", cls), 200)
    name = _clean(_slot(type, "__qualname__", cls), 1000)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def _stack(trace: TracebackType | None) -> list[str]:
    if trace is None:
        return []
    depth, last = 1, trace.tb_next
    while last is not None:
        depth, last = depth + 1, last.tb_next
    lines = ["Traceback (most recent call last):\n"]
    if depth <= FIRST_FRAMES + LAST_FRAMES:
        return lines + _frames(trace, FIRST_FRAMES + LAST_FRAMES)
    lines += _frames(trace, FIRST_FRAMES)
    lines.append(f"  ... ({depth - FIRST_FRAMES - LAST_FRAMES} frames are left out)\n")
    return lines + _frames(trace, -LAST_FRAMES)


def _frames(trace: TracebackType, limit: int) -> list[str]:
    """The first ``limit`` frames, or the last ones if it is negative."""
    stand_in = Exception()  # the exception itself would be formatted by its own code
    try:
        lines = traceback.TracebackException(Exception, stand_in, trace, limit=limit).stack.format()
        return [_clean(line, 4000) for line in lines]
    except BaseException as second:  # the loader of a module, asked for a line of its source
        return [f"  (the stack cannot be shown: {type_name_of(second)})\n"]


def _place_in_source(error: BaseException) -> list[str]:
    """Where a SyntaxError says that it is, if what it holds can be a place."""
    filename, line, source = (_slot(SyntaxError, name, error) for name in ("filename", "lineno", "text"))
    if type(filename) is not str or type(line) is not int:
        return []
    lines = [f'  File "{_clean(filename, 1000)}", line {line}\n']
    if type(source) is str:
        lines.append(f"    {_clean(source, 1000).strip()}\n")
    return lines


def _notes(error: BaseException) -> list[str]:
    """What `add_note` has added."""
    try:
        notes = getattr(error, "__notes__", None)
    except BaseException as second:
        return [f"<its notes cannot be had: {type_name_of(second)}>\n"]
    if notes is None:
        return []
    if type(notes) is not list:
        return [f"{_protected(lambda: repr(notes), MAX_TEXT)}\n"]
    lines = [f"{_protected(lambda note=note: str(note), MAX_TEXT)}\n" for note in notes[:MAX_NOTES]]  # type: ignore[misc]
    return lines if len(notes) <= MAX_NOTES else [*lines, f"... ({len(notes)} notes in all)\n"]


def _members(group: BaseException, depth: int, room: int) -> str:
    """The members of an exception group, indented."""
    members = _slot(BaseExceptionGroup, "exceptions", group)
    if depth == MAX_GROUP_DEPTH:
        return f"  | ... ({len(members)} exceptions below)\n"
    text = ""
    for number, member in enumerate(members, start=1):
        if number > MAX_GROUP_WIDTH or len(text) > room:
            return f"{text}  +---- and {len(members) - number + 1} more\n"
        text += f"  +---- {number} of {len(members)}\n"
        text += "".join(f"  | {line}\n" for line in _with_causes(member, depth + 1).splitlines())
    return text
