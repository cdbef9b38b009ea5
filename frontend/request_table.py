"""The live requests of one engine, by the ids that the engine knows. The engine's sink: gives every output its request.

`AsyncLLM` owns it. A request leaves the table when all its answers have ended, when it fails, or when it is
released. What happens to requests is counted in ``figures``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ringcast.scheduler import messages

from .errors import EngineDead, EngineError, InvalidRequest
from .figures import RequestFigures
from .request_state import RequestState

log = logging.getLogger("ringcast.frontend")


@dataclass(slots=True)
class _Request:
    """A live request. Times by ``time.monotonic``."""

    state: RequestState
    engine_ids: tuple[str, ...]
    arrived_s: float
    has_token: bool = False


@dataclass(slots=True)
class _Answer:
    """A live answer."""

    request: _Request
    index: int
    num_tokens: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0


class RequestTable:
    """An `EngineSink`. ``abort`` tells the engine to end requests. Belongs to the engine's loop."""

    def __init__(self, abort: Callable[[list[str]], None]) -> None:
        self.figures = RequestFigures()
        self._abort = abort
        self._answers: dict[str, _Answer] = {}  # by engine id
        self._requests: dict[str, _Request] = {}  # by request id

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, state: RequestState, engine_ids: tuple[str, ...]) -> None:
        """From now on outputs under ``engine_ids`` are its answers', in order. `InvalidRequest` if its id is taken."""
        if state.request_id in self._requests:
            raise InvalidRequest(
                f"request_id {state.request_id!r} is taken by a running request: choose another", "request_id"
            )
        request = self._requests[state.request_id] = _Request(state, engine_ids, time.monotonic())
        for index, engine_id in enumerate(engine_ids):
            self._answers[engine_id] = _Answer(request, index)

    def release(self, state: RequestState) -> None:
        """Forget a request and abort what is left of it. Outputs that are on their way are dropped."""
        request = self._requests.get(state.request_id)
        if request is None or request.state is not state:
            return
        del self._requests[state.request_id]
        left = [engine_id for engine_id in request.engine_ids if self._answers.pop(engine_id, None) is not None]
        self.figures.num_finished["error" if state.failed else "abort"] += len(left)
        self._abort(left)

    def find(self, request_id: str) -> RequestState | None:
        """The running request under the caller's id."""
        request = self._requests.get(request_id)
        return None if request is None else request.state

    def on_outputs(self, outputs: messages.StepOutputs) -> None:
        """A step's tokens for any number of requests. One that fails here does not touch the others."""
        aborted: list[str] = []
        now_s = time.monotonic()
        for output in outputs.each():
            answer = self._answers.get(output.request_id)
            if answer is None:
                continue  # released, or ended by a stop string, while this was on its way
            state = answer.request.state
            if output.token_ids:
                self._count(answer, output, now_s)
            try:
                if state.update(answer.index, output):
                    aborted.append(output.request_id)
            except Exception as error:
                log.exception("processing the output of request %s failed", state.request_id)
                state.fail(EngineError(f"request {state.request_id}: its output could not be processed: {error}"))
            if state.failed:
                self.release(state)
            elif (reason := state.answers[answer.index].finish_reason) is not None:
                del self._answers[output.request_id]
                self.figures.answer_ended(reason, answer.num_tokens, answer.last_token_s - answer.first_token_s)
                if state.finished:
                    del self._requests[state.request_id]
                    self.figures.request_latency_s.observe(now_s - answer.request.arrived_s)
        if aborted:
            self._abort(aborted)

    def _count(self, answer: _Answer, output: messages.RequestOutput, now_s: float) -> None:
        """An answer's new tokens, in the figures."""
        figures, request = self.figures, answer.request
        figures.num_generated_tokens += len(output.token_ids)
        if answer.num_tokens:
            figures.inter_token_latency_s.observe(now_s - answer.last_token_s)
        else:
            answer.first_token_s = now_s
            if not request.has_token:
                request.has_token = True
                figures.first_token(
                    now_s - request.arrived_s,
                    output.queue_time_s,
                    request.state.num_prompt_tokens,
                    output.num_cached_tokens,
                )
        answer.num_tokens += len(output.token_ids)
        answer.last_token_s = now_s

    def on_death(self, error: EngineDead) -> None:
        """The engine lost everything it had."""
        self.fail_all(error)

    def fail_all(self, error: EngineError) -> None:
        """Every live request ends with this error, at once."""
        requests, num_answers = list(self._requests.values()), len(self._answers)
        self._answers.clear()
        self._requests.clear()
        self.figures.num_finished["error"] += num_answers
        for request in requests:
            request.state.fail(error)
