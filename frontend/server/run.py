"""``ringcast serve``: a port, an app, signals, an exit code. The only place that installs signal handlers.

The port is taken before anything is loaded. The first SIGTERM or SIGINT lets running answers finish within
the drain time, the second ends the process at once; the engine's processes end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from ..errors import FrontendError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048


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
    make_app: Callable[[Callable[[Exception], None]], object],
    *,
    drain_timeout_s: float,
    access_log: bool,
) -> Exception | None:
    """Serve until a signal; returns the error that ended the engine or kept it from starting, if one did.

    ``make_app`` gets the function to call when that happens.
    """
    import uvicorn

    from ringcast.actors.loops import run_on_new_loop

    failures: list[Exception] = []

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            with _signals(self._stop):
                yield

        def _stop(self, number: int) -> None:
            if self.should_exit:
                os._exit(128 + number)  # the second time: now. The engine's processes see us go.
            print("ringcast: stopping; once more to stop at once", file=sys.stderr, flush=True)
            self.should_exit = True

    def failed(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    config = uvicorn.Config(
        make_app(failed),  # type: ignore[arg-type]
        log_config=None,
        access_log=access_log,
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
        lifespan="on",
        server_header=False,
    )
    server = Server(config)
    run_on_new_loop(server.serve(sockets=[listener]))
    return failures[0] if failures else None


@contextlib.contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        stop(number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address_of(listener: socket.socket) -> str:
    """The server's URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
