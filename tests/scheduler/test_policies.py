"""Who goes first and who gives way: arrival or priority, the cap on long prompts, and what is counted."""

from __future__ import annotations

import pytest
from scheduler_fakes import VOCAB_SIZE, Engine, limits, request

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.policy import WaitingQueue
from ringcast.scheduler.scheduler import Scheduler

PRIORITY = SchedulerConfig(scheduling_policy="priority")


def order_of_entry(engine: Engine) -> list[int]:
    """Run to the end; the first tokens of the prompts that entered, in order."""
    entered = []
    while (plan := engine.scheduler.schedule()) is not None:
        engine.plans.append(plan)
        entered += [new.token_ids[0] for new in plan.new_rows]
        engine.finish()
    return entered


def test_first_come_first_served_looks_at_no_priority() -> None:
    engine = Engine(limits(max_num_seqs=1))
    engine.add(*(request(f"r{i}", [i], 2, priority=-i) for i in range(5)))
    assert order_of_entry(engine) == [0, 1, 2, 3, 4]


def test_lower_priority_number_goes_first_and_equals_by_arrival() -> None:
    engine = Engine(limits(max_num_seqs=1), PRIORITY)
    engine.add(*(request(f"r{i}", [i], 2, priority=p) for i, p in enumerate([5, 0, 5, -1, 0])))
    assert order_of_entry(engine) == [3, 1, 4, 0, 2]


def test_worst_priority_gives_way_even_if_it_came_first_and_was_planned() -> None:
    engine = Engine(limits(10), PRIORITY)
    first, second = request("first", [1] * 70, 20, priority=1), request("second", [2] * 75, 20, priority=0)
    engine.add(first, second)
    engine.step(6)
    # Both had five full blocks; "second" had entered first, so "first" finds none for itself and waits.
    while engine.scheduler.statistics().num_preemptions == 0:
        plan = engine.plan()
        engine.finish()
    assert (plan.rows, plan.num_tokens, plan.freed_rows) == ([0], [1], [1])
    engine.run()
    engine.expect_solo(first, second)


def test_victim_that_was_planned_already_leaves_the_plan() -> None:
    engine = Engine(limits(10, max_num_batched_tokens=256), PRIORITY)
    low, high = request("low", [1] * 70, 20, priority=1), request("high", [2] * 75, 20, priority=0)
    engine.add(low)
    engine.step()
    engine.add(high)
    while engine.scheduler.statistics().num_preemptions == 0:
        plan = engine.plan()
        engine.finish()
    # "low" stands first among the running and was planned; "high" needed a block and took its place.
    assert (plan.rows, plan.num_tokens, plan.freed_rows) == ([1], [1], [0])
    engine.run()
    engine.expect_solo(low, high)
    engine.expect_empty()


def test_blocks_that_a_planned_victim_was_to_fill_are_not_found() -> None:
    """Its step never ran, so nothing of it may count as computed. The fake worker reads what is found."""
    engine = Engine(limits(6, block_size=4, max_num_batched_tokens=64), PRIORITY)
    low, high = request("low", [1] * 11, 6, priority=1), request("high", [2] * 12, 8, priority=0)
    engine.add(low)
    engine.step()
    engine.add(high)
    engine.run()
    engine.expect_solo(low, high)


def test_preempted_request_comes_back_before_later_ones_of_its_priority() -> None:
    engine = Engine(limits(10, max_num_seqs=2), PRIORITY)
    messages = [request(f"r{i}", [i] * 3, 120, priority=i // 2) for i in range(4)]
    engine.add(*messages)
    entered = order_of_entry(engine)
    engine.expect_solo(*messages)
    assert entered[:2] == [0, 1] and entered.index(2) > 2
    assert engine.scheduler.statistics().num_preemptions >= 1


def test_long_prompt_is_capped_so_that_the_short_one_behind_it_starts_at_once() -> None:
    engine = Engine(limits(), SchedulerConfig(long_prefill_token_threshold=10))
    long, short = request("long", [1] * 50, 3), request("short", [2] * 5, 3)
    engine.add(long, short)
    assert engine.plan().num_tokens == [10, 5]
    engine.finish()
    assert engine.plan().num_tokens == [10, 1]
    engine.finish()
    engine.run()
    engine.expect_solo(long, short)


@pytest.mark.parametrize("threshold", [1, 3, 16, 64, 1000])
def test_cap_changes_no_output(threshold: int) -> None:
    engine = Engine(limits(20), SchedulerConfig(long_prefill_token_threshold=threshold))
    messages = [request(f"r{i}", [i] * (1 + 13 * i), 10, seed=i) for i in range(8)]
    engine.add(*messages)
    engine.run()
    engine.expect_solo(*messages)
    engine.expect_empty()


def test_queue_time_and_counts() -> None:
    now = [100.0]
    scheduler = Scheduler(limits(max_num_seqs=1), VOCAB_SIZE, clock=lambda: now[0])
    engine = Engine(limits(max_num_seqs=1))
    engine.scheduler = scheduler
    engine.add(request("a", [1], 2), request("b", [2], 2))
    engine.scheduler.add(request("refused", []))
    now[0] = 103.0
    engine.step()
    assert engine.collected.first["a"].queue_time_s == 3.0
    now[0] = 105.5
    engine.run()
    assert engine.collected.first["b"].queue_time_s == 5.5
    told = engine.scheduler.statistics()
    assert (told.num_started, told.queue_time_s) == (2, 8.5)
    assert (told.num_finished, told.num_failed, told.num_aborted) == (3, 1, 0)


def test_statistics_tell_the_accounts() -> None:
    engine = Engine(limits(max_num_seqs=2))
    engine.add(*(request(f"r{i}", [1] * 17, max_tokens=2) for i in range(3)))
    engine.step()
    now = engine.scheduler.statistics()
    assert (now.num_running, now.num_waiting, now.num_free_blocks, now.num_blocks) == (2, 1, 61, 64)
    assert (now.num_steps, now.num_preemptions, now.num_generated_tokens) == (1, 0, 2)
    assert (now.num_looked_up_tokens, now.num_cached_tokens, now.num_cached_blocks) == (34, 16, 1)


def test_waiting_queue_gives_the_lowest_rank_whatever_left_from_its_middle() -> None:
    engine = Engine(limits(max_num_seqs=1), PRIORITY)
    engine.add(*(request(f"r{i}", [i], 1, priority=(i * 7) % 10) for i in range(40)))
    queue: WaitingQueue = engine.scheduler._waiting
    engine.abort(*(f"r{i}" for i in range(0, 40, 3)))
    kept = [i for i in range(40) if i % 3]
    assert order_of_entry(engine) == sorted(kept, key=lambda i: ((i * 7) % 10, i))
    assert len(queue) == 0 and list(queue) == []
