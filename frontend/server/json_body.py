"""Bodies of requests: bytes to JSON, on the event loop, so never more than takes a moment. `JsonRoute` is the app's.

The decoder holds the interpreter's lock, on whatever thread it runs: what would keep it busy is refused before. Errors
say what is wrong and where, and hold on to nothing of the body.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from ..parameter_checks import HALF_PAIR
from ..threads import in_thread
from .errors import ErrorReply, invalid

MOST_VALUES = 1 << 18  # texts and numbers; a prompt of ids has one for each
MOST_TEXTS = 1 << 16  # keys among them: each is an object to be made
MOST_CONTAINERS = 1 << 14  # lists and objects
MOST_TEXT_BYTES = 12 << 20  # of one text; a million characters at least, however they are escaped
_SLICE = 1 << 16  # bytes that are looked at in one go
# A backslash, or the beginning of a \\uXX, at the end, that no backslash before it escapes.
_OPEN_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]?)?)\Z")
_MAY_BE_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class BodyRefused(HTTPException):
    """The client's fault: its body is no JSON, or too much of it."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.status, reply.message)
        self.reply = reply


class JsonRequest(Request):
    """A request whose body is read by the rules of this module."""

    async def body(self) -> bytes:
        """The body. `BodyRefused` if it is too much; then it has been read to its end, and nothing of it kept."""
        if not hasattr(self, "_body"):
            self._shape = shape = Shape()
            pieces: list[bytes] = []
            async for piece in self.stream():
                for at in range(0, len(piece), _SLICE):
                    if at:
                        await asyncio.sleep(0)
                    shape.feed(piece[at : at + _SLICE])
                pieces.append(piece)
                if shape.is_too_much():
                    pieces.clear()
            if shape.is_too_much():
                raise BodyRefused(
                    invalid(
                        f"the body has more than {MOST_VALUES} values, {MOST_TEXTS} texts or {MOST_CONTAINERS} lists "
                        f"and objects, or a text of more than {MOST_TEXT_BYTES} bytes: send several requests, or a "
                        "text instead of ids",
                        None,
                        "body_too_complex",
                    )
                )
            self._body = b"".join(pieces)
        return self._body

    async def json(self) -> Any:
        """The body's value. `BodyRefused` says why not."""
        body = await self.body()
        try:
            value = json.loads(body.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            problem = _problem(error)
        else:
            path = None
            if self._shape.may_have_half_pairs:
                # Emoji look like it, too. On a thread, where Python code holds nobody up for long.
                path = _half_pair(value) if len(body) <= _SLICE else await in_thread(_half_pair, value)
            if path is not None:
                name = ".".join(map(str, path)) or "the body"
                text = f"{name}: the text holds half of a surrogate pair: it is not valid Unicode"
                raise BodyRefused(invalid(text, str(path[0]) if path else None, "invalid_value"))
            return value
        raise BodyRefused(invalid(problem, None, "invalid_json"))


class JsonRoute(APIRoute):
    """A route whose requests are `JsonRequest`s."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handler


class Shape:
    """Measures a JSON text, piece by piece as it comes in, without decoding it."""

    def __init__(self) -> None:
        self.num_values = 0
        self.num_texts = 0
        self.num_containers = 0
        self.longest_text_bytes = 0
        self.may_have_half_pairs = False  # there are escapes like those of surrogates
        self._is_in_text = False
        self._text_bytes = 0  # of the text that goes on in the next piece
        self._held = b""  # the beginning of an escape, whose rest is in the next piece

    def is_too_much(self) -> bool:
        """Whether decoding it would take long."""
        return (
            self.num_values > MOST_VALUES
            or self.num_texts > MOST_TEXTS
            or self.num_containers > MOST_CONTAINERS
            or max(self.longest_text_bytes, self._text_bytes) > MOST_TEXT_BYTES
        )

    def feed(self, piece: bytes) -> None:
        """The next bytes."""
        piece = self._held + piece
        self._held = b""
        if b"\\" in piece:
            if cut := _OPEN_ESCAPE.search(piece):
                piece, self._held = piece[: cut.start(1)], cut[1]
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            self.may_have_half_pairs = self.may_have_half_pairs or _MAY_BE_HALF_PAIR.search(piece) is not None
        parts = piece.split(b'"')
        first = 1 if self._is_in_text else 0
        outside = b"".join(parts[first::2])
        self.num_texts += (len(parts) - first) // 2  # that begin here
        if self._is_in_text:
            self._text_bytes += len(parts[0])
        if len(parts) > first:
            inside = [self._text_bytes, *map(len, parts[1 - first :: 2])] if len(parts) > 1 else [0]
            self.longest_text_bytes = max(self.longest_text_bytes, *inside)
        self._is_in_text ^= len(parts) % 2 == 0
        if len(parts) > 1:
            self._text_bytes = len(parts[-1]) if self._is_in_text else 0
        containers = outside.count(b"[") + outside.count(b"{")
        self.num_containers += containers
        self.num_values += outside.count(b",") + outside.count(b":") + containers


def _problem(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return f"the body is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; send JSON in UTF-8"
    if isinstance(error, RecursionError):
        return "the body's lists or objects are nested too deeply"
    return "the body holds a number with too many digits"


def _half_pair(value: Any) -> list[str | int] | None:
    """Where a text holds half of a surrogate pair."""
    if isinstance(value, str):
        return [] if HALF_PAIR.search(value) else None
    if isinstance(value, dict):
        for key, item in value.items():
            if HALF_PAIR.search(key):
                return []
            if not isinstance(item, int) and (path := _half_pair(item)) is not None:
                return [key, *path]
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, int) and (path := _half_pair(item)) is not None:
                return [index, *path]
    return None
