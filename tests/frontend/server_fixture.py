"""A real HTTP server on a thread, over a given AsyncLLM: for tests with real clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

import uvicorn

from ringcast.actors.loops import run_on_new_loop
from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.server.app import create_app
from ringcast.frontend.server.http_protocol import HttpProtocol
from ringcast.frontend.server.run import address_of, listen
from ringcast.frontend.server.settings import ServerSettings

T = TypeVar("T")
TEXT, EOS = "Hello  🌊!", 2  # what conftest's engine says, and ends with


class ServerThread:
    """``with ServerThread(llm) as server:`` serves at ``server.url``; waits for the engine unless told not to."""

    def __init__(
        self,
        llm: AsyncLLM,
        *,
        model: str | None = None,
        wait: bool = True,
        settings: ServerSettings = ServerSettings(),  # noqa: B008
    ) -> None:
        self._listener = listen("127.0.0.1", 0)
        self.url = address_of(self._listener)
        self._started = threading.Event()
        self._wait = wait
        self.failure: Exception | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.app = create_app(llm, model=model, settings=settings, on_started=self._started.set, on_failed=self._failed)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                http=partial(HttpProtocol, settings=settings),  # type: ignore[arg-type]
                timeout_keep_alive=settings.keep_alive_timeout_s,  # type: ignore[arg-type]
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
                lifespan="on",
            )
        )
        self._thread = threading.Thread(target=self._serve, name="test server")

    def call(self, function: Callable[[], T]) -> T:
        """Run something on the server's loop."""
        assert self.loop is not None

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def __enter__(self) -> ServerThread:
        self._thread.start()
        if self._wait:
            assert self._started.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _failed(self, error: Exception) -> None:
        self.failure = error
        self._started.set()

    def _serve(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._listener])

        run_on_new_loop(main())
