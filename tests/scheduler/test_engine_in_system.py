"""The engine core among real actors: references, mailboxes, watches and a supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest
from scheduler_fakes import VOCAB_SIZE, Collected, ModelWorker, PoisonError, request, solo

import ringcast.actors as rt
from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.engine_core import EngineCore
from ringcast.scheduler.messages import (
    AddRequest,
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
AGAIN = rt.Restart("permanent", max_restarts=10, backoff_s=0.01, max_backoff_s=0.01)
POISON = 90


class ListWorker(WorkerInterface):
    """A `ModelWorker` as an actor, with memory for ten blocks; a step takes ``step_s`` seconds.

    Its process dies on the spot when it is to compute the token ``poison``.
    """

    def __init__(self, step_s: float, poison: int | None) -> None:
        self.step_s = step_s
        self.poison = poison

    @rt.call
    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        return KVCacheSpec(1 << 20, 10 << 20, 2048, VOCAB_SIZE)

    @rt.call
    def initialize_from_config(self, config: KVCacheConfig) -> None:
        self.model = ModelWorker(config, self.poison)

    @rt.call
    def execute_model(self, plan: StepPlan) -> StepResult:
        time.sleep(self.step_s)
        try:
            return self.model.execute(plan)
        except PoisonError:
            os.kill(os.getpid(), signal.SIGSEGV)
            raise


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
    system: rt.System,
    where: rt.Where,
    *,
    step_s: float = 0.0,
    restart: rt.Restart = AGAIN,
    poison: int | None = None,
    config: SchedulerConfig = CONFIG,
) -> tuple[EngineCore, ListFrontend]:
    worker = await system.spawn(rt.spec(ListWorker, step_s, poison), name="worker", where=where, restart=restart)
    core = await system.spawn(rt.spec(EngineCore, config, worker), name="engine-core", where=where)
    frontend = await system.spawn(rt.spec(ListFrontend), name="frontend")
    assert (await core.attach(frontend)).client == 1
    return core, frontend


async def expect_solo(frontend: ListFrontend, messages: list[AddRequest]) -> None:
    for message in messages:
        ended = await last(frontend, message.request_id)
        assert ended.finish_reason == "length", ended
        assert await frontend.tokens(message.request_id) == solo(message, LIMITS)[0]


@pytest.mark.parametrize("plans", [1, 2])
@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_requests_run_like_alone_with_preemption_on_ten_blocks(where: rt.Where, plans: int) -> None:
    messages = [request(f"r{i}", [i] * (1 + i * 4), 60, seed=i) for i in range(8)]
    async with rt.System() as system:
        core, frontend = await start(system, where, config=replace(CONFIG, max_plans_in_flight=plans))
        core.add.cast(messages)
        await expect_solo(frontend, messages)
        now = await core.statistics()
        assert now.num_free_blocks == now.num_blocks == 10
        assert now.num_preemptions > 0


@pytest.mark.parametrize("plans", [1, 2])
async def test_worker_killed_three_times_is_a_pause_and_nothing_else(plans: int) -> None:
    messages = [request(f"r{i}", [i], 100, seed=i) for i in range(6)]
    async with rt.System() as system:
        core, frontend = await start(
            system, rt.process(), step_s=0.002, config=replace(CONFIG, max_plans_in_flight=plans)
        )
        core.add.cast(messages)
        for kill in range(3):
            while len(await frontend.tokens("r0")) < 1 + kill * 25:
                await asyncio.sleep(0.001)
            os.kill(system.pids()["worker"], signal.SIGKILL)
        await expect_solo(frontend, messages)
        now = await core.statistics()
        assert (now.num_free_blocks, now.num_worker_losses, now.num_failed) == (10, 3, 0)


async def test_request_that_kills_its_worker_is_found_and_the_others_go_on() -> None:
    messages = [request(f"r{i}", [i], 40, seed=i) for i in range(40)]
    messages = [message for message in messages if POISON not in solo(message, LIMITS)[0]][:5]
    async with rt.System() as system:
        core, frontend = await start(system, rt.process(), poison=POISON)
        core.add.cast([*messages[:2], request("poison", [1, POISON], 5), *messages[2:]])
        ended = await last(frontend, "poison")
        assert ended.error is not None and ended.error.startswith(
            "the worker was lost 3 times while this request was in flight, the last time while it ran alone ("
        )
        await expect_solo(frontend, messages)
        assert (await core.statistics()).num_free_blocks == 10


async def test_killed_worker_that_is_not_restarted_ends_all_requests() -> None:
    async with rt.System() as system:
        core, frontend = await start(system, rt.process(), step_s=0.005, restart=rt.Restart("temporary"))
        core.add.cast([request("a", [1], 150)])
        while not await frontend.tokens("a"):
            await asyncio.sleep(0.001)
        os.kill(system.pids()["worker"], signal.SIGKILL)
        core.add.cast([request("b", [2], 20)])
        for name in "ab":
            ended = await last(frontend, name)
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
