"""`RequestStream`: what a caller holds of an admitted request. Made by `AsyncLLM.add_request`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType

from .errors import EngineError
from .outputs import RequestOutput
from .request_state import RequestState


class RequestStream:
    """An admitted request: iterate for its results. Give it up with ``abort``, or by leaving ``async with``.

    One that is forgotten is aborted when it is collected; one that is held and not read runs to its end, and its
    results merge.
    """

    def __init__(self, state: RequestState, release: Callable[[RequestState], None]) -> None:
        self._state = state
        self._release = release
        self._ended = False
        self._loop = asyncio.get_running_loop()

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or the one it was given."""
        return self._state.request_id

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self._state.next()
        except BaseException:
            self.abort()
            raise
        self._ended = output.finished
        return output

    async def final(self) -> RequestOutput:
        """The last result. `EngineError` if the request was given up meanwhile."""
        async for output in self:
            if output.finished:
                return output
        raise EngineError(f"request {self.request_id} was aborted")

    def abort(self) -> None:
        """Give up what has not finished; nothing happens if all has."""
        self._ended = True
        self._release(self._state)

    def __del__(self) -> None:
        """A stream that was forgotten is given up, too. The collector may run on any thread."""
        if not self._ended:
            with contextlib.suppress(RuntimeError):  # its loop was closed, and the engine with it
                self._loop.call_soon_threadsafe(self._release, self._state)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
