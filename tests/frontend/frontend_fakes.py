"""An engine without actors or model: answers follow a script. Implements `EngineClient` for the frontend's tests."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ringcast.actors as rt
from ringcast.frontend.engine_client import ActorFigures, EngineSink, Health, RingFigures
from ringcast.frontend.errors import EngineDead, EngineNotReady, EngineStartFailed
from ringcast.scheduler.messages import (
    AddRequest,
    EngineInfo,
    Logprobs,
    RequestOutput,
    SchedulerStatistics,
    StepOutputs,
)

Script = Callable[[AddRequest], Sequence[int]]


def echo(request: AddRequest) -> list[int]:
    """Answers with the prompt's own tokens, over and over."""
    ids = request.prompt_token_ids
    return [ids[index % len(ids)] for index in range(request.stop.max_tokens)]


def logprobs_of(token_ids: Sequence[int], count: int) -> Logprobs:
    """The fake model's opinion: token t at a place has -1/8 x (t % 50) and rank t + 1, the likeliest are 0, 1, 2 ..."""
    ids = [item for token_id in token_ids for item in (token_id, *range(count))]
    values = array("f", [-(token_id % 50) / 8 for token_id in ids])
    ranks = array("i", [token_id + 1 for token_id in token_ids])
    return Logprobs(count + 1, array("i", ids).tobytes(), values.tobytes(), ranks.tobytes())


@dataclass
class FakeEngine:
    """One token a step for every request, as ``script`` says, under the real core's rules for ends.

    ``step_s`` is the pause between steps; with ``paused`` set, steps happen only through `step`. ``added``,
    ``aborted`` and ``traces`` (of each add) record what the frontend sent.
    """

    script: Script = echo
    max_model_len: int = 64
    vocab_size: int = 49152
    step_s: float = 0.0
    tokens_per_step: int = 1
    paused: bool = False
    start_error: str = ""
    start_gate: asyncio.Event | None = None
    added: list[AddRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    traces: list[str | None] = field(default_factory=list)
    state: Health = field(default_factory=lambda: Health("starting"))
    closed: bool = False

    def __post_init__(self) -> None:
        self._sink: EngineSink | None = None
        self._running: dict[str, tuple[AddRequest, list[int]]] = {}
        self._begun: set[str] = set()
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._step = 0
        self._dead = asyncio.Event()

    async def start(self, sink: EngineSink) -> None:
        if self.start_gate is not None:
            await self.start_gate.wait()
        if self.start_error:
            self.state = Health("dead", self.start_error)
            raise EngineStartFailed(self.start_error)
        self._sink = sink
        self.state = Health("ready")
        self._loop_task = asyncio.create_task(self._serve())

    async def wait_dead(self) -> str:
        await self._dead.wait()
        return self.state.detail

    async def close(self) -> None:
        self.closed = True
        self.state = Health("dead", "the engine was closed")
        self._dead.set()
        if self._loop_task is not None:
            self._loop_task.cancel()

    def health(self) -> Health:
        return self.state

    def info(self) -> EngineInfo:
        if self.state.state != "ready":
            raise EngineNotReady(f"the engine takes no requests now ({self.state.state}): {self.state.detail}")
        return EngineInfo(1, self.max_model_len, self.vocab_size, 64, 16, 64, 2048)

    async def add(self, requests: list[AddRequest]) -> None:
        self.info()
        self.traces.append(rt.current_trace())
        for request in requests:
            self.added.append(request)
            self._running[request.request_id] = (request, list(self.script(request)))
        self._wake.set()

    def abort(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self._running.pop(request_id, None)

    async def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(len(self._running), 0, 64, 64, self._step, 0, 0)

    async def ring_figures(self) -> RingFigures:
        return RingFigures(messages=2 * self._step, overflows=0)

    async def actors(self) -> list[ActorFigures]:
        return [ActorFigures("fake", self.state.state == "ready", 2, messages_sent=self._step)]

    @property
    def running(self) -> list[str]:
        return list(self._running)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Let the loop run until ``condition`` holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0)

    def die(self, why: str, *, back: bool = False) -> None:
        """The core's death as the frontend sees it."""
        self._running.clear()
        self.state = Health("restarting" if back else "dead", why)
        if not back:
            self._dead.set()
        assert self._sink is not None
        self._sink.on_death(EngineDead(why))

    def fail(self, request_id: str, error: str) -> None:
        """One request fails in the engine."""
        del self._running[request_id]
        assert self._sink is not None
        self._sink.on_outputs(StepOutputs(self._step, [RequestOutput(request_id, [], "error", None, error)]))

    def step(self) -> None:
        """Give every request its next tokens."""
        self._step += 1
        outputs = [self._advance(request_id) for request_id in list(self._running)]
        assert self._sink is not None
        if outputs:
            self._sink.on_outputs(StepOutputs(self._step, outputs))

    def _advance(self, request_id: str) -> RequestOutput:
        request, left = self._running[request_id]
        tokens: list[int] = []
        reason, stop_reason = None, None
        first = request_id not in self._begun
        self._begun.add(request_id)
        done = request.stop.max_tokens - len(left)
        for _ in range(min(self.tokens_per_step, len(left))):
            token = left.pop(0)
            tokens.append(token)
            done += 1
            if token in request.stop.eos_token_ids:
                reason = "stop"
            elif token in request.stop.stop_token_ids:
                reason, stop_reason = "stop", token
            elif not left:
                reason = "length"
            if reason:
                del self._running[request_id]
                break
        rule = request.sampling
        return RequestOutput(
            request_id,
            tokens,
            reason,
            stop_reason,
            logprobs=None if rule.logprobs is None else logprobs_of(tokens, rule.logprobs),
            prompt_logprobs=None
            if rule.prompt_logprobs is None or not first
            else logprobs_of(request.prompt_token_ids[1:], rule.prompt_logprobs),
        )

    async def _serve(self) -> None:
        while True:
            while self.paused or not self._running:
                self._wake.clear()
                await self._wake.wait()
            self.step()
            await asyncio.sleep(self.step_s)
