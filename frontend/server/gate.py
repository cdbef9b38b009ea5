"""`Gate`: the ASGI middleware that every request passes: who may come in, how large, how many, and until when.

It answers refused requests itself, in OpenAI's shape, gives every request an id and a deadline, and carries its W3C
trace on. It reads no bodies and knows no endpoints. Plain ASGI: a chunk of a stream costs one more function call.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import ringcast.actors as rt

from . import request_context
from .errors import ErrorReply, invalid
from .settings import ServerSettings
from .traffic import Traffic
from .ui import OPEN_PATHS as UI_FILES

OPEN_PATHS = ("/health", "/health/ready", "/health/live", "/metrics", *UI_FILES)
_DRAIN_RETRY_S = 5  # until a successor, or another server, may be there
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")

log = logging.getLogger("ringcast.server.access")


class Gate:
    """``queue_time_s`` tells what requests have waited of late before they ran: the basis of Retry-After."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, traffic: Traffic, queue_time_s: Callable[[], float]
    ) -> None:
        self._app = app
        self._settings = settings
        self._traffic = traffic
        self._queue_time_s = queue_time_s
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        status, began_s = 0, time.monotonic()

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            return send(message)

        try:
            await self._pass(scope, headers, receive, send_with_id)
        finally:
            if log.isEnabledFor(logging.INFO):
                spent_s = time.monotonic() - began_s
                trace = headers.get("traceparent", "-")
                line = "%s %s %d %.3f s, request id %s, trace %s"
                log.info(line, scope["method"], _shown(scope["path"]), status, spent_s, request_id, _shown(trace))

    async def _pass(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        is_work = scope["method"] == "POST"
        refusal = self._refusal(scope, headers, is_work)
        if isinstance(timeout_s := self._timeout_s(headers), ErrorReply):
            refusal = refusal or (timeout_s, {})
        if refusal is not None:
            reply, more = refusal
            self._traffic.num_refused[reply.status] += 1
            await JSONResponse(reply.body(), reply.status, more)(scope, receive, send)
            return
        if not is_work:
            await self._app(scope, receive, send)
            return
        assert not isinstance(timeout_s, ErrorReply)
        receive = _bounded(receive, self._settings)
        self._traffic.enter()
        token = None
        if timeout_s is not None:
            token = request_context.deadline.set(asyncio.get_running_loop().time() + timeout_s)
        try:
            with _trace(headers):
                await self._app(scope, receive, send)
        finally:
            self._traffic.leave()
            if token is not None:
                request_context.deadline.reset(token)

    def _refusal(self, scope: Scope, headers: Headers, is_work: bool) -> tuple[ErrorReply, dict[str, str]] | None:
        """Why the request is not let in, with headers for the answer; None if it is."""
        settings, traffic = self._settings, self._traffic
        if self._keys and scope["path"] not in OPEN_PATHS and not self._knows(headers.get("authorization", "")):
            text = "this server needs an API key: send it as 'Authorization: Bearer KEY'"
            reply = ErrorReply(401, text, "invalid_request_error", None, "invalid_api_key")
            return reply, {"www-authenticate": "Bearer"}
        if not is_work:
            return None
        if traffic.is_draining:
            text = "the server is stopping and takes no new requests: ask another one, or this one again later"
            reply = ErrorReply(503, text, "server_error", None, "server_stopping")
            return reply, {"retry-after": str(_DRAIN_RETRY_S), "connection": "close"}
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            text = f"the body has the content encoding {encoding!r}: send it as it is, without Content-Encoding"
            reply = ErrorReply(415, text, "invalid_request_error", None, "unsupported_encoding")
            return reply, {"accept-encoding": "identity", "connection": "close"}
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > settings.max_body_bytes:
            return _too_large(settings.max_body_bytes), {"connection": "close"}
        most = settings.max_concurrent_requests
        if most is not None and traffic.in_flight >= most:
            text = f"the server answers {traffic.in_flight} requests already, and {most} is its limit: try again later"
            reply = ErrorReply(429, text, "rate_limit_error", None, "too_many_requests")
            return reply, {"retry-after": str(max(1, math.ceil(self._queue_time_s())))}
        return None

    def _knows(self, authorization: str) -> bool:
        kind, _, key = authorization.partition(" ")
        given = key.strip().encode("utf-8", "surrogateescape")
        # Every key is compared, in constant time: how long it takes tells nothing.
        fits = [hmac.compare_digest(given, known) for known in self._keys]
        return kind.lower() == "bearer" and any(fits)

    def _timeout_s(self, headers: Headers) -> float | ErrorReply | None:
        """The server's deadline or the client's, whichever is earlier."""
        most, asked = self._settings.request_timeout_s, headers.get("x-request-timeout")
        if asked is None:
            return most
        try:
            seconds = float(asked)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            return invalid(
                f"the header X-Request-Timeout is {asked!r}: give seconds, more than 0", None, "invalid_value"
            )
        return seconds if most is None else min(seconds, most)


def _shown(text: str) -> str:
    """For a log: what could forge a line, or steer a terminal, is escaped."""
    return text if text.isascii() and text.isprintable() else ascii(text)[1:-1]


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _trace(headers: Headers) -> Any:
    """Calls between the actors carry the client's trace on; one that is no W3C traceparent is none (as W3C says)."""
    traceparent = headers.get("traceparent", "")
    return rt.trace(traceparent) if _TRACEPARENT.fullmatch(traceparent) else nullcontext()


def _bounded(receive: Receive, settings: ServerSettings) -> Receive:
    """``receive`` that refuses a body which turns out too large, or does not come in time."""
    size_bytes, is_whole = 0, False
    max_body_bytes, body_s = settings.max_body_bytes, settings.body_timeout_s
    in_time = asyncio.get_running_loop().time() + body_s

    async def bounded() -> Message:
        nonlocal size_bytes, is_whole
        if is_whole:  # all that can come is the client's leaving
            return await receive()
        try:
            async with asyncio.timeout_at(in_time):
                message = await receive()
        except TimeoutError:
            text = f"the body did not come within {body_s:g} s: send it faster"
            raise HTTPException(408, text, {"connection": "close"}) from None
        is_whole = not message.get("more_body", False)
        size_bytes += len(message.get("body", b""))
        if size_bytes > max_body_bytes:
            raise HTTPException(413, _too_large(max_body_bytes).message, {"connection": "close"})
        return message

    return bounded


def _too_large(max_body_bytes: int) -> ErrorReply:
    text = f"the body is larger than {max_body_bytes} bytes, which is the server's limit: send less"
    return ErrorReply(413, text, "invalid_request_error", None, "body_too_large")
