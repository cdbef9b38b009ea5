"""`StubEngine`: an engine that computes nothing, to measure what the front end costs. Used by bench.frontend_cost."""

from __future__ import annotations

import asyncio
import time

from ringcast.frontend.engine_client import ActorFigures, EngineSink, Health, RingFigures
from ringcast.scheduler.messages import AddRequest, EngineInfo, RequestOutput, SchedulerStatistics, StepOutputs


class StubEngine:
    """Gives every request one token a step, ``tokens_per_s`` over all requests; the sink is called as the real engine
    calls it, a step at a time. Steps that came due while the loop was busy come at once, as they do out of a ring."""

    def __init__(self, tokens_per_s: float, token_ids: list[int]) -> None:
        self._tokens_per_s = tokens_per_s
        self._token_ids = token_ids
        self._sink: EngineSink | None = None
        self._left: dict[str, int] = {}
        self._most: dict[str, int] = {}  # tokens that a request gets
        self._wake = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None
        self._is_closed = False
        self._step = 0

    async def start(self, sink: EngineSink) -> None:
        self._sink = sink
        self._stepping = asyncio.create_task(self._steps())

    async def wait_dead(self) -> str:
        assert self._stepping is not None
        await asyncio.wait([self._stepping])
        if not self._stepping.cancelled():
            self._stepping.result()  # a step that failed is told, not waited for
        return "closed"

    async def close(self) -> None:
        self._is_closed = True
        if self._stepping is not None:
            self._stepping.cancel()

    def health(self) -> Health:
        return Health("dead" if self._is_closed else "ready")

    def info(self) -> EngineInfo:
        return EngineInfo(1, 1 << 20, 49152, 1 << 16, 16, 1024, 8192)

    async def add(self, requests: list[AddRequest]) -> None:
        for request in requests:
            self._left[request.request_id] = self._most[request.request_id] = request.stop.max_tokens
        self._wake.set()

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._left.pop(request_id, None)
            self._most.pop(request_id, None)

    async def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(len(self._left), 0, 1 << 16, 1 << 16, self._step, 0, 0)

    async def ring_figures(self) -> RingFigures:
        return RingFigures(0, 0)

    async def actors(self) -> list[ActorFigures]:
        return []

    async def _steps(self) -> None:
        due_s = time.perf_counter()
        while True:
            if not self._left:
                self._wake.clear()
                await self._wake.wait()
                due_s = time.perf_counter()
            now_s = time.perf_counter()
            while self._left and due_s <= now_s:
                due_s += len(self._left) / self._tokens_per_s
                self._make_step()
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))

    def _make_step(self) -> None:
        self._step += 1
        token_id = self._token_ids[self._step % len(self._token_ids)]
        outputs: list[RequestOutput] = []
        plain: list[str] = []
        starts: list[int] = []
        for request_id, left in list(self._left.items()):
            if left == 1:
                del self._left[request_id]
                start = self._most.pop(request_id) - 1
                outputs.append(RequestOutput(request_id, [token_id], "length", start=start))
            else:
                self._left[request_id] = left - 1
                plain.append(request_id)
                starts.append(self._most[request_id] - left)
        assert self._sink is not None
        self._sink.on_outputs(StepOutputs(self._step, outputs, plain, [token_id] * len(plain), starts))
