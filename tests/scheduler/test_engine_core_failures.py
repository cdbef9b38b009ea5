"""The engine core when its worker dies, misbehaves or is given up: every request ends, none hangs."""

from __future__ import annotations

import asyncio

import pytest
from engine_fakes import Engine, died, started
from scheduler_fakes import request, solo

import ringcast.actors as rt
from ringcast.scheduler.errors import EngineFailed
from ringcast.scheduler.messages import KVCacheConfig, StepResult

LIMITS = KVCacheConfig(13, 16, 4, 16, 200)
RAISED = rt.RemoteError("worker", "PlanError", "row 7 is unknown\nsecond line", "trace")


async def five_requests(engine: Engine) -> None:
    """Four run, the fifth waits for a row."""
    await engine.add(*(request(f"r{i}", [i], 30) for i in range(5)))


@pytest.mark.parametrize("told_first", [False, True])
async def test_death_of_the_worker_ends_what_ran_and_the_rest_goes_on(told_first: bool) -> None:
    """The call's error and the supervisor's word come in either order."""
    async with started() as engine:
        frontend, _ = await engine.attach()
        await five_requests(engine)
        await frontend.num_tokens("r0", 3)
        engine.worker.may_step.clear()
        await engine.worker.in_step.wait()
        engine.worker.faults.append(died("killed by signal 9"))
        if told_first:
            engine.kill_worker(1)
            engine.worker_ready(2)
            await engine.settle()
        engine.worker.may_step.set()
        for i in range(4):
            last = await frontend.last(f"r{i}")
            assert last.finish_reason == "error"
            assert last.error == "the worker ended while this request ran: killed by signal 9"
        if not told_first:
            await engine.settle()
            assert len(engine.worker.configs) == 1
            engine.kill_worker(1)
            engine.worker_ready(2)
        assert (await frontend.last("r4")).finish_reason == "length"
        assert frontend.collected.token_ids["r4"] == solo(request("r4", [4], 30), LIMITS)[0]
        assert engine.worker.configs == [LIMITS, LIMITS]
        assert (await engine.core.statistics()).num_free_blocks == 13


async def test_old_word_of_readiness_revives_nothing() -> None:
    """The watch still says `Ready(1)` when the call has failed: no second call before the next incarnation."""
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.append(died())
        await five_requests(engine)
        await frontend.last("r0")
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
        await frontend.last("r0")
        engine.kill_worker(1)
        engine.worker_ready(2)
        await engine.settle()
        assert len(engine.worker.configs) == 1
        engine.kill_worker(2)
        engine.worker_ready(3)
        assert (await frontend.last("r4")).finish_reason == "length"


@pytest.mark.parametrize("event", [rt.GaveUp(rt.Cause("out of memory")), rt.Stopped()])
async def test_worker_given_up_ends_present_and_future_requests(event: rt.Event) -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.append(died())
        await five_requests(engine)
        await frontend.last("r0")
        engine.kill_worker(1)
        engine.context.tell(engine.worker, event)
        why = "out of memory" if isinstance(event, rt.GaveUp) else "it was stopped"
        assert (await frontend.last("r4")).error == f"the worker is gone for good: {why}"
        await engine.add(request("later", [1]))
        assert (await frontend.last("later")).error == f"the worker is gone for good: {why}"
        now = await engine.core.statistics()
        assert (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, 13)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (RAISED, "PlanError in actor 'worker': row 7 is unknown"),
        (rt.CallCancelled("cancelled"), "cancelled"),
    ],
)
async def test_worker_that_raises_is_initialised_again_and_the_rest_goes_on(fault: rt.ActorError, text: str) -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.append(fault)
        await five_requests(engine)
        for i in range(4):
            last = await frontend.last(f"r{i}")
            assert last.error == f"the worker failed while this request ran: {text}"
        assert (await frontend.last("r4")).finish_reason == "length"
        assert len(engine.worker.configs) == 2


async def test_wrong_answer_of_the_worker_is_a_failure_of_the_worker() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.answers.append(StepResult(99, [], []))
        await five_requests(engine)
        last = await frontend.last("r0")
        assert last.error is not None and "answered step 99" in last.error
        assert (await frontend.last("r4")).finish_reason == "length"


async def test_three_failures_in_a_row_end_the_engine_after_everybody_was_told() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.faults.extend([RAISED, RAISED, RAISED])
        await engine.add(*(request(f"r{i}", [i], 30) for i in range(12)))
        assert engine.running is not None
        with pytest.raises(EngineFailed, match="the worker failed 3 times in a row: PlanError") as error:
            await engine.running
        assert error.value.__cause__ is RAISED
        assert {i: last.finish_reason for i, last in frontend.collected.last.items()} == {
            f"r{i}": "error" for i in range(12)
        }


async def test_failures_between_good_steps_do_not_add_up() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        for i in range(5):
            engine.worker.faults.append(RAISED)
            await engine.add(request(f"bad{i}", [i]))
            assert (await frontend.last(f"bad{i}")).finish_reason == "error"
            await engine.add(request(f"good{i}", [i]))
            assert (await frontend.last(f"good{i}")).finish_reason == "length"


async def test_worker_that_cannot_be_initialised_ends_the_engine() -> None:
    async with started() as engine:
        await engine.attach()
        engine.worker.initialize_faults.extend([RAISED, RAISED, RAISED])
        engine.kill_worker(1)
        engine.worker_ready(2)
        assert engine.running is not None
        with pytest.raises(EngineFailed, match="3 times in a row"):
            await engine.running


async def test_stop_ends_the_loop_and_its_watches() -> None:
    async with started() as engine:
        await engine.attach()
        await five_requests(engine)
        await engine.settle()
    await engine.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}
