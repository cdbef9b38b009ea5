"""`HeadAsGet`: the ASGI middleware that answers HEAD wherever GET is answered: the same headers, and no body.

FastAPI's routes take the methods that they name alone, and load balancers ask by HEAD. Naming it at each route would
forget the next one, and would put every route into the OpenAPI document twice.
"""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """The app behind it sees GET. Servers drop a HEAD's body, too, but not all of them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        def send_head(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                return send(message)
            more = message.get("more_body", False)
            return send({"type": "http.response.body", "body": b"", "more_body": more})

        await self._app({**scope, "method": "GET"}, receive, send_head)


def with_head(allow: str) -> str:
    """An Allow header of a route, which knows nothing of HEAD, as it is."""
    methods = allow.split(", ")
    return ", ".join([*methods, "HEAD"]) if "GET" in methods and "HEAD" not in methods else allow
