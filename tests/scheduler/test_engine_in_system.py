"""The engine core among real actors: references, mailboxes, watches and a supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from scheduler_fakes import VOCAB_SIZE, Collected, ModelWorker, request, solo

import ringcast.actors as rt
from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.engine_core import EngineCore
from ringcast.scheduler.messages import (
    FrontendInterface,
    KVCacheConfig,
    KVCacheSpec,
    RequestOutput,
    StepOutputs,
    StepPlan,
    StepResult,
    WorkerInterface,
)

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=161)
LIMITS = KVCacheConfig(10, 16, 4, 16, 161)
AGAIN = rt.Restart("permanent", max_restarts=2, backoff_s=0.01)


class ListWorker(WorkerInterface):
    """A `ModelWorker` as an actor, with memory for ten blocks; a step takes ``step_s`` seconds."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    @rt.call
    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        return KVCacheSpec(1 << 20, 10 << 20, 2048, VOCAB_SIZE)

    @rt.call
    def initialize_from_config(self, config: KVCacheConfig) -> None:
        self.model = ModelWorker(config)

    @rt.call
    def execute_model(self, plan: StepPlan) -> StepResult:
        time.sleep(self.step_s)
        return self.model.execute(plan)


class ListFrontend(FrontendInterface):
    """Keeps what it is told; lives in the test's process."""

    def __init__(self) -> None:
        self.collected = Collected()

    @rt.call
    async def deliver(self, outputs: StepOutputs) -> None:
        for output in outputs.each():
            self.collected.take_one(output)

    @rt.call
    async def tokens(self, request_id: str) -> list[int]:
        return self.collected.token_ids.get(request_id, [])

    @rt.call
    async def last(self, request_id: str) -> list[RequestOutput]:
        return [self.collected.last[request_id]] if request_id in self.collected.last else []


async def last(frontend: ListFrontend, request_id: str) -> RequestOutput:
    while not (found := await frontend.last(request_id)):
        await asyncio.sleep(0.005)
    return found[0]


async def start(
    system: rt.System, where: rt.Where, *, step_s: float = 0.0, restart: rt.Restart = AGAIN
) -> tuple[EngineCore, ListFrontend]:
    worker = await system.spawn(rt.spec(ListWorker, step_s), name="worker", where=where, restart=restart)
    core = await system.spawn(rt.spec(EngineCore, CONFIG, worker), name="engine-core", where=where)
    frontend = await system.spawn(rt.spec(ListFrontend), name="frontend")
    assert (await core.attach(frontend)).client == 1
    return core, frontend


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_requests_run_like_alone_with_preemption_on_ten_blocks(where: rt.Where) -> None:
    messages = [request(f"r{i}", [i] * (1 + i * 4), 60, seed=i) for i in range(8)]
    async with rt.System() as system:
        core, frontend = await start(system, where)
        core.add.cast(messages)
        for message in messages:
            assert (await last(frontend, message.request_id)).finish_reason == "length"
            assert await frontend.tokens(message.request_id) == solo(message, LIMITS)[0]
        now = await core.statistics()
        assert now.num_free_blocks == now.num_blocks == 10
        assert now.num_preemptions > 0


async def killed_while_running(system: rt.System, restart: rt.Restart) -> tuple[EngineCore, ListFrontend]:
    """An engine whose worker was killed in the middle of request "a"."""
    core, frontend = await start(system, rt.process(), step_s=0.005, restart=restart)
    core.add.cast([request("a", [1], 150)])
    while not await frontend.tokens("a"):
        await asyncio.sleep(0.001)
    os.kill(system.pids()["worker"], signal.SIGKILL)
    ended = await last(frontend, "a")
    assert ended.finish_reason == "error" and ended.error is not None
    assert ended.error.startswith("the worker ended while this request ran: ")
    return core, frontend


async def test_killed_worker_ends_what_ran_and_serves_again_after_its_restart() -> None:
    async with rt.System() as system:
        core, frontend = await killed_while_running(system, AGAIN)
        core.add.cast([request("b", [2], 20)])
        assert (await last(frontend, "b")).finish_reason == "length"
        assert await frontend.tokens("b") == solo(request("b", [2], 20), LIMITS)[0]
        assert (await core.statistics()).num_free_blocks == 10


async def test_killed_worker_that_is_not_restarted_ends_later_requests_at_once() -> None:
    async with rt.System() as system:
        core, frontend = await killed_while_running(system, rt.Restart("temporary"))
        core.add.cast([request("b", [2], 20)])
        ended = await last(frontend, "b")
        assert ended.error is not None and ended.error.startswith("the worker is gone for good: ")


async def test_requests_of_a_stopped_frontend_are_aborted() -> None:
    async with rt.System() as system:
        core, frontend = await start(system, rt.here, step_s=0.005)
        core.add.cast([request("a", [1], 150)])
        while not await frontend.tokens("a"):
            await asyncio.sleep(0.001)
        await system.stop(frontend)
        while (await core.statistics()).num_free_blocks < 10:
            await asyncio.sleep(0.001)
        assert (await core.statistics()).num_running == 0
