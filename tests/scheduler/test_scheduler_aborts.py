"""Requests that end early, in every state, by abort or by the loss of the worker: everything returns to the pool."""

from __future__ import annotations

import pytest
from scheduler_fakes import Collected, ModelWorker, limits, request, run_all, solo

from ringcast.scheduler.messages import RequestOutput, StepOutputs, StepPlan
from ringcast.scheduler.scheduler import Scheduler

SIZES = limits(10, max_num_seqs=3, max_num_batched_tokens=16)
OTHER = request("other", [8] * 10, max_tokens=12)


class Engine:
    """A scheduler and its worker, stepped by hand."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(SIZES, vocab_size=97)
        self.worker = ModelWorker(SIZES)
        self.collected = Collected()

    def plan(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        return plan

    def finish(self, plan: StepPlan) -> None:
        self.collected.take(self.scheduler.update(self.worker.execute(plan)))
        self.scheduler.check()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.finish(self.plan())

    def abort(self, *request_ids: str) -> dict[int, StepOutputs]:
        outputs = self.scheduler.abort(request_ids)
        self.collected.take(outputs)
        self.scheduler.check()
        return outputs

    def expect_clean_end(self) -> None:
        """The rest runs to its end; rows, blocks and the other request's tokens are as if nothing had been."""
        run_all(self.scheduler, self.worker, self.collected)
        now = self.scheduler.statistics()
        assert (now.num_free_blocks, now.num_running, now.num_waiting) == (10, 0, 0)
        assert self.collected.token_ids["other"] == solo(OTHER, SIZES)[0]


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.scheduler.add(OTHER)
    return engine


def test_abort_before_the_first_step(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5, client=7))
    assert engine.abort("a") == {7: StepOutputs(0, [RequestOutput("a", [], "abort")])}
    engine.expect_clean_end()


def test_abort_in_the_middle_of_a_chunked_prompt(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 60))
    engine.step(2)
    assert engine.scheduler.statistics().num_running == 2
    engine.abort("a")
    assert engine.collected.token_ids["a"] == []
    engine.expect_clean_end()


def test_abort_while_running(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5))
    engine.step(4)
    engine.abort("a")
    assert engine.collected.token_ids["a"] == solo(request("a", [1] * 5), SIZES)[0][:4]
    engine.expect_clean_end()


def test_abort_while_preempted() -> None:
    engine = Engine()
    first, other = request("first", [1] * 3, max_tokens=150), request("other", [8] * 10, max_tokens=150)
    engine.scheduler.add(first)
    engine.scheduler.add(other)
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.step()
    assert engine.scheduler.statistics().num_waiting == 1
    engine.abort("other")
    run_all(engine.scheduler, engine.worker, engine.collected)
    assert engine.scheduler.statistics().num_free_blocks == 10
    assert engine.collected.token_ids["first"] == solo(first, SIZES)[0]


def test_abort_while_its_step_is_in_flight_drops_the_token(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5))
    engine.step()
    plan = engine.plan()
    assert len(plan.rows) == 2
    engine.abort("a")
    engine.finish(plan)
    assert len(engine.collected.token_ids["a"]) == 1
    engine.expect_clean_end()


def test_blocks_of_an_aborted_request_are_not_free_before_its_step_is_over(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5))
    plan = engine.plan()
    engine.abort("a", "other")
    assert engine.scheduler.statistics().num_free_blocks == 8
    engine.scheduler.add(request("b", [1] * 5))
    engine.finish(plan)
    assert engine.scheduler.statistics().num_free_blocks == 10
    run_all(engine.scheduler, engine.worker, engine.collected)
    assert engine.collected.token_ids["b"] == solo(request("b", [1] * 5), SIZES)[0]


def test_abort_when_its_last_token_is_in_flight(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5, max_tokens=1))
    plan = engine.plan()
    engine.abort("a")
    engine.finish(plan)
    assert engine.collected.last["a"] == RequestOutput("a", [], "abort")
    engine.expect_clean_end()


def test_abort_after_the_end_and_of_the_unknown_says_nothing(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5, max_tokens=1))
    engine.step()
    assert engine.collected.last["a"].finish_reason == "length"
    assert engine.abort("a", "never heard of") == {}
    engine.expect_clean_end()


def test_id_may_come_again_while_the_aborted_one_is_in_flight(engine: Engine) -> None:
    again = request("a", [2] * 5)
    engine.scheduler.add(request("a", [1] * 5))
    plan = engine.plan()
    engine.scheduler.abort(["a", "a"])
    assert engine.scheduler.add(again) is None
    engine.finish(plan)
    assert "a" not in engine.collected.token_ids
    engine.expect_clean_end()
    assert engine.collected.token_ids["a"] == solo(again, SIZES)[0]


def test_abort_of_a_client_ends_its_requests_and_no_others(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5, client=2))
    engine.scheduler.add(request("b", [1] * 5, client=2))
    engine.step()
    engine.scheduler.abort_client(2)
    assert engine.scheduler.statistics().num_running == 1
    engine.expect_clean_end()


def test_lost_worker_ends_what_ran_and_the_waiting_run_on_its_successor() -> None:
    engine = Engine()
    for i in range(3):
        engine.scheduler.add(request(f"r{i}", [i] * 5, client=i))
    engine.scheduler.add(OTHER)  # no row left: it waits
    engine.step()
    plan = engine.plan()
    assert len(plan.rows) == 3
    lost = engine.scheduler.worker_lost("the worker was killed")
    assert {c: [(o.request_id, o.finish_reason, o.error) for o in s.outputs] for c, s in lost.items()} == {
        i: [(f"r{i}", "error", "the worker was killed")] for i in range(3)
    }
    engine.scheduler.check()
    assert engine.scheduler.statistics().num_free_blocks == 10
    engine.worker = ModelWorker(SIZES)
    plan = engine.plan()
    assert (plan.step_id, plan.freed_rows) == (3, [])
    engine.finish(plan)
    engine.expect_clean_end()


def test_lost_worker_takes_an_aborted_step_in_flight_with_it(engine: Engine) -> None:
    engine.scheduler.add(request("a", [1] * 5))
    engine.plan()
    engine.abort("a", "other")
    assert engine.scheduler.worker_lost("killed") == {}
    assert engine.scheduler.statistics().num_free_blocks == 10
    engine.worker = ModelWorker(SIZES)
    again = request("a", [1] * 5)
    engine.scheduler.add(again)
    engine.collected = run_all(engine.scheduler, engine.worker)
    assert engine.collected.token_ids["a"] == solo(again, SIZES)[0]


def test_preempted_request_outlives_the_worker() -> None:
    engine = Engine()
    other = request("other", [8] * 10, max_tokens=150)
    engine.scheduler.add(request("first", [1] * 3, max_tokens=150))
    engine.scheduler.add(other)
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.step()
    engine.collected.take(engine.scheduler.worker_lost("killed"))
    engine.worker = ModelWorker(SIZES)
    run_all(engine.scheduler, engine.worker, engine.collected)
    assert engine.collected.last["first"].finish_reason == "error"
    assert engine.collected.token_ids["other"] == solo(other, SIZES)[0]


def test_failing_all_ends_running_and_waiting_in_one_message_per_client() -> None:
    engine = Engine()
    for i in range(5):
        engine.scheduler.add(request(f"r{i}", [i] * 5))
    engine.step()
    failed = engine.scheduler.fail_all("the worker is gone")
    assert [o.request_id for o in failed[1].outputs] == ["r0", "r1", "r2", "r3", "r4"]
    assert {o.error for o in failed[1].outputs} == {"the worker is gone"}
    assert engine.scheduler.schedule() is None
    engine.scheduler.check()
