"""`HttpProtocol`: uvicorn's HTTP/1.1 connection with limits for its head, and answers for clients that half-close.

`run_server` uses it. It knows no endpoints: what it refuses is refused before there is a request.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .delivery import SENDS_EVENTS
from .errors import ErrorReply
from .settings import ServerSettings

# What clients ignore, before an answer and between events. One that has gone answers it with a reset.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT = b"3\r\n:\n\n\r\n"
_CLOSE_WAIT = 8  # Linux's TCP_CLOSE_WAIT: the other side has shut down its sending, and no reset has come
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 1.0


class _AnyLength(int):
    """What an answer without a known length may still have: as much as comes, and nothing is missing at its end."""

    def __lt__(self, other: int) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def __sub__(self, other: int) -> _AnyLength:
        return self

    __hash__ = int.__hash__


_ANY_LENGTH = _AnyLength()


class HttpProtocol(HttpToolsProtocol):
    """One connection. A head is a request's line and headers."""

    def __init__(self, *args: Any, settings: ServerSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._is_in_head = True
        self._head_bytes = 0  # of the head that is coming in
        self._is_refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_bytes = 0  # of all bodies
        self._framing_bytes = 0  # of a body's framing, since there was something of the body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head:
            if self._head_timer is None:
                self._expect_head()
            # At most the limit and what the socket gave at once is looked at: the parser keeps what is not whole.
            self._head_bytes += len(data)
        body_bytes = self._body_bytes
        super().data_received(data)
        if self._is_in_head:
            if self._head_bytes > self._settings.max_header_bytes:
                self._refuse_size()
            return
        # What is neither head nor body: extensions of chunks, and trailers behind the last one.
        self._framing_bytes = self._framing_bytes + len(data) if body_bytes == self._body_bytes else 0
        if self._framing_bytes > self._settings.max_header_bytes:
            self._refuse_framing()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer: nobody reads it
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4  # with the colon, the space and the line's end

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        self._stop_timer()
        if self._is_refused:
            return
        if self._header_bytes + len(self.url) > self._settings.max_header_bytes:
            self._refuse_size()
            return
        super().on_headers_complete()
        if self.cycle is not None and self.scope["http_version"] == "1.0":
            # It knows no chunks: a stream ends where the connection does.
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _ANY_LENGTH

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        if not self._is_refused:
            super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answer of a request that is whole. True: it stays open for writing."""
        cycle = self.cycle
        if self._is_refused or cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        if not cycle.response_started:
            if self.scope["http_version"] == "1.1":
                self.transport.write(_CONTINUE)
        elif cycle.chunked_encoding and cycle.scope.get("state", {}).get(SENDS_EVENTS):
            self.transport.write(_COMMENT)
        self._look_for_reset(_FIRST_LOOK_S)
        return True

    def _look_for_reset(self, after_s: float) -> None:
        """A client that has closed looks like one that has half-closed, until it gets something."""
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == _CLOSE_WAIT:
            self.loop.call_later(after_s, self._look_for_reset, min(2 * after_s, _LAST_LOOK_S))
        else:
            self.transport.abort()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._settings.header_timeout_s, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_in_head or self.transport.is_closing():
            return
        if not self._head_bytes:
            self.transport.close()  # nothing was asked: nothing is to be answered
            return
        text = f"the headers did not come within {self._settings.header_timeout_s:g} s: send them faster"
        self._refuse(ErrorReply(408, text, "invalid_request_error", None, "headers_too_slow"))

    def _refuse_size(self) -> None:
        text = f"the headers are larger than {self._settings.max_header_bytes} bytes, the server's limit: send less"
        self._refuse(ErrorReply(431, text, "invalid_request_error", None, "headers_too_large"))

    def _refuse_framing(self) -> None:
        text = (
            f"there are more than {self._settings.max_header_bytes} bytes of chunk extensions or trailers, the "
            "server's limit: send none"
        )
        reply = ErrorReply(431, text, "invalid_request_error", None, "headers_too_large")
        self._is_refused = True
        if self.pipeline or self.cycle is None or self.cycle.response_started:
            self.transport.abort()
        else:
            self._answer(reply)

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP, in the shape of all errors."""
        if self.cycle is not None and not self.cycle.response_complete:  # an answer is on its way, maybe a part of it
            self.transport.abort()
            return
        text = "this is no valid HTTP/1.1 request: send one (and check for a TLS client, or a second Content-Length)"
        self._answer(ErrorReply(400, text, "invalid_request_error", None, "invalid_http"))

    def _refuse(self, reply: ErrorReply) -> None:
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:  # of a request before it: it has the word
            self.cycle.keep_alive = False
            return
        self._answer(reply)

    def _answer(self, reply: ErrorReply) -> None:
        body = json.dumps(reply.body()).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[reply.status] + head + body)
        self.transport.close()
