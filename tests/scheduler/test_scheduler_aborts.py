"""Requests that end early, in every state: everything returns to the pool, and nobody else notices."""

from __future__ import annotations

import pytest
from scheduler_fakes import Engine, limits, request, solo

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.messages import RequestOutput, StepOutputs

SIZES = limits(10, max_num_seqs=3, max_num_batched_tokens=16)
OTHER = request("other", [8] * 10, max_tokens=12)


@pytest.fixture(params=[True, False], ids=["cache", "no-cache"])
def engine(request: pytest.FixtureRequest) -> Engine:
    engine = Engine(SIZES, SchedulerConfig(enable_prefix_caching=request.param))
    engine.add(OTHER)
    return engine


def expect_clean_end(engine: Engine) -> None:
    """The rest runs to its end; rows, blocks and the other request's tokens are as if nothing had been."""
    engine.run()
    engine.expect_empty()
    engine.expect_solo(OTHER)


def test_abort_before_the_first_step(engine: Engine) -> None:
    engine.add(request("a", [1] * 5, client=7))
    assert engine.abort("a") == {7: StepOutputs(0, [RequestOutput("a", [], "abort")])}
    expect_clean_end(engine)


def test_abort_in_the_middle_of_a_chunked_prompt(engine: Engine) -> None:
    engine.add(request("a", [1] * 60))
    engine.step(2)
    assert engine.scheduler.statistics().num_running == 2
    engine.abort("a")
    assert engine.collected.token_ids["a"] == []
    expect_clean_end(engine)


def test_abort_while_running(engine: Engine) -> None:
    engine.add(request("a", [1] * 5))
    engine.step(4)
    assert engine.abort("a") == {1: StepOutputs(4, [RequestOutput("a", [], "abort", start=4)])}
    assert engine.collected.token_ids["a"] == solo(request("a", [1] * 5), SIZES)[0][:4]
    expect_clean_end(engine)


@pytest.mark.parametrize("caching", [True, False])
def test_abort_while_preempted(caching: bool) -> None:
    engine = Engine(SIZES, SchedulerConfig(enable_prefix_caching=caching))
    first, other = request("first", [1] * 3, max_tokens=150), request("other", [8] * 10, max_tokens=150)
    engine.add(first, other)
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.step()
    assert engine.scheduler.statistics().num_waiting == 1
    engine.abort("other")
    engine.run()
    engine.expect_empty()
    engine.expect_solo(first)


def test_abort_while_its_step_is_in_flight_drops_the_token(engine: Engine) -> None:
    engine.add(request("a", [1] * 5))
    engine.step()
    plan = engine.plan()
    assert len(plan.rows) == 2
    engine.abort("a")
    engine.finish()
    assert len(engine.collected.token_ids["a"]) == 1
    assert engine.scheduler.statistics().num_generated_tokens == 3
    expect_clean_end(engine)


def test_blocks_of_an_aborted_request_are_not_free_before_its_step_is_over(engine: Engine) -> None:
    engine.add(request("a", [1] * 5))
    engine.plan()
    engine.abort("a", "other")
    assert engine.scheduler.statistics().num_free_blocks == 8
    b = request("b", [1] * 5)
    engine.add(b)
    engine.finish()
    assert engine.scheduler.statistics().num_free_blocks == 10
    engine.run()
    engine.expect_solo(b)


def test_abort_when_its_last_token_is_in_flight(engine: Engine) -> None:
    engine.add(request("a", [1] * 5, max_tokens=1))
    engine.plan()
    engine.abort("a")
    engine.finish()
    assert engine.collected.last["a"] == RequestOutput("a", [], "abort")
    expect_clean_end(engine)


def test_abort_after_the_end_and_of_the_unknown_says_nothing(engine: Engine) -> None:
    engine.add(request("a", [1] * 5, max_tokens=1))
    engine.step()
    assert engine.collected.last["a"].finish_reason == "length"
    assert engine.abort("a", "never heard of") == {}
    expect_clean_end(engine)


def test_id_may_come_again_while_the_aborted_one_is_in_flight(engine: Engine) -> None:
    again = request("a", [2] * 5)
    engine.add(request("a", [1] * 5))
    engine.plan()
    engine.scheduler.abort(["a", "a"])
    engine.add(again)
    engine.finish()
    assert "a" not in engine.collected.token_ids
    expect_clean_end(engine)
    engine.expect_solo(again)


def test_abort_of_a_client_ends_its_requests_and_no_others(engine: Engine) -> None:
    engine.add(request("a", [1] * 5, client=2), request("b", [1] * 5, client=2))
    engine.step()
    engine.scheduler.abort_client(2)
    assert engine.scheduler.statistics().num_running == 1
    expect_clean_end(engine)


def test_ten_thousand_waiting_requests_that_are_aborted_leave_nothing() -> None:
    engine = Engine(limits(max_num_seqs=1))
    engine.scheduler.add(request("first", [1], max_tokens=3))
    for i in range(10_000):
        engine.scheduler.add(request(f"r{i}", [1], client=2 + i % 2))
    engine.step()
    engine.scheduler.abort([f"r{i}" for i in range(0, 10_000, 2)])
    engine.scheduler.abort_client(3)
    assert engine.scheduler.statistics().num_waiting == 0
    assert len(engine.scheduler._waiting._heap) <= 16
    engine.run()
    engine.expect_empty()
    now = engine.scheduler.statistics()
    assert (now.num_finished, now.num_aborted, now.num_started) == (10_001, 10_000, 1)
