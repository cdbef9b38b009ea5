"""A worker, a frontend and a context that tests hold in their hands, and an engine core that runs among them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scheduler_fakes import VOCAB_SIZE, Collected, ModelWorker

import ringcast.actors as rt
from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.engine_core import EngineCore
from ringcast.scheduler.messages import (
    AddRequest,
    EngineInfo,
    KVCacheConfig,
    KVCacheSpec,
    RequestOutput,
    StepOutputs,
    StepPlan,
    StepResult,
)

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=200, num_kv_blocks=13)


def died(summary: str = "killed by signal 9") -> rt.ActorDied:
    return rt.ActorDied("worker", rt.Cause(summary, traceback="many\nlines"))


class FakeWorker:
    """A `ModelWorker` behind the worker's interface. ``faults`` are raised by the next steps, in order."""

    def __init__(self) -> None:
        self.spec = KVCacheSpec(1 << 20, 100 << 20, max_model_len=2048, vocab_size=VOCAB_SIZE, is_exact=True)
        self.configs: list[KVCacheConfig] = []
        self.plans: list[StepPlan] = []
        self.faults: deque[BaseException] = deque()
        self.initialize_faults: deque[BaseException] = deque()
        self.answers: deque[StepResult] = deque()  # instead of the right ones
        self.may_step = asyncio.Event()
        self.may_step.set()
        self.in_step = asyncio.Event()
        self._model: ModelWorker | None = None
        self._one_at_a_time = asyncio.Lock()

    async def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        return self.spec

    async def initialize_from_config(self, config: KVCacheConfig) -> None:
        if self.initialize_faults:
            raise self.initialize_faults.popleft()
        self.configs.append(config)
        self._model = ModelWorker(config)

    async def execute_model(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        async with self._one_at_a_time:
            self.in_step.set()
            await asyncio.sleep(0)  # a worker elsewhere always takes a turn of the loop
            await self.may_step.wait()
            self.in_step.clear()
            if self.faults:
                fault = self.faults.popleft()
                if isinstance(fault, rt.ActorDied):
                    self._model = None
                raise fault
            if self._model is None:
                raise rt.RemoteError("worker", "PlanError", "not initialised", "")
            try:
                result = self._model.execute(plan)
            except (AssertionError, KeyError) as error:  # as it comes from another process
                raise rt.RemoteError("worker", type(error).__name__, str(error), "") from error
            return self.answers.popleft() if self.answers else result


class FakeFrontend:
    """What a frontend is told. ``deliver.cast.wait`` waits while ``has_room`` is clear."""

    def __init__(self) -> None:
        self.collected = Collected()
        self.messages: list[StepOutputs] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.dead: rt.ActorDied | None = None
        self.deliver = self
        self.cast = self
        self._arrived = asyncio.Condition()

    async def wait(self, outputs: StepOutputs) -> None:
        await self.has_room.wait()
        if self.dead is not None:
            raise self.dead
        self.messages.append(outputs)
        for output in outputs.each():
            self.collected.take_one(output)
        async with self._arrived:
            self._arrived.notify_all()

    async def last(self, request_id: str) -> RequestOutput:
        """The request's last output, when it has come."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: request_id in self.collected.last)
        return self.collected.last[request_id]

    async def num_tokens(self, request_id: str, count: int) -> None:
        """Wait until the request has so many tokens."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.collected.token_ids.get(request_id, [])) >= count)


class FakeWatch:
    """The events that a test puts in, in order."""

    def __init__(self, first: rt.Event) -> None:
        self._events: asyncio.Queue[rt.Event] = asyncio.Queue()
        self.put(first)

    def put(self, event: rt.Event) -> None:
        self._events.put_nowait(event)

    def __aiter__(self) -> FakeWatch:
        return self

    async def __anext__(self) -> rt.Event:
        return await self._events.get()


class FakeContext:
    """Hands out watches and keeps them, so that a test can say what happens to whom."""

    def __init__(self, worker: FakeWorker) -> None:
        self._watches: dict[object, list[FakeWatch]] = {}
        self.first_events: dict[object, rt.Event] = {worker: rt.Ready(1)}

    def watch(self, ref: object) -> FakeWatch:
        watch = FakeWatch(self.first_events.get(ref, rt.Ready(1)))
        self._watches.setdefault(ref, []).append(watch)
        return watch

    def tell(self, ref: object, event: rt.Event) -> None:
        for watch in self._watches[ref]:
            watch.put(event)


class Engine:
    """A started engine core with its surroundings."""

    def __init__(self, config: SchedulerConfig = CONFIG) -> None:
        self.worker = FakeWorker()
        self.context: Any = FakeContext(self.worker)
        worker: Any = self.worker
        self.core = EngineCore(config, worker)
        self.running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.core.on_start(self.context, None)
        self.running = asyncio.get_running_loop().create_task(self.core.run(self.context))

    async def attach(self) -> tuple[FakeFrontend, EngineInfo]:
        frontend: Any = FakeFrontend()
        return frontend, await self.core.attach(frontend)

    async def add(self, *requests: AddRequest) -> None:
        await self.core.add(list(requests))

    def kill_worker(self, incarnation: int, summary: str = "killed by signal 9") -> None:
        """The supervisor's view of a death."""
        self.context.tell(self.worker, rt.Died(incarnation, rt.Cause(summary)))
        self.context.tell(self.worker, rt.Restarting(1, 0.05))

    def worker_ready(self, incarnation: int) -> None:
        self.context.tell(self.worker, rt.Ready(incarnation))

    async def settle(self) -> None:
        """Let everything happen that can happen without an event from outside."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])
        await self.core.on_stop("the test ends")


@asynccontextmanager
async def started(config: SchedulerConfig = CONFIG) -> AsyncIterator[Engine]:
    engine = Engine(config)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
