"""Plans that are made before the results of earlier ones are known: the same outputs, the same accounts."""

from __future__ import annotations

import pytest
from scheduler_fakes import Engine, limits, request, solo

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.errors import ResultError


@pytest.mark.parametrize("in_flight", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [10, 30])
@pytest.mark.parametrize("budget", [16, 17, 64])
def test_outputs_are_those_of_the_solo_run(in_flight: int, num_blocks: int, budget: int) -> None:
    engine = Engine(limits(num_blocks, max_num_seqs=6, max_num_batched_tokens=budget))
    messages = [
        request(f"r{i}", [i % 5] * (1 + i * 7 % 60), 10 + i * 3, seed=i % 4, stop=[3, 50], min_tokens=i % 7)
        for i in range(20)
    ]
    engine.add(*messages)
    engine.run(in_flight)
    engine.expect_solo(*messages)
    engine.expect_empty()


def test_next_step_is_planned_before_the_token_is_known() -> None:
    engine = Engine()
    engine.add(request("a", [1] * 20, max_tokens=4))
    first, second, third = engine.plan(), engine.plan(), engine.plan()
    assert [plan.num_tokens for plan in (first, second, third)] == [[20], [1], [1]]
    assert [plan.step_id for plan in (first, second, third)] == [1, 2, 3]
    engine.plan()
    assert engine.scheduler.schedule() is None  # the fourth token is the last: there is nothing to compute
    for _ in range(4):
        engine.finish()
    engine.expect_solo(request("a", [1] * 20, max_tokens=4))
    assert engine.scheduler.schedule() is None


def test_draw_behind_the_end_of_a_request_is_dropped() -> None:
    third = solo(request("a", [5], 9), limits())[0][2]
    a, b = request("a", [5], 9, eos=[third]), request("b", [6], 9)
    engine = Engine()
    engine.add(a, b)
    engine.run(in_flight=2)
    engine.expect_solo(a, b)
    assert engine.scheduler.statistics().num_generated_tokens == len(solo(a, limits())[0]) + 9


def test_row_and_blocks_of_a_request_that_ended_are_not_used_under_the_step_in_flight() -> None:
    second = solo(request("a", [5] * 15, 9), limits())[0][1]
    engine = Engine(limits(2, max_num_seqs=1))
    a, b = request("a", [5] * 15, 9, eos=[second]), request("b", [6] * 20, 5)
    engine.add(a, b)
    engine.plan()
    engine.plan()
    engine.plan()  # of a token behind the end, as will turn out
    engine.finish()
    engine.finish()
    assert engine.collected.last["a"].finish_reason == "stop"
    assert engine.scheduler.statistics().num_free_blocks == 0
    assert engine.scheduler.schedule() is None  # b has to wait for the blocks that step 3 writes
    engine.finish()
    plan = engine.plan()
    assert (plan.freed_rows, plan.rows, plan.new_rows[0].token_ids) == ([0], [0], [6] * 20)
    engine.finish()
    engine.run(2)
    engine.expect_solo(a, b)
    engine.expect_empty()


def test_nobody_gives_way_while_a_step_is_in_flight() -> None:
    engine = Engine(limits(4))
    a, b = request("a", [1] * 31, 20), request("b", [2] * 31, 20)
    engine.add(a, b)
    engine.step()
    engine.plan()
    free = engine.scheduler.statistics().num_free_blocks
    assert free == 0
    assert engine.scheduler.schedule() is None  # a third block for one of them is the other's
    assert engine.scheduler.statistics().num_preemptions == 0
    engine.finish()
    assert engine.plan().rows == [0]
    assert engine.scheduler.statistics().num_preemptions == 1
    engine.finish()
    engine.run(2)
    engine.expect_solo(a, b)


def test_plan_that_came_to_nothing_leaves_no_trace() -> None:
    """The first of three gets the last block, the second none: the first gives it back."""
    engine = Engine(limits(7))
    messages = [request(f"r{i}", [i + 1] * 31, 20) for i in range(3)]
    engine.add(*messages)
    engine.step()
    engine.plan()
    before = engine.scheduler.statistics()
    assert before.num_free_blocks == 1
    for _ in range(3):
        assert engine.scheduler.schedule() is None
        engine.scheduler.check()
        assert engine.scheduler.statistics() == before
    engine.finish()
    engine.run(2)
    engine.expect_solo(*messages)
    engine.expect_empty()


def test_abort_with_two_steps_in_flight() -> None:
    engine = Engine(limits(10))
    other = request("other", [8] * 10, 12)
    engine.add(request("a", [1] * 40), other)
    engine.plan()
    engine.plan()
    engine.abort("a")
    engine.finish()
    engine.finish()
    engine.run(2)
    engine.expect_solo(other)
    engine.expect_empty()


def test_loss_with_two_steps_in_flight_counts_once() -> None:
    engine = Engine()
    messages = [request(f"r{i}", [i] * 10, 12) for i in range(3)]
    engine.add(*messages)
    engine.plan()
    engine.finish()
    engine.plan()
    engine.plan()
    engine.lose_worker()
    assert engine.scheduler.statistics().num_quarantined == 0
    engine.run(2)
    engine.expect_solo(*messages)


def test_suspect_with_two_plans_in_flight() -> None:
    engine = Engine(limits(max_num_batched_tokens=16), poison=90)
    messages = [request(f"r{i}", [i] * 20, 3) for i in range(3)]
    assert all(90 not in solo(message, engine.sizes)[0] for message in messages)
    engine.add(*messages, request("poison", [1] * 20 + [90]))
    engine.run_through_losses()
    engine.expect_solo(*messages)
    assert engine.collected.last["poison"].finish_reason == "error"


def test_results_come_in_the_order_of_the_plans() -> None:
    engine = Engine()
    engine.add(request("a", [1] * 10))
    engine.plan()
    results = [engine.worker.execute(engine.plans[0]), engine.worker.execute(engine.plan())]
    with pytest.raises(ResultError, match="answered step 2 .* the oldest in flight is step 1"):
        engine.scheduler.update(results[1])
    for result in results:
        engine.collected.take(engine.scheduler.update(result))
    engine.plans.clear()
    engine.run(2)
    engine.expect_solo(request("a", [1] * 10))


def test_block_that_a_pending_token_fills_is_cached_when_the_token_is_known() -> None:
    engine = Engine(config=SchedulerConfig(max_plans_in_flight=3))
    first = request("first", [4] * 10, 40)
    engine.add(first)
    engine.run(in_flight=3)
    outputs = solo(first, engine.sizes)[0]
    engine.add(request("again", [4] * 10 + outputs, 1))
    engine.run()
    assert engine.collected.first["again"].num_cached_tokens == 48
