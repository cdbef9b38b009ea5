"""The worker dies: everything that ran goes on token for token, and what kills it again and again is found."""

from __future__ import annotations

import pytest
from scheduler_fakes import Engine, PoisonError, limits, request, solo

from ringcast.scheduler.config import SchedulerConfig

POISON = 90
SIZES = limits(20, max_num_seqs=4, max_num_batched_tokens=64)


def streams(count: int, max_tokens: int = 12) -> list:
    """Requests that neither hold the poison nor draw it."""
    found, seed = [], 0
    while len(found) < count:
        message = request(f"r{len(found)}", [len(found) + 1] * 5, max_tokens, seed=seed)
        seed += 1
        if POISON not in solo(message, SIZES)[0]:
            found.append(message)
    return found


@pytest.mark.parametrize("in_flight", [True, False])
def test_everything_goes_on_where_it_was(in_flight: bool) -> None:
    engine = Engine(SIZES)
    messages = streams(6)  # four run, two wait
    engine.add(*messages)
    engine.step(3)
    if in_flight:
        engine.plan()
    engine.lose_worker()
    assert {i: len(tokens) for i, tokens in engine.collected.token_ids.items()} == {f"r{i}": 3 for i in range(4)}
    now = engine.scheduler.statistics()
    assert (now.num_running, now.num_waiting, now.num_free_blocks, now.num_worker_losses) == (0, 6, 20, 1)
    plan = engine.plan()
    assert plan.step_id == (5 if in_flight else 4)
    assert plan.freed_rows == []
    assert [len(new.token_ids) for new in plan.new_rows] == [8, 8, 8, 8]
    assert [new.num_computed_tokens for new in plan.new_rows] == [0, 0, 0, 0]  # the cache died with the worker
    engine.finish()
    engine.run()
    engine.expect_solo(*messages)
    engine.expect_empty()


def test_first_output_is_told_once() -> None:
    """What belongs to it (cached tokens, queue time) does not come again behind a loss."""
    engine = Engine()
    a, b = request("a", [1] * 40), request("b", [1] * 40)
    engine.add(a)
    engine.step()
    engine.add(b)
    engine.step()
    assert engine.collected.first["b"].num_cached_tokens == 32
    engine.plan()
    engine.lose_worker()
    engine.plan()
    outputs = [output for step in engine.finish().values() for output in step.each()]
    assert [(o.request_id, o.num_cached_tokens, o.start) for o in outputs] == [("a", 0, 2), ("b", 0, 1)]
    engine.run()
    engine.expect_solo(a, b)


def test_loss_in_the_middle_of_a_chunked_prompt() -> None:
    engine = Engine(limits(max_num_batched_tokens=16))
    long = request("long", [7] * 100)
    engine.add(long)
    engine.step(3)
    engine.plan()
    engine.lose_worker()
    engine.run()
    engine.expect_solo(long)


def test_abort_and_finish_at_the_moment_of_death() -> None:
    engine = Engine(SIZES)
    ends = request("ends", [2] * 5, max_tokens=2)
    messages = streams(2)
    engine.add(ends, request("gone", [3] * 5), *messages)
    engine.step()
    engine.plan()
    engine.abort("gone")
    engine.finish()  # the last answer that came: "ends" has all its tokens
    engine.plan()
    engine.lose_worker()
    assert engine.collected.last["ends"].finish_reason == "length"
    assert engine.collected.last["gone"].finish_reason == "abort"
    engine.run()
    engine.expect_solo(ends, *messages)
    engine.expect_empty()


def test_abort_while_there_is_no_worker() -> None:
    engine = Engine(SIZES)
    messages = streams(3)
    engine.add(*messages)
    engine.step()
    engine.plan()
    engine.scheduler.worker_lost("killed")
    engine.plans.clear()
    engine.abort("r1")
    late = request("late", [5] * 5)
    engine.add(late)
    assert engine.scheduler.schedule() is None
    assert engine.scheduler.worker_lost("told twice") == {}
    engine.lose_worker()
    engine.run()
    engine.expect_solo(messages[0], messages[2], late)
    assert engine.scheduler.statistics().num_worker_losses == 1


def test_preempted_request_keeps_its_place() -> None:
    engine = Engine(limits(10, max_num_seqs=3, max_num_batched_tokens=16))
    messages = [request("first", [1] * 3, max_tokens=150), request("second", [8] * 10, max_tokens=150)]
    engine.add(*messages)
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.step()
    engine.lose_worker()
    engine.run()
    engine.expect_solo(*messages)


def test_worker_that_is_killed_at_every_second_step_brings_everybody_to_the_end() -> None:
    """Each token clears its request, so that nobody is suspected for good luck in hitting it."""
    engine = Engine(SIZES)
    messages = streams(4)
    engine.add(*messages)
    while engine.scheduler.statistics().num_finished < 4:
        engine.step()
        if engine.scheduler.schedule() is None:
            break
        engine.lose_worker()
        assert engine.scheduler.statistics().num_quarantined == 0
    engine.expect_solo(*messages)


def test_request_in_flight_at_two_losses_runs_alone_and_is_cleared_by_its_next_token() -> None:
    engine = Engine(SIZES)
    messages = streams(3)
    engine.add(*messages)
    engine.step(2)
    for _ in range(2):
        engine.plan()
        engine.lose_worker()
    assert engine.scheduler.statistics().num_quarantined == 3
    late = request("late", [5] * 5, max_tokens=2)
    engine.add(late)
    for number in range(3):  # one after the other, each alone, with all its tokens
        plan = engine.plan()
        assert len(plan.rows) == 1
        assert plan.new_rows[0].token_ids[:5] == messages[number].prompt_token_ids
        engine.finish()
        assert engine.scheduler.statistics().num_quarantined == 2 - number
    assert len(engine.plan().rows) == 4
    engine.finish()
    engine.run()
    engine.expect_solo(*messages, late)
    engine.expect_empty()


def test_poisoned_request_ends_with_an_error_that_says_so_and_the_others_go_on() -> None:
    engine = Engine(SIZES, poison=POISON)
    messages = streams(7)
    engine.add(*messages[:3])
    engine.add(request("poison", [1, 2, POISON]))
    engine.add(*messages[3:])
    engine.run_through_losses()
    engine.expect_solo(*messages)
    last = engine.collected.last["poison"]
    assert (last.finish_reason, last.token_ids) == ("error", [])
    assert last.error == (
        "the worker was lost 3 times while this request was in flight, the last time while it ran alone (poisoned): "
        "it is not tried again"
    )
    engine.expect_empty()
    now = engine.scheduler.statistics()
    assert (now.num_worker_losses, now.num_failed, now.num_quarantined) == (3, 1, 0)


def test_two_poisoned_requests_are_both_found() -> None:
    engine = Engine(SIZES, poison=POISON)
    messages = streams(4)
    engine.add(request("p0", [POISON]), *messages[:2], request("p1", [1] * 20 + [POISON]), *messages[2:])
    engine.run_through_losses()
    engine.expect_solo(*messages)
    assert {i for i, last in engine.collected.last.items() if last.finish_reason == "error"} == {"p0", "p1"}
    assert engine.scheduler.statistics().num_worker_losses == 4


def test_request_that_draws_its_own_poison_is_found() -> None:
    sizes = limits(20, max_num_seqs=4)
    seed = next(s for s in range(1000) if solo(request("x", [1], 6, seed=s), sizes)[0][3] == POISON)
    engine = Engine(sizes, poison=POISON)
    engine.add(request("x", [1], 6, seed=seed))
    engine.run_through_losses()
    assert engine.collected.token_ids["x"] == solo(request("x", [1], 6, seed=seed), sizes)[0][:4]
    assert engine.collected.last["x"].finish_reason == "error"


def test_loss_between_the_steps_of_a_suspect_blames_nobody() -> None:
    engine = Engine(limits(20, max_num_seqs=4, max_num_batched_tokens=16))
    long = request("long", [3] * 40)
    engine.add(long)
    for _ in range(2):
        engine.plan()
        engine.lose_worker()
    engine.step()  # the first chunk that it runs alone
    engine.lose_worker()
    assert engine.scheduler.statistics().num_quarantined == 1
    engine.run()
    engine.expect_solo(long)


def test_kills_from_outside_are_evidence_against_nobody() -> None:
    """B16: whatever is in flight at however many of them, nobody is suspected and everybody is exact."""
    engine = Engine(SIZES)
    messages = streams(6)
    engine.add(*messages)
    for _ in range(50):
        engine.plan()
        engine.lose_worker(is_evidence=False)
        assert engine.scheduler.statistics().num_quarantined == 0
    engine.run()
    engine.expect_solo(*messages)
    engine.expect_empty()


def test_kill_from_outside_while_a_suspect_runs_alone_convicts_nobody() -> None:
    """B16: it runs alone again, is cleared by its token, and later kills do not bring it back."""
    engine = Engine(SIZES)
    messages = streams(3)
    engine.add(*messages)
    for _ in range(2):
        engine.plan()
        engine.lose_worker()
    for _ in range(5):
        assert len(engine.plan().rows) == 1
        engine.lose_worker(is_evidence=False)
        assert engine.scheduler.statistics().num_quarantined == 3
    for left in (2, 1, 0):
        engine.step()
        assert engine.scheduler.statistics().num_quarantined == left
    for _ in range(5):
        engine.plan()
        engine.lose_worker(is_evidence=False)
    assert engine.scheduler.statistics().num_quarantined == 0
    engine.run()
    engine.expect_solo(*messages)


def test_poisoned_request_is_found_among_kills_from_outside() -> None:
    """B16: what is no evidence does not clear anybody either."""
    engine = Engine(SIZES, poison=POISON)
    messages = streams(3)
    engine.add(*messages, request("poison", [1, 2, POISON]))
    crashes = 0
    while "poison" not in engine.collected.last:
        engine.plan()
        engine.lose_worker(is_evidence=False)
        engine.plan()
        try:
            engine.finish()
        except PoisonError:
            crashes += 1
            engine.lose_worker("poisoned")
    assert crashes == 3
    assert engine.collected.last["poison"].finish_reason == "error"
    engine.run()
    engine.expect_solo(*messages)


@pytest.mark.parametrize("begun", [True, False])
def test_suspect_that_is_aborted_makes_room_for_the_next(begun: bool) -> None:
    engine = Engine(SIZES)
    messages = streams(3)
    engine.add(*messages)
    for _ in range(2):
        engine.plan()
        engine.lose_worker()
    if begun:
        engine.plan()
    engine.abort("r0")
    if begun:
        engine.finish()
    engine.run()
    engine.expect_solo(*messages[1:])
    engine.expect_empty()


def test_smaller_pool_afterwards_ends_who_does_not_fit_and_keeps_the_others() -> None:
    engine = Engine(SIZES)
    small, large = request("small", [1] * 20, 20), request("large", [2] * 20, 200)
    engine.add(small, large)
    engine.step(3)
    engine.plan()
    engine.lose_worker(num_blocks=5)
    last = engine.collected.last["large"]
    assert last.error is not None and "need 14 KV blocks of 16, but there are 5" in last.error
    assert last.start == 3
    engine.run()
    engine.expect_solo(small)
    engine.expect_empty()
    output = engine.scheduler.add(request("another", [2] * 20, 200))
    assert output is not None and output.finish_reason == "error"
    engine.lose_worker(num_blocks=20)  # the memory came back
    large_again = request("another", [2] * 20, 200)
    engine.add(large_again)
    engine.run()
    engine.expect_solo(large_again)


def test_failing_all_ends_running_and_waiting_in_one_message_per_client() -> None:
    engine = Engine(SIZES)
    engine.add(*(request(f"r{i}", [i] * 5) for i in range(5)))
    engine.step()
    engine.plan()
    failed = engine.scheduler.fail_all("the worker is gone")
    assert {o.request_id for o in failed[1].outputs} == {"r0", "r1", "r2", "r3", "r4"}
    assert {o.error for o in failed[1].outputs} == {"the worker is gone"}
    assert engine.scheduler.schedule() is None
    engine.scheduler.check()


@pytest.mark.parametrize("known", [0, 1, 4, 11])
def test_engine_core_that_died_is_replaced_by_one_that_goes_on(known: int) -> None:
    """The frontend's journal: prompt, rules and the tokens so far, added to a new core."""
    sizes = limits(20, max_num_batched_tokens=16)
    originals = [request(f"r{i}", [i] * 20, 12, seed=i, stop=[5], min_tokens=6) for i in range(5)]
    engine = Engine(sizes, SchedulerConfig(max_plans_in_flight=2))
    messages = []
    for message in originals:
        outputs = solo(message, sizes)[0][:known]
        messages.append(
            request(message.request_id, message.prompt_token_ids, 12, seed=message.sampling.seed, stop=[5],
                    min_tokens=6, outputs=outputs)
        )  # fmt: skip
    for message in messages:
        engine.collected.known[message.request_id] = len(message.output_token_ids)
        output = engine.scheduler.add(message)
        if output is not None:  # complete already
            engine.collected.take_one(output)
    engine.run(in_flight=2)
    engine.expect_solo(*messages)
    assert engine.scheduler.statistics().num_generated_tokens == sum(
        len(solo(message, sizes)[0]) - len(message.output_token_ids) for message in messages
    )
