"""Bodies of requests: bytes to JSON, on the event loop, so never more than takes a moment. `JsonRoute` is the app's.

The decoder holds the interpreter's lock, on whatever thread it runs: what would keep it busy is refused before. Errors
say what is wrong and where, and hold on to nothing of the body.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from ..parameter_checks import HALF_PAIR
from .errors import ErrorReply, invalid

MOST_VALUES = 1 << 18  # texts and numbers; a prompt of ids has one for each
MOST_CONTAINERS = 1 << 14  # lists and objects
_PIECE = 1 << 16
_TURN = 1 << 20  # bytes that are looked at before the loop has a turn
_MAY_BE_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class BodyRefused(HTTPException):
    """The client's fault: its body is no JSON, or too much of it."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.status, reply.message)
        self.reply = reply


class JsonRequest(Request):
    """A request whose body is read by the rules of this module."""

    async def json(self) -> Any:
        """The body. `BodyRefused` says why not."""
        body = await self.body()
        shape = Shape()
        for at in range(0, len(body), _PIECE):
            shape.feed(body[at : at + _PIECE])
            if at % _TURN == 0 and at:
                await asyncio.sleep(0)
        if shape.num_values > MOST_VALUES or shape.num_containers > MOST_CONTAINERS:
            raise BodyRefused(
                invalid(
                    f"the body has more than {MOST_VALUES} values or {MOST_CONTAINERS} lists and objects: send several "
                    "requests, or texts instead of token ids",
                    None,
                    "body_too_complex",
                )
            )
        try:
            value = json.loads(body.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            problem = _problem(error)
        else:
            if _MAY_BE_HALF_PAIR.search(body) and (path := next(_half_pairs(value, []), None)) is not None:
                name = ".".join(map(str, path)) or "the body"
                text = f"{name}: the text holds half of a surrogate pair: it is no Unicode text"
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
    """Counts a JSON text's values and containers, piece by piece, without decoding it."""

    def __init__(self) -> None:
        self.num_values = 0
        self.num_containers = 0
        self._is_in_text = False
        self._held = b""  # a backslash whose other half is in the next piece

    def feed(self, piece: bytes) -> None:
        """The next bytes."""
        piece = self._held + piece
        self._held = b""
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece, self._held = piece[:-1], b"\\"
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[1 if self._is_in_text else 0 :: 2])
        self._is_in_text ^= len(parts) % 2 == 0
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


def _half_pairs(value: Any, path: list[str | int]) -> Iterator[list[str | int]]:
    """Where texts hold half of a surrogate pair."""
    if isinstance(value, str):
        if HALF_PAIR.search(value):
            yield path
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _half_pairs(item, [*path, index])
    elif isinstance(value, dict):
        for key, item in value.items():
            if HALF_PAIR.search(key):
                yield path
            yield from _half_pairs(item, [*path, key])
