"""How answers leave the server: whole, or as server-sent events. Both notice a client that goes away and stop, and
both end at the request's deadline.

Starlette's own streaming response would commit to status 200 before the first token is there; this one
waits for it, so that a request that fails early gets its real status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from fastapi.responses import JSONResponse, Response

from .errors import error_reply, let_go
from .request_context import DeadlinePassed, seconds_left
from .sse import event

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DONE = b"data: [DONE]\n\n"
SENDS_EVENTS = "ringcast.sends_events"  # in the scope's state, for the connection: its body is whole events
CLIENT_CLOSED_REQUEST = 499  # nobody sees it but the access log

log = logging.getLogger("ringcast.server")


async def answer_or_disconnect(receive: Receive, work: Awaitable[Response]) -> Response:
    """The response that ``work`` makes; if the client goes away first, ``work`` is cancelled. `DeadlinePassed`."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), timeout=seconds_left(), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        raise DeadlinePassed
    finally:
        await _end(working, leaving)


class EventStream(Response):
    """Sends ``events`` as they come, ``[DONE]`` at the end, and closes the generator whatever happens.

    An error before the first event becomes the response; a later one becomes an event, and the stream ends
    there.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"  # proxies such as nginx pass events on as they come
        self._events = events

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(scope, receive, send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _end(sending, leaving)

    async def _send(self, scope: Any, receive: Receive, send: Send) -> None:
        started = False
        limit = asyncio.timeout(seconds_left())
        try:
            async with limit:
                async for data in self._events:
                    if not started:
                        started = True
                        scope.setdefault("state", {})[SENDS_EVENTS] = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": DONE, "more_body": False})
        except Exception as error:
            reply = error_reply(DeadlinePassed() if limit.expired() else error)
            if reply.code == "internal":
                log.exception("a stream failed")
            let_go(error)
            if not started:
                await JSONResponse(reply.body(), reply.status)(scope, receive, send)
            else:
                await send({"type": "http.response.body", "body": event(reply.body()), "more_body": False})
        finally:
            await self._events.aclose()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait for it, so that requests are aborted before we return."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
