"""The engine core when its worker dies, misbehaves or is given up: requests go on or end, none hangs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from engine_fakes import CONFIG, Engine, FakeFrontend, died, started
from scheduler_fakes import logprobs_of, request, solo

import ringcast.actors as rt
from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.errors import EngineFailed
from ringcast.scheduler.messages import KVCacheConfig, KVCacheSpec, StepResult

LIMITS = KVCacheConfig(13, 16, 4, 16, 200)
RAISED = rt.RemoteError("worker", "PlanError", "row 7 is unknown\nsecond line", "trace")
MESSAGES = [request(f"r{i}", [i], 30, seed=i) for i in range(5)]
TWO_PLANS = replace(CONFIG, max_plans_in_flight=2)


async def five_requests(engine: Engine) -> None:
    """Four run, the fifth waits for a row."""
    await engine.add(*MESSAGES)


async def expect_all(frontend: FakeFrontend) -> None:
    """All five have ended like alone."""
    for message in MESSAGES:
        assert (await frontend.last(message.request_id)).finish_reason == "length"
        assert frontend.collected.token_ids[message.request_id] == solo(message, LIMITS)[0]


@pytest.mark.parametrize("told_first", [False, True])
@pytest.mark.parametrize("config", [CONFIG, TWO_PLANS])
async def test_death_of_the_worker_is_a_pause_and_nothing_else(told_first: bool, config: SchedulerConfig) -> None:
    """The call's error and the supervisor's word come in either order."""
    async with started(config) as engine:
        frontend, _ = await engine.attach()
        await five_requests(engine)
        await frontend.num_tokens("r0", 3)
        engine.worker.may_step.clear()
        await engine.worker.in_step.wait()
        engine.worker.faults.extend([died("killed by signal 9")] * len(engine.core._worker._submitted))
        if told_first:
            engine.kill_worker(1)
            engine.worker_ready(2)
            await engine.settle()
        engine.worker.may_step.set()
        if not told_first:
            await engine.settle()
            assert len(engine.worker.configs) == 1
            assert frontend.collected.last == {}
            engine.kill_worker(1)
            engine.worker_ready(2)
        await expect_all(frontend)
        assert engine.worker.configs == [LIMITS, LIMITS]
        now = await engine.core.statistics()
        assert (now.num_free_blocks, now.num_worker_losses, now.num_failed) == (13, 1, 0)


async def test_worker_that_dies_again_and_again_between_tokens_ends_no_request() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        await five_requests(engine)
        for incarnation in range(1, 9):
            await frontend.num_tokens("r0", incarnation)
            engine.worker.faults.append(died())
            while engine.worker.faults:
                await asyncio.sleep(0)
            engine.kill_worker(incarnation)
            engine.worker_ready(incarnation + 1)
        await expect_all(frontend)
        assert (await engine.core.statistics()).num_worker_losses == 8


async def test_request_that_kills_the_worker_ends_alone() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        await engine.add(*MESSAGES[:2])
        for incarnation in range(1, 4):
            engine.worker.faults.append(died("killed by signal 11"))
            while engine.worker.faults:
                await asyncio.sleep(0)
            engine.kill_worker(incarnation, "killed by signal 11")
            engine.worker_ready(incarnation + 1)
        last = await frontend.last("r0")
        assert last.error == (
            "the worker was lost 3 times while this request was in flight, the last time while it ran alone (killed by "
            "signal 11): it is not tried again"
        )
        assert (await frontend.last("r1")).finish_reason == "length"


async def test_old_word_of_readiness_revives_nothing() -> None:
    """The watch still says `Ready(1)` when the call has failed: no second call before the next incarnation."""
    async with started() as engine:
        await engine.attach()
        engine.worker.faults.append(died())
        await five_requests(engine)
        await engine.settle()
        engine.worker_ready(1)
        await engine.settle()
        assert (len(engine.worker.plans), len(engine.worker.configs)) == (1, 1)


async def test_worker_that_restarts_while_idle_is_initialised_before_the_next_request() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.kill_worker(1)
        engine.worker_ready(2)
        await engine.settle()
        assert len(engine.worker.configs) == 2
        await engine.add(request("a", [1], 3))
        assert (await frontend.last("a")).finish_reason == "length"


async def test_requests_and_aborts_are_taken_while_the_worker_is_down() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.kill_worker(1)
        await engine.settle()
        await engine.add(request("a", [1], 3), request("b", [2], 3), request("long", [1] * 200))
        await engine.settle()
        await engine.core.abort(["b"])
        assert (await frontend.last("b")).finish_reason == "abort"
        assert (await frontend.last("long")).finish_reason == "error"
        assert "a" not in frontend.collected.last
        engine.worker_ready(2)
        assert (await frontend.last("a")).finish_reason == "length"


async def test_second_death_while_initialising_waits_for_the_third_incarnation() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.append(died())
        engine.worker.initialize_faults.append(died("killed again"))
        await five_requests(engine)
        await engine.settle()
        engine.kill_worker(1)
        engine.worker_ready(2)
        await engine.settle()
        assert len(engine.worker.configs) == 1
        engine.kill_worker(2)
        engine.worker_ready(3)
        await expect_all(frontend)
        assert (await engine.core.statistics()).num_worker_losses == 1


async def test_worker_that_comes_back_with_less_memory_gets_fewer_blocks() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        large = request("large", [1] * 100, 90)
        await engine.add(large, request("small", [2], 30))
        await frontend.num_tokens("small", 3)
        engine.worker.spec = KVCacheSpec(1 << 20, 5 << 20, 2048, 97)
        engine.worker.faults.append(died("out of memory"))
        await engine.settle()
        engine.kill_worker(1)
        engine.worker_ready(2)
        last = await frontend.last("large")
        assert last.error is not None and "need 12 KV blocks of 16, but there are 5" in last.error
        assert (await frontend.last("small")).finish_reason == "length"
        assert engine.worker.configs[1] == replace(LIMITS, num_blocks=5)


@pytest.mark.parametrize("event", [rt.GaveUp(rt.Cause("out of memory")), rt.Stopped()])
async def test_worker_given_up_ends_present_and_future_requests(event: rt.Event) -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.append(died())
        await five_requests(engine)
        await engine.settle()
        engine.kill_worker(1)
        engine.context.tell(engine.worker, event)
        why = "out of memory" if isinstance(event, rt.GaveUp) else "it was stopped"
        for message in MESSAGES:
            assert (await frontend.last(message.request_id)).error == f"the worker is gone for good: {why}"
        await engine.add(request("later", [1]))
        assert (await frontend.last("later")).error == f"the worker is gone for good: {why}"
        now = await engine.core.statistics()
        assert (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, 13)


@pytest.mark.parametrize("config", [CONFIG, TWO_PLANS])
@pytest.mark.parametrize("fault", [RAISED, rt.CallCancelled("cancelled")])
async def test_worker_that_raises_is_initialised_again_and_everything_goes_on(
    fault: rt.ActorError, config: SchedulerConfig
) -> None:
    async with started(config) as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.append(fault)
        await five_requests(engine)
        await expect_all(frontend)
        assert len(engine.worker.configs) == 2


@pytest.mark.parametrize(
    "answer", [StepResult(99, [], []), StepResult(1, [0, 1, 2, 3], [1, 2, 3, 4], [logprobs_of([1], [1], 1)] * 4)]
)
async def test_wrong_answer_of_the_worker_is_a_failure_of_the_worker(answer: StepResult) -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.answers.append(answer)
        await five_requests(engine)
        await expect_all(frontend)
        assert len(engine.worker.configs) == 2


async def test_request_at_which_the_worker_raises_ends_with_what_it_raised() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.extend([RAISED] * 3)
        await five_requests(engine)
        last = await frontend.last("r0")
        assert last.error is not None
        assert "it ran alone (PlanError in actor 'worker': row 7 is unknown): it is not tried again" in last.error
        for message in MESSAGES[1:]:
            assert (await frontend.last(message.request_id)).finish_reason == "length"


async def test_five_failures_in_a_row_end_the_engine() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.extend([RAISED] * 5)
        await five_requests(engine)
        assert engine.running is not None
        with pytest.raises(EngineFailed, match="the worker failed 5 times in a row: PlanError") as error:
            await engine.running
        assert error.value.__cause__ is RAISED
        assert {i: last.finish_reason for i, last in frontend.collected.last.items()} == {
            f"r{i}": "error" for i in range(3)
        }


async def test_failures_between_good_steps_do_not_add_up() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        for i in range(8):
            engine.worker.faults.append(RAISED)
            await engine.add(request(f"r{i}", [i]))
            assert (await frontend.last(f"r{i}")).finish_reason == "length"


async def test_worker_that_cannot_be_initialised_ends_the_engine() -> None:
    async with started() as engine:
        await engine.attach()
        engine.worker.initialize_faults.extend([RAISED] * 5)
        engine.kill_worker(1)
        engine.worker_ready(2)
        assert engine.running is not None
        with pytest.raises(EngineFailed, match="5 times in a row"):
            await engine.running


@pytest.mark.parametrize("config", [CONFIG, TWO_PLANS])
async def test_stop_ends_the_loop_and_its_watches(config: SchedulerConfig) -> None:
    async with started(config) as engine:
        await engine.attach()
        await five_requests(engine)
        await engine.settle()
    await engine.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cache_is_reset_and_its_events_are_told_on_request() -> None:
    async with started(replace(CONFIG, kv_event_log_size=100)) as engine:
        frontend, _ = await engine.attach()
        for name, cached in (("a", 0), ("b", 32)):
            await engine.add(request(name, [1] * 40, 3))
            await frontend.last(name)
            assert frontend.collected.first[name].num_cached_tokens == cached
        await engine.core.reset_prefix_cache()
        await engine.add(request("c", [1] * 40, 3))
        await frontend.last("c")
        assert frontend.collected.first["c"].num_cached_tokens == 0
        events = await engine.core.kv_cache_events(0)
        assert [event.kind for event in events.events] == ["stored", "stored", "cleared", "stored", "stored"]


async def test_two_plans_are_with_the_worker_at_a_time() -> None:
    async with started(TWO_PLANS) as engine:
        frontend, _ = await engine.attach()
        engine.worker.may_step.clear()
        await five_requests(engine)
        await engine.settle()
        assert [plan.step_id for plan in engine.worker.plans] == [1, 2]
        engine.worker.may_step.set()
        await expect_all(frontend)
        assert (await engine.core.statistics()).num_free_blocks == 13
