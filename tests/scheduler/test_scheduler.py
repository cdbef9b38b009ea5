"""The scheduler against a worker that computes tokens from its KV blocks: outputs are those of the request alone."""

from __future__ import annotations

import re

import pytest
from scheduler_fakes import Engine, limits, request, solo

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.errors import ResultError
from ringcast.scheduler.messages import AddRequest, KVCacheConfig, RequestOutput, StepResult

UNCACHED = SchedulerConfig(enable_prefix_caching=False)


def run(sizes: KVCacheConfig, *messages: AddRequest, config: SchedulerConfig = UNCACHED) -> Engine:
    """Add all, run to the end, and compare each with its solo run."""
    engine = Engine(sizes, config)
    engine.add(*messages)
    engine.run()
    engine.expect_solo(*messages)
    engine.expect_empty()
    return engine


def test_one_request_is_a_prefill_and_then_one_token_a_step() -> None:
    engine = Engine()
    engine.add(request("a", list(range(20)), max_tokens=3))
    plan = engine.plan()
    assert (plan.step_id, plan.rows, plan.num_tokens, plan.sample) == (1, [0], [20], [True])
    assert plan.new_rows[0].token_ids == list(range(20))
    assert plan.new_rows[0].block_ids == [0, 1]
    assert (plan.new_rows[0].num_prompt_tokens, plan.new_rows[0].num_computed_tokens) == (20, 0)
    assert plan.new_block_ids == [[]]
    engine.finish(plan)
    plan = engine.plan()
    assert (plan.step_id, plan.new_rows, plan.rows, plan.num_tokens) == (2, [], [0], [1])
    outputs = engine.finish(plan)
    assert outputs[1].step_id == 2
    engine.step()
    assert engine.collected.last["a"].finish_reason == "length"
    assert engine.scheduler.schedule() is None


@pytest.mark.parametrize("budget", [16, 17, 64, 100, 1000, 1001, 1002])
def test_long_prompt_gives_the_same_tokens_at_every_budget(budget: int) -> None:
    prompt = [i * 7 % 97 for i in range(1001)]
    engine = run(limits(max_num_batched_tokens=budget), request("a", prompt, max_tokens=4))
    assert engine.scheduler.statistics().num_steps == -(-1001 // budget) + 3


def test_mixed_lengths_share_the_budget_and_finish_like_alone() -> None:
    messages = [request(f"r{i}", [i] * (i * 5 + 1), max_tokens=i + 1, seed=i) for i in range(20)]
    run(limits(max_num_seqs=6, max_num_batched_tokens=17), *messages)


def test_running_requests_go_before_the_chunks_of_a_long_prompt() -> None:
    engine = Engine(limits(max_num_batched_tokens=16))
    engine.add(*(request(f"short{i}", [i, 1, 2], max_tokens=50) for i in range(4)))
    assert engine.plan().num_tokens == [3, 3, 3, 3]
    engine.finish()
    long = request("long", [5] * 300, max_tokens=2)
    engine.add(long)
    for _ in range(10):  # every short one gets its token in every step, the long one what is left
        plan = engine.plan()
        assert plan.num_tokens == [1, 1, 1, 1, 12]
        engine.finish()
        assert [len(engine.collected.token_ids[f"short{i}"]) for i in range(4)] == [plan.step_id] * 4
    engine.run()
    engine.expect_solo(long)


def test_two_requests_that_each_fill_six_of_ten_blocks() -> None:
    a = request("a", [1] * 10, max_tokens=86, seed=1)  # 96 tokens, six blocks
    b = request("b", [2] * 10, max_tokens=86, seed=2)
    for budget in (16, 17, 64):
        engine = run(limits(10, max_num_batched_tokens=budget), a, b)
        assert engine.scheduler.statistics().num_preemptions >= 1


def test_short_prompt_preempted_after_a_hundred_outputs() -> None:
    sizes = limits(10, max_num_batched_tokens=64)
    first = request("first", [3, 1, 4], max_tokens=150)
    second = request("second", [2, 7, 1], max_tokens=150)
    engine = run(sizes, first, second)
    # Both grow side by side to five blocks (80 tokens); then the second gives way and is computed again.
    assert engine.scheduler.statistics().num_preemptions == 1
    assert engine.worker.num_computed_tokens == 2 * 152 + 80
    # With a prefix cache it finds what is left of its blocks, which is more the earlier it comes back.
    cached = run(sizes, first, second, config=SchedulerConfig())
    assert cached.worker.num_computed_tokens <= 2 * 152 + 80


def test_last_of_the_running_gives_way_and_comes_back_before_the_waiting() -> None:
    sizes = limits(6, max_num_seqs=2)
    engine = Engine(sizes, UNCACHED)
    messages = [request(name, [1] * 3, max_tokens=60, seed=ord(name)) for name in "abc"]
    engine.add(*messages)
    order: list[list[int]] = []
    preempting: list[tuple[list[int], list[int]]] = []
    num_preemptions = 0
    while (plan := engine.scheduler.schedule()) is not None:
        engine.plans.append(plan)
        order += [new.token_ids for new in plan.new_rows]
        if engine.scheduler.statistics().num_preemptions > num_preemptions:
            num_preemptions = engine.scheduler.statistics().num_preemptions
            preempting.append((plan.rows, plan.freed_rows))
            assert plan.new_rows == []  # c would fit into the row and the blocks that b left, but has to wait
        engine.finish()
    tokens = {name: solo(request(name, [1] * 3, 60, seed=ord(name)), sizes)[0] for name in "abc"}
    assert preempting[0] == ([0], [1])
    # a and b have 48 tokens each when the six blocks are full: b comes back with 48 and one not computed, then c.
    assert order[:3] == [[1] * 3, [1] * 3, [1] * 3 + tokens["b"][:46]]
    assert order[3] == [1] * 3
    engine.expect_solo(*messages)


def test_many_short_prompts_around_a_long_one_with_few_blocks() -> None:
    messages = [request(f"r{i}", [i] * 3, max_tokens=30, seed=i) for i in range(12)]
    messages.insert(6, request("long", [9] * 120, max_tokens=30))
    for budget in (16, 17, 64):
        run(limits(10, max_num_batched_tokens=budget), *messages)


def test_waiting_request_does_not_start_before_all_its_present_tokens_fit() -> None:
    """It would take blocks for a chunk and be preempted at the next: work without progress."""
    engine = run(
        limits(10, max_num_batched_tokens=16),
        request("a", [1] * 70, max_tokens=20),
        request("b", [2] * 90, max_tokens=2),
    )
    assert engine.scheduler.statistics().num_preemptions == 0


def test_pool_of_one_block_serves_one_after_the_other() -> None:
    run(limits(1), *(request(f"r{i}", [i], max_tokens=16) for i in range(5)))


def test_freed_row_is_forgotten_before_it_is_used_again() -> None:
    engine = Engine(limits(max_num_seqs=1))
    engine.add(request("a", [1], max_tokens=1), request("b", [2], max_tokens=1))
    plan = engine.plan()
    assert (plan.rows, plan.freed_rows) == ([0], [])
    engine.finish()
    plan = engine.plan()
    assert (plan.rows, plan.freed_rows, plan.new_rows[0].token_ids) == ([0], [0], [2])


def test_lists_of_a_plan_do_not_change_later() -> None:
    """An actor in the same process is given the plan itself, not a copy."""
    engine = Engine()
    engine.add(request("a", [1] * 16, max_tokens=3))
    plan = engine.plan()
    engine.finish()
    engine.plan()
    assert plan.new_rows[0].token_ids == [1] * 16
    assert plan.new_rows[0].block_ids == [0]
    assert plan.rows == [0] and plan.num_tokens == [16]


def first_outputs(prompt: list[int], count: int) -> list[int]:
    return solo(request("x", prompt, max_tokens=count), limits())[0]


def test_eos_stops_without_a_reason() -> None:
    third = first_outputs([5], 3)[2]
    collected = run(limits(), request("a", [5], max_tokens=9, eos=[90, third], stop=[third])).collected
    assert (collected.last["a"].finish_reason, collected.last["a"].stop_reason) == ("stop", None)
    assert collected.token_ids["a"][-1] == third


def test_stop_token_stops_with_its_id_as_the_reason() -> None:
    third = first_outputs([5], 3)[2]
    collected = run(limits(), request("a", [5], max_tokens=9, stop=[third])).collected
    assert (collected.last["a"].finish_reason, collected.last["a"].stop_reason) == ("stop", third)


def test_stop_in_a_chunked_prompt_does_not_count() -> None:
    run(limits(max_num_batched_tokens=16), request("a", [7] * 40, max_tokens=3, eos=[7]))


def test_max_tokens_is_clipped_by_the_longest_request() -> None:
    collected = run(limits(max_model_len=32), request("a", [1] * 31, max_tokens=500)).collected
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
    engine = Engine(limits(max_model_len=32))
    output = engine.scheduler.add(message)
    assert output is not None and output.finish_reason == "error" and output.error is not None
    assert re.search(text, output.error)
    assert engine.scheduler.schedule() is None


def test_request_that_needs_more_blocks_than_there_are_is_refused_and_the_others_go_on() -> None:
    engine = Engine(limits(10))
    fits = request("fits", [1] * 100, max_tokens=61)  # 161 tokens, of which 160 are computed
    engine.add(fits)
    output = engine.scheduler.add(request("large", [1] * 100, max_tokens=62))
    assert output is not None and output.error is not None
    assert "may reach 162 tokens and need 11 KV blocks of 16, but there are 10" in output.error
    engine.run()
    engine.expect_solo(fits)


def test_id_in_use_is_refused_and_the_earlier_request_goes_on() -> None:
    engine = Engine()
    first = request("a", [1, 2], max_tokens=4)
    engine.add(first)
    output = engine.scheduler.add(request("a", [3]))
    assert output is not None and output.error == "request id 'a' is in use: choose another"
    engine.run()
    engine.expect_solo(first)
    assert engine.scheduler.add(request("a", [3])) is None


@pytest.mark.parametrize("known", [1, 5, 9])
def test_request_added_again_with_its_outputs_goes_on_where_it_was(known: int) -> None:
    sizes = limits(max_num_batched_tokens=16)
    whole = solo(request("a", [4] * 30, max_tokens=10), sizes)[0]
    engine = Engine(sizes)
    again = request("a", [4] * 30, max_tokens=10, outputs=whole[:known])
    engine.add(again)
    new = engine.plan().new_rows[0]
    assert (new.token_ids, new.num_prompt_tokens) == ([4] * 30 + whole[:known], 30)
    engine.run()
    engine.expect_solo(again)
    assert engine.collected.first["a"].start == known


def test_request_added_again_when_complete_ends_at_once_with_its_reason() -> None:
    add = Engine().scheduler.add
    assert add(request("a", [4], max_tokens=2, outputs=[8, 9])) == RequestOutput("a", [], "length", start=2)
    assert add(request("a", [4], eos=[9], outputs=[8, 9])) == RequestOutput("a", [], "stop", start=2)
    assert add(request("a", [4], stop=[9], outputs=[8, 9])) == RequestOutput("a", [], "stop", 9, start=2)
    assert add(request("a", [4], eos=[9], min_tokens=3, outputs=[8, 9])) is None


def test_outputs_go_to_their_clients_in_one_message_each() -> None:
    engine = Engine()
    engine.add(*(request(f"r{i}", [i], client=i % 2) for i in range(6)))
    for _ in range(2):  # the first and the second token come in different forms
        engine.plan()
        outputs = engine.finish()
        ids = {client: [o.request_id for o in step.each()] for client, step in outputs.items()}
        assert ids == {0: ["r0", "r2", "r4"], 1: ["r1", "r3", "r5"]}


def test_tokens_in_the_middle_of_a_request_travel_in_columns() -> None:
    engine = Engine()
    engine.add(request("a", [1], max_tokens=3, client=0), request("b", [2], max_tokens=4, client=0))
    shapes = []
    for _ in range(4):
        engine.plan()
        outputs = engine.finish()[0]
        shapes.append(([o.request_id for o in outputs.outputs], outputs.request_ids, outputs.starts))
    assert shapes == [(["a", "b"], [], []), ([], ["a", "b"], [1, 1]), (["a"], ["b"], [2]), (["b"], [], [])]


def test_chunks_without_a_token_send_nothing() -> None:
    engine = Engine(limits(max_num_batched_tokens=16))
    engine.add(request("a", [1] * 40))
    assert engine.plan().sample == [False]
    assert engine.finish() == {}


@pytest.mark.parametrize(
    "result",
    [
        StepResult(2, [0, 1], [5, 5]),
        StepResult(1, [1, 0], [5, 5]),
        StepResult(1, [0], [5]),
        StepResult(1, [0, 1], [5]),
        StepResult(1, [0, 1], [5, 97]),
        StepResult(1, [0, 1], [5, -1]),
        StepResult(1, [0, 1], [5, 5], logprobs=[None]),
    ],
)
def test_result_that_does_not_answer_the_plan_is_refused_and_changes_nothing(result: StepResult) -> None:
    engine = Engine()
    messages = [request("a", [1]), request("b", [2])]
    engine.add(*messages)
    engine.plan()
    with pytest.raises(ResultError):
        engine.scheduler.update(result)
    engine.finish()
    engine.run()
    engine.expect_solo(*messages)


def test_result_without_a_step_is_refused() -> None:
    with pytest.raises(ResultError, match="answered step 3, but none is in flight"):
        Engine().scheduler.update(StepResult(3, [], []))


def test_request_whose_whole_life_is_recomputed_keeps_its_tokens() -> None:
    """Ten requests, blocks for two: everybody is preempted, nobody's output changes."""
    messages = [request(f"r{i}", [i] * 20, max_tokens=60, seed=i) for i in range(10)]
    for config in (UNCACHED, SchedulerConfig()):
        engine = run(limits(11, max_num_batched_tokens=64), *messages, config=config)
        assert engine.scheduler.statistics().num_generated_tokens == 600
