"""A row for which the worker could draw nothing ends its request with an error; the others do not notice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_fakes import Engine, request

from ringcast.scheduler.errors import ResultError

WHY = "the model's largest logit is nan"


def test_a_row_that_drew_nothing_ends_its_request_alone() -> None:
    engine = Engine()
    bad, good = request("bad", [3] * 5, 10, logprobs=1), request("good", [4] * 5, 10, logprobs=1)
    engine.add(bad, good)
    engine.step()
    plan = engine.plan()
    result = engine.worker.execute(plan)
    assert result.logprobs is not None
    failed = replace(
        result, token_ids=[-1, result.token_ids[1]], errors=[WHY, None], logprobs=[None, result.logprobs[1]]
    )
    engine.plans.clear()
    engine.collected.take(engine.scheduler.update(failed))
    last = engine.collected.last["bad"]
    assert (last.finish_reason, last.error, last.token_ids) == ("error", WHY, [])
    assert len(engine.collected.token_ids["bad"]) == 1
    engine.run()
    engine.expect_solo(good)
    statistics = engine.scheduler.statistics()
    assert (statistics.num_failed, statistics.num_finished) == (1, 2)
    assert statistics.num_free_blocks == statistics.num_blocks
    engine.scheduler.check()


def test_errors_that_do_not_fit_their_rows_are_refused() -> None:
    engine = Engine()
    engine.add(request("a", [1] * 5), request("b", [2] * 5))
    result = engine.worker.execute(engine.plan())
    for changes in (
        {"errors": [WHY]},
        {"errors": [None, None], "token_ids": [-1, result.token_ids[1]]},
        {"errors": [WHY, None, None]},
    ):
        with pytest.raises(ResultError, match="step 1 drew"):
            engine.scheduler.update(replace(result, **changes))
