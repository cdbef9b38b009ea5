"""A WSGI program, without an event loop, whose request threads share a counter that lives in a process of its own.

`GET /` adds one and answers with the count. With arguments it serves: `python wsgi_counter.py PORT`; without, it asks
itself five times, from five threads.
"""

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults

import ringcast.actors as rt


class Counter(rt.Actor):
    def __init__(self, start: int) -> None:
        self.n = start

    @rt.call
    async def add(self, k: int) -> int:
        self.n += k
        return self.n


class App:
    """The program that a WSGI server calls, from as many threads as it likes."""

    def __init__(self, portal: rt.Portal, counter: Counter) -> None:
        self.portal = portal
        self.counter = counter

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            with rt.deadline(1.0):
                count = self.portal.call(self.counter.add, 1)
        except rt.ActorError as error:  # it died, or did not answer in time
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [f"{type(error).__name__}\n".encode()]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [f"{count}\n".encode()]


def ask(app: App) -> int:
    """One request, as a server would make it."""
    environ: WSGIEnvironment = {}
    setup_testing_defaults(environ)
    return int(b"".join(app(environ, lambda status, headers, failure=None: lambda data: None)))


def main() -> None:
    with rt.start_in_thread(rt.System("counter")) as portal:
        counter = portal.run(
            portal.system.spawn, rt.spec(Counter, 0), where=rt.process(), restart=rt.Restart("permanent")
        )
        app = App(portal, counter)
        if len(sys.argv) > 1:
            from wsgiref.simple_server import make_server

            with make_server("127.0.0.1", int(sys.argv[1]), app) as server:
                server.serve_forever()
        with ThreadPoolExecutor(5) as threads:
            print(sorted(threads.map(ask, [app] * 5)))


if __name__ == "__main__":
    main()
