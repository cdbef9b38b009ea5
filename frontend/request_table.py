"""The live requests of one engine, by the ids that the engine knows. The engine's sink: gives every output its request.

`AsyncLLM` owns it. A request leaves the table when all its answers have ended, when it fails, or when it is
released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ringcast.scheduler import messages

from .errors import EngineDead, EngineError, InvalidRequest
from .request_state import RequestState

log = logging.getLogger("ringcast.frontend")


class RequestTable:
    """An `EngineSink`. ``abort`` tells the engine to end requests. Belongs to the engine's loop."""

    def __init__(self, abort: Callable[[list[str]], None]) -> None:
        self._abort = abort
        self._by_engine_id: dict[str, tuple[RequestState, int]] = {}
        self._engine_ids: dict[str, tuple[str, ...]] = {}  # by request id

    def __len__(self) -> int:
        return len(self._engine_ids)

    def enter(self, state: RequestState, engine_ids: tuple[str, ...]) -> None:
        """From now on outputs under ``engine_ids`` are its answers', in order. `InvalidRequest` if its id is taken."""
        if state.request_id in self._engine_ids:
            raise InvalidRequest(
                f"request_id {state.request_id!r} is taken by a running request: choose another", "request_id"
            )
        self._engine_ids[state.request_id] = engine_ids
        for index, engine_id in enumerate(engine_ids):
            self._by_engine_id[engine_id] = (state, index)

    def release(self, state: RequestState) -> None:
        """Forget a request and abort what is left of it. Outputs that are on their way are dropped."""
        engine_ids = self._engine_ids.get(state.request_id, ())
        left = [item for item in engine_ids if self._by_engine_id.get(item, (None, 0))[0] is state]
        if left:
            del self._engine_ids[state.request_id]
            for engine_id in left:
                del self._by_engine_id[engine_id]
            self._abort(left)

    def find(self, request_id: str) -> RequestState | None:
        """The running request under the caller's id."""
        for engine_id in self._engine_ids.get(request_id, ()):
            if engine_id in self._by_engine_id:
                return self._by_engine_id[engine_id][0]
        return None

    def on_outputs(self, outputs: messages.StepOutputs) -> None:
        """A step's tokens for any number of requests. One that fails here does not touch the others."""
        aborted: list[str] = []
        for output in outputs.each():
            entry = self._by_engine_id.get(output.request_id)
            if entry is None:
                continue  # released, or ended by a stop string, while this was on its way
            state, index = entry
            try:
                if state.update(index, output):
                    aborted.append(output.request_id)
            except Exception as error:
                log.exception("processing the output of request %s failed", state.request_id)
                state.fail(EngineError(f"request {state.request_id}: its output could not be processed: {error}"))
            if state.failed:
                self.release(state)
            elif state.answers[index].finish_reason is not None:
                del self._by_engine_id[output.request_id]
                if state.finished:
                    del self._engine_ids[state.request_id]
        if aborted:
            self._abort(aborted)

    def on_death(self, error: EngineDead) -> None:
        """The engine lost everything it had."""
        self.fail_all(error)

    def fail_all(self, error: EngineError) -> None:
        """Every live request ends with this error, at once."""
        states = {id(state): state for state, _ in self._by_engine_id.values()}
        self._by_engine_id.clear()
        self._engine_ids.clear()
        for state in states.values():
            state.fail(error)
