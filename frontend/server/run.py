"""A listening port and a running server: what ``ringcast serve`` does beside loading. Installs no signal handlers.

The port is taken before anything is loaded, so that a port in use is told at once.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ..errors import FrontendError
from .settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

_BACKLOG = 2048
_UNREAD_MS = 60_000  # a client that takes nothing of what was sent to it for so long is cut off, by the kernel
_CLOSE_S = 3  # for connections to close once nothing is answered any more


class PortUnavailable(FrontendError):
    """The machine's state, or the caller's choice: the server's address cannot be had."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; `PortUnavailable` in one line. Port 0 takes a free one."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise PortUnavailable(
            f"cannot listen on {host!r}: {error.strerror}; give an address of this machine"
        ) from error
    server = socket.socket(family, kind)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it. Until then such a client costs two full buffers: its answers wait in them.
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        server.bind(address)
        server.listen(_BACKLOG)
    except OSError as error:
        server.close()
        raise PortUnavailable(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it, or choose another --port"
        ) from error
    server.setblocking(False)
    return server


def run_server(
    listener: socket.socket,
    make_app: Callable[[Callable[[Exception], None]], FastAPI],
    *,
    settings: ServerSettings,
    drain_timeout_s: float,
    on_stopper: Callable[[Callable[[], None]], None],
) -> Exception | None:
    """Serve until stopped; returns the error that ended the engine or kept it from starting, if one did.

    ``make_app`` makes a `create_app` and gets the function to call when that happens, ``on_stopper`` the one that stops
    the server: running answers then get ``drain_timeout_s`` to finish, while new requests are answered with 503.
    """
    import uvicorn

    from ringcast.actors.loops import run_on_new_loop

    from .http_protocol import HttpProtocol

    failures: list[Exception] = []

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # signals are the command line's

        async def main_loop(self) -> None:
            await super().main_loop()
            await app.state.drain(drain_timeout_s)  # the port is still open

        def stop(self) -> None:
            self.should_exit = True

    def failed(error: Exception) -> None:
        failures.append(error)
        server.stop()

    app = make_app(failed)
    config = uvicorn.Config(
        app,
        http=partial(HttpProtocol, settings=settings),  # type: ignore[arg-type]
        ws="none",
        timeout_keep_alive=settings.keep_alive_timeout_s,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,  # the gate writes it, with request ids
        timeout_graceful_shutdown=_CLOSE_S,
        lifespan="on",
        server_header=False,
    )
    server = Server(config)
    on_stopper(server.stop)
    run_on_new_loop(server.serve(sockets=[listener]))
    return failures[0] if failures else None


def address_of(listener: socket.socket) -> str:
    """The server's URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
