"""The scheduler against a worker that computes tokens from its KV blocks: outputs are those of the request alone."""

from __future__ import annotations

import re

import pytest
from scheduler_fakes import Collected, ModelWorker, limits, request, run_all, solo

from ringcast.scheduler.errors import AccountError, ResultError
from ringcast.scheduler.messages import AddRequest, KVCacheConfig, RequestOutput, StepResult
from ringcast.scheduler.request import Request
from ringcast.scheduler.scheduler import Scheduler


def engine(sizes: KVCacheConfig) -> tuple[Scheduler, ModelWorker]:
    return Scheduler(sizes, vocab_size=97), ModelWorker(sizes)


def run(sizes: KVCacheConfig, *messages: AddRequest) -> tuple[Collected, Scheduler, ModelWorker]:
    """Add all, run to the end, and compare each with its solo run."""
    scheduler, worker = engine(sizes)
    for message in messages:
        assert scheduler.add(message) is None
    collected = run_all(scheduler, worker)
    for message in messages:
        tokens, reason, stop_reason = solo(message, sizes)
        last = collected.last[message.request_id]
        assert collected.token_ids[message.request_id] == tokens
        assert (last.finish_reason, last.stop_reason) == (reason, stop_reason)
    assert scheduler.statistics().num_free_blocks == sizes.num_blocks
    return collected, scheduler, worker


def test_one_request_is_a_prefill_and_then_one_token_a_step() -> None:
    scheduler, worker = engine(limits())
    scheduler.add(request("a", list(range(20)), max_tokens=3))
    plan = scheduler.schedule()
    assert plan is not None
    assert (plan.step_id, plan.rows, plan.num_tokens, plan.sample) == (1, [0], [20], [True])
    assert plan.new_rows[0].token_ids == list(range(20))
    assert plan.new_rows[0].block_ids == [0, 1]
    assert plan.new_block_ids == [[]]
    scheduler.update(worker.execute(plan))
    plan = scheduler.schedule()
    assert plan is not None
    assert (plan.step_id, plan.new_rows, plan.rows, plan.num_tokens) == (2, [], [0], [1])
    outputs = scheduler.update(worker.execute(plan))
    assert outputs[1].step_id == 2
    plan = scheduler.schedule()
    assert plan is not None
    outputs = scheduler.update(worker.execute(plan))
    assert outputs[1].outputs[0].finish_reason == "length"
    assert scheduler.schedule() is None


@pytest.mark.parametrize("budget", [16, 17, 64, 100, 1000, 1001, 1002])
def test_long_prompt_gives_the_same_tokens_at_every_budget(budget: int) -> None:
    prompt = [i * 7 % 97 for i in range(1001)]
    _, scheduler, _ = run(limits(max_num_batched_tokens=budget), request("a", prompt, max_tokens=4))
    assert scheduler.statistics().num_steps == -(-1001 // budget) + 3


def test_mixed_lengths_share_the_budget_and_finish_like_alone() -> None:
    messages = [request(f"r{i}", [i] * (i * 5 + 1), max_tokens=i + 1, seed=i) for i in range(20)]
    run(limits(max_num_seqs=6, max_num_batched_tokens=17), *messages)


def test_running_requests_go_before_the_chunks_of_a_long_prompt() -> None:
    sizes = limits(max_num_batched_tokens=16)
    scheduler, worker = engine(sizes)
    collected = Collected()
    for i in range(4):
        scheduler.add(request(f"short{i}", [i, 1, 2], max_tokens=50))
    plan = scheduler.schedule()
    assert plan is not None and plan.num_tokens == [3, 3, 3, 3]
    collected.take(scheduler.update(worker.execute(plan)))
    long = request("long", [5] * 300, max_tokens=2)
    scheduler.add(long)
    for _ in range(10):  # every short one gets its token in every step, the long one what is left
        plan = scheduler.schedule()
        assert plan is not None and plan.num_tokens == [1, 1, 1, 1, 12]
        collected.take(scheduler.update(worker.execute(plan)))
        assert [len(collected.token_ids[f"short{i}"]) for i in range(4)] == [plan.step_id] * 4
    run_all(scheduler, worker, collected)
    assert collected.token_ids["long"] == solo(long, sizes)[0]


def test_two_requests_that_each_fill_six_of_ten_blocks() -> None:
    a = request("a", [1] * 10, max_tokens=86, seed=1)  # 96 tokens, six blocks
    b = request("b", [2] * 10, max_tokens=86, seed=2)
    for budget in (16, 17, 64):
        _, scheduler, _ = run(limits(10, max_num_batched_tokens=budget), a, b)
        assert scheduler.statistics().num_preemptions >= 1


def test_short_prompt_preempted_after_a_hundred_outputs() -> None:
    sizes = limits(10, max_num_batched_tokens=64)
    first = request("first", [3, 1, 4], max_tokens=150)
    second = request("second", [2, 7, 1], max_tokens=150)
    _, scheduler, worker = run(sizes, first, second)
    # Both grow side by side to five blocks (80 tokens); then the second gives way and is computed again.
    assert scheduler.statistics().num_preemptions == 1
    assert worker.num_computed_tokens == 2 * 152 + 80


def test_last_of_the_running_gives_way_and_comes_back_before_the_waiting() -> None:
    sizes = limits(6, max_num_seqs=2)
    scheduler, worker = engine(sizes)
    for name in "abc":
        scheduler.add(request(name, [1] * 3, max_tokens=60, seed=ord(name)))
    collected = Collected()
    order: list[list[int]] = []
    preempting: list[tuple[list[int], list[int]]] = []
    num_preemptions = 0
    while (plan := scheduler.schedule()) is not None:
        order += [new.token_ids for new in plan.new_rows]
        if scheduler.statistics().num_preemptions > num_preemptions:
            num_preemptions = scheduler.statistics().num_preemptions
            preempting.append((plan.rows, plan.freed_rows))
            assert plan.new_rows == []  # c would fit into the row and the blocks that b left, but has to wait
        collected.take(scheduler.update(worker.execute(plan)))
    tokens = {name: solo(request(name, [1] * 3, 60, seed=ord(name)), sizes)[0] for name in "abc"}
    assert preempting[0] == ([0], [1])
    # a and b have 48 tokens each when the six blocks are full: b comes back with 48 and one not computed, then c.
    assert order[:3] == [[1] * 3, [1] * 3, [1] * 3 + tokens["b"][:46]]
    assert order[3] == [1] * 3
    assert collected.token_ids == tokens


def test_many_short_prompts_around_a_long_one_with_few_blocks() -> None:
    messages = [request(f"r{i}", [i] * 3, max_tokens=30, seed=i) for i in range(12)]
    messages.insert(6, request("long", [9] * 120, max_tokens=30))
    for budget in (16, 17, 64):
        run(limits(10, max_num_batched_tokens=budget), *messages)


def test_waiting_request_does_not_start_before_all_its_present_tokens_fit() -> None:
    """It would take blocks for a chunk and be preempted at the next: work without progress."""
    scheduler, worker = engine(limits(10, max_num_batched_tokens=16))
    scheduler.add(request("a", [1] * 70, max_tokens=20))
    scheduler.add(request("b", [2] * 90, max_tokens=2))
    run_all(scheduler, worker)
    assert scheduler.statistics().num_preemptions == 0


def test_pool_of_one_block_serves_one_after_the_other() -> None:
    messages = [request(f"r{i}", [i], max_tokens=16) for i in range(5)]
    run(limits(1), *messages)


def test_victim_that_was_planned_already_leaves_the_plan() -> None:
    """First come, first served takes the last, which is never planned; another policy may take an earlier one."""

    class FirstGivesWay(Scheduler):
        def _victim(self) -> Request:
            return next(iter(self._running.values()))

    sizes = limits(10)
    scheduler, worker = FirstGivesWay(sizes, vocab_size=97), ModelWorker(sizes)
    messages = [request("a", [1] * 70, max_tokens=20), request("b", [2] * 75, max_tokens=20)]
    for message in messages:
        scheduler.add(message)
    collected = Collected()
    num_preempted = 0
    while (plan := scheduler.schedule()) is not None:
        scheduler.check()
        if scheduler.statistics().num_preemptions > num_preempted:
            # Both had five full blocks; a was planned when b found none and took a's place.
            assert (plan.step_id, plan.rows, plan.num_tokens, plan.freed_rows) == (9, [1], [1], [0])
            num_preempted += 1
        collected.take(scheduler.update(worker.execute(plan)))
    assert num_preempted == 1
    for message in messages:
        assert collected.token_ids[message.request_id] == solo(message, sizes)[0]


def test_freed_row_is_forgotten_before_it_is_used_again() -> None:
    scheduler, worker = engine(limits(max_num_seqs=1))
    scheduler.add(request("a", [1], max_tokens=1))
    scheduler.add(request("b", [2], max_tokens=1))
    plan = scheduler.schedule()
    assert plan is not None and (plan.rows, plan.freed_rows) == ([0], [])
    scheduler.update(worker.execute(plan))
    plan = scheduler.schedule()
    assert plan is not None
    assert (plan.rows, plan.freed_rows, plan.new_rows[0].token_ids) == ([0], [0], [2])


def test_lists_of_a_plan_do_not_change_later() -> None:
    """An actor in the same process is given the plan itself, not a copy."""
    scheduler, worker = engine(limits())
    scheduler.add(request("a", [1] * 16, max_tokens=3))
    plan = scheduler.schedule()
    assert plan is not None
    run_result = worker.execute(plan)
    scheduler.update(run_result)
    scheduler.schedule()
    assert plan.new_rows[0].token_ids == [1] * 16
    assert plan.new_rows[0].block_ids == [0]


def first_outputs(prompt: list[int], count: int) -> list[int]:
    return solo(request("x", prompt, max_tokens=count), limits())[0]


def test_eos_stops_without_a_reason() -> None:
    third = first_outputs([5], 3)[2]
    collected, _, _ = run(limits(), request("a", [5], max_tokens=9, eos=[90, third], stop=[third]))
    assert (collected.last["a"].finish_reason, collected.last["a"].stop_reason) == ("stop", None)
    assert collected.token_ids["a"][-1] == third


def test_stop_token_stops_with_its_id_as_the_reason() -> None:
    third = first_outputs([5], 3)[2]
    collected, _, _ = run(limits(), request("a", [5], max_tokens=9, stop=[third]))
    assert (collected.last["a"].finish_reason, collected.last["a"].stop_reason) == ("stop", third)


def test_stop_in_a_chunked_prompt_does_not_count() -> None:
    run(limits(max_num_batched_tokens=16), request("a", [7] * 40, max_tokens=3, eos=[7]))


def test_max_tokens_is_clipped_by_the_longest_request() -> None:
    collected, _, _ = run(limits(max_model_len=32), request("a", [1] * 31, max_tokens=500))
    assert len(collected.token_ids["a"]) == 1
    assert collected.last["a"].finish_reason == "length"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (request("a", [1] * 32), "the prompt has 32 tokens, .* may have 32 .*: shorten it to 31 or less"),
        (request("a", [1] * 33), "the prompt has 33 tokens"),
        (request("a", []), "the prompt is empty"),
        (request("a", [1], max_tokens=0), "max_tokens=0: ask for at least 1"),
        (request("a", [1, 97]), "from 1 to 97: the model knows 0 to 96"),
        (request("a", [-1, 3]), "from -1 to 3"),
    ],
)
def test_request_that_can_never_run_is_refused(message: AddRequest, text: str) -> None:
    scheduler, _ = engine(limits(max_model_len=32))
    output = scheduler.add(message)
    assert output is not None and output.finish_reason == "error" and output.error is not None
    assert re.search(text, output.error)
    assert scheduler.schedule() is None


def test_request_that_needs_more_blocks_than_there_are_is_refused_and_the_others_go_on() -> None:
    sizes = limits(10)
    scheduler, worker = engine(sizes)
    fits = request("fits", [1] * 100, max_tokens=61)  # 161 tokens, of which 160 are computed
    assert scheduler.add(fits) is None
    output = scheduler.add(request("large", [1] * 100, max_tokens=62))
    assert output is not None and output.error is not None
    assert "may reach 162 tokens and need 11 KV blocks of 16, but there are 10" in output.error
    assert run_all(scheduler, worker).token_ids["fits"] == solo(fits, sizes)[0]


def test_id_in_use_is_refused_and_the_earlier_request_goes_on() -> None:
    sizes = limits()
    scheduler, worker = engine(sizes)
    first = request("a", [1, 2], max_tokens=4)
    scheduler.add(first)
    output = scheduler.add(request("a", [3]))
    assert output is not None and output.error == "request id 'a' is in use: choose another"
    assert run_all(scheduler, worker).token_ids["a"] == solo(first, sizes)[0]
    assert scheduler.add(request("a", [3])) is None


@pytest.mark.parametrize("known", [1, 5, 9])
def test_request_added_again_with_its_outputs_goes_on_where_it_was(known: int) -> None:
    sizes = limits(max_num_batched_tokens=16)
    whole = solo(request("a", [4] * 30, max_tokens=10), sizes)[0]
    scheduler, worker = engine(sizes)
    assert scheduler.add(request("a", [4] * 30, max_tokens=10, outputs=whole[:known])) is None
    collected = run_all(scheduler, worker)
    assert collected.token_ids["a"] == whole[known:]
    assert collected.last["a"].finish_reason == "length"


def test_request_added_again_when_complete_ends_at_once_with_its_reason() -> None:
    scheduler, _ = engine(limits())
    assert scheduler.add(request("a", [4], max_tokens=2, outputs=[8, 9])) == RequestOutput("a", [], "length")
    assert scheduler.add(request("a", [4], eos=[9], outputs=[8, 9])) == RequestOutput("a", [], "stop")
    assert scheduler.add(request("a", [4], stop=[9], outputs=[8, 9])) == RequestOutput("a", [], "stop", 9)
    assert scheduler.schedule() is None


def test_outputs_go_to_their_clients_in_one_message_each() -> None:
    scheduler, worker = engine(limits())
    for i in range(6):
        scheduler.add(request(f"r{i}", [i], client=i % 2))
    plan = scheduler.schedule()
    assert plan is not None
    outputs = scheduler.update(worker.execute(plan))
    ids = {client: [o.request_id for o in step.outputs] for client, step in outputs.items()}
    assert ids == {0: ["r0", "r2", "r4"], 1: ["r1", "r3", "r5"]}


def test_chunks_without_a_token_send_nothing() -> None:
    scheduler, worker = engine(limits(max_num_batched_tokens=16))
    scheduler.add(request("a", [1] * 40))
    plan = scheduler.schedule()
    assert plan is not None and plan.sample == [False]
    assert scheduler.update(worker.execute(plan)) == {}


def test_planning_while_a_step_is_in_flight_is_a_defect() -> None:
    scheduler, _ = engine(limits())
    scheduler.add(request("a", [1]))
    scheduler.schedule()
    with pytest.raises(AccountError, match="step 1 is in flight"):
        scheduler.schedule()


@pytest.mark.parametrize(
    "result",
    [
        StepResult(2, [0, 1], [5, 5]),
        StepResult(1, [1, 0], [5, 5]),
        StepResult(1, [0], [5]),
        StepResult(1, [0, 1], [5]),
        StepResult(1, [0, 1], [5, 97]),
        StepResult(1, [0, 1], [5, -1]),
    ],
)
def test_result_that_does_not_answer_the_plan_is_refused_and_changes_nothing(result: StepResult) -> None:
    scheduler, worker = engine(limits())
    messages = [request("a", [1]), request("b", [2])]
    for message in messages:
        scheduler.add(message)
    plan = scheduler.schedule()
    assert plan is not None
    with pytest.raises(ResultError):
        scheduler.update(result)
    collected = Collected()
    collected.take(scheduler.update(worker.execute(plan)))
    run_all(scheduler, worker, collected)
    assert all(collected.token_ids[m.request_id] == solo(m, limits())[0] for m in messages)


def test_result_without_a_step_is_refused() -> None:
    scheduler, _ = engine(limits())
    with pytest.raises(ResultError, match="in flight is no step"):
        scheduler.update(StepResult(0, [], []))


def test_request_whose_whole_life_is_recomputed_keeps_its_tokens() -> None:
    """Ten requests, blocks for two: everybody is preempted, nobody's output changes."""
    messages = [request(f"r{i}", [i] * 20, max_tokens=60, seed=i) for i in range(10)]
    _, scheduler, _ = run(limits(11, max_num_batched_tokens=64), *messages)
    assert scheduler.statistics().num_generated_tokens == 600


def test_statistics_tell_the_accounts() -> None:
    scheduler, worker = engine(limits(max_num_seqs=2))
    for i in range(3):
        scheduler.add(request(f"r{i}", [1] * 17, max_tokens=2))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.update(worker.execute(plan))
    now = scheduler.statistics()
    assert (now.num_running, now.num_waiting, now.num_free_blocks, now.num_blocks) == (2, 1, 60, 64)
    assert (now.num_steps, now.num_preemptions, now.num_generated_tokens) == (1, 0, 2)


def test_accounts_of_two_thousand_tiny_requests_return_to_the_start() -> None:
    scheduler, worker = engine(limits(16, max_num_seqs=8))
    collected = Collected()
    for i in range(2000):
        scheduler.add(request(f"r{i}", [i % 97], max_tokens=1 + i % 3))
        if i % 8 == 7:
            run_all(scheduler, worker, collected)
    assert len(collected.last) == 2000
    now = scheduler.statistics()
    assert (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, 16)
    assert not scheduler._requests and not scheduler._running and not scheduler._waiting
