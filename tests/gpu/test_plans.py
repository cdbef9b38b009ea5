"""Step plans: what they change, and that one which does not fit is refused before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from random_models import random_llama, runner_of
from stand_in_core import StandInCore

from ringcast.gpu import Checkpoint, KVCacheMemoryError, PlanError, UnsupportedModelError
from ringcast.gpu.runner import ModelRunner
from ringcast.scheduler.messages import KVCacheConfig, NewRow, SamplingRule, StepPlan, StepResult

LIMITS = KVCacheConfig(num_blocks=20, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=100)
PROMPT = [5, 100, 7, 42, 9]


@pytest.fixture(scope="module")
def shared_runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder = tmp_path_factory.mktemp("model")
    random_llama(tie=True).save_pretrained(folder)
    return runner_of(Checkpoint.open(folder))


@pytest.fixture
def runner(shared_runner: ModelRunner) -> ModelRunner:
    """Row 1 holds PROMPT in block 3, computed, with one token drawn."""
    shared_runner.initialize(LIMITS)
    shared_runner.execute(plan(new_rows=[new_row(1)], rows=[1], num_tokens=[5], new_block_ids=[[]], sample=[True]))
    return shared_runner


def new_row(row: int, **changes: Any) -> NewRow:
    return replace(NewRow(row, PROMPT, 0, [3 + row], SamplingRule()), **changes)


def plan(**fields: Any) -> StepPlan:
    empty: dict[str, Any] = {"step_id": 9, "freed_rows": [], "new_rows": [], "rows": [], "num_tokens": []}
    return StepPlan(**{**empty, "new_block_ids": [], "sample": [], **fields})


def decode(row: int = 1, **changes: Any) -> StepPlan:
    return replace(plan(rows=[row], num_tokens=[1], new_block_ids=[[]], sample=[True]), **changes)


def test_decode_rows_need_no_token_ids(runner: ModelRunner) -> None:
    drawn = [runner.execute(decode()).token_ids[0] for _ in range(5)]
    whole = StandInCore(runner).generate([PROMPT], 6)[0]
    assert drawn == whole[1:]


def test_a_row_is_free_for_another_request_in_the_same_plan(runner: ModelRunner) -> None:
    other = new_row(1, token_ids=[1, 2, 3])
    result = runner.execute(
        plan(freed_rows=[1], new_rows=[other], rows=[1], num_tokens=[3], new_block_ids=[[]], sample=[True])
    )
    expected = StandInCore(runner).generate([[1, 2, 3]], 1)[0]
    assert result == StepResult(9, [1], expected)


def test_a_new_row_can_build_on_computed_blocks(runner: ModelRunner) -> None:
    prompt = [(index * 5) % 203 for index in range(40)]
    whole = StandInCore(runner).generate([prompt], 1)[0]
    runner.initialize(LIMITS)
    first = NewRow(0, prompt, 0, [7, 2, 9], SamplingRule())
    runner.execute(plan(new_rows=[first], rows=[0], num_tokens=[40], new_block_ids=[[]], sample=[True]))
    # Shares the two full blocks of row 0, as a prefix cache would hand them out.
    second = NewRow(3, prompt, 32, [7, 2, 11], SamplingRule())
    result = runner.execute(plan(new_rows=[second], rows=[3], num_tokens=[8], new_block_ids=[[]], sample=[True]))
    assert result.token_ids == whole


def test_rows_in_the_middle_of_their_prompt_draw_nothing(runner: ModelRunner) -> None:
    chunk = plan(new_rows=[new_row(2)], rows=[2, 1], num_tokens=[3, 1], new_block_ids=[[], []], sample=[False, True])
    result = runner.execute(chunk)
    assert result.rows == [1]
    rest = runner.execute(decode(2, num_tokens=[2]))
    assert rest == StepResult(9, [2], StandInCore(runner).generate([PROMPT], 1)[0])


def test_a_plan_without_rows_computes_nothing(runner: ModelRunner) -> None:
    assert runner.execute(plan(freed_rows=[1])) == StepResult(9, [], [])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (plan(freed_rows=[2]), "frees row 2, which holds no request"),
        (plan(freed_rows=[1, 1]), "frees row 1, which holds no request"),
        (plan(freed_rows=[-3]), "frees row -3"),
        (decode(0), "computes row 0, which holds no request"),
        (decode(4), "computes row 4"),
        (decode(-3), "computes row -3"),
        (decode(num_tokens=[0]), "row 1 no tokens"),
        (decode(num_tokens=[-1]), "row 1 no tokens"),
        (decode(num_tokens=[2]), "more tokens to compute than it knows: 2 more after 5 of 6"),
        (decode(num_tokens=[1, 1]), "1 rows, 2 counts"),
        (decode(new_block_ids=[[20]]), "block id 20; 0 to 19 are possible"),
        (decode(new_block_ids=[[-1]]), "block id -1"),
        (decode(new_block_ids=[[1 << 70]]), "block id outside"),
        (decode(new_block_ids=[[1] * 7]), "would have 8 blocks; a row holds 7"),
        (plan(rows=[1, 1], num_tokens=[1, 1], new_block_ids=[[], []], sample=[True, True]), "a row twice"),
        (plan(new_rows=[new_row(1)]), "holds another request"),
        (plan(new_rows=[new_row(4)]), "there are rows 0 to 3"),
        (plan(new_rows=[new_row(2, token_ids=[])]), "has 0 tokens"),
        (plan(new_rows=[new_row(2, token_ids=[1] * 101)]), "has 101 tokens; 1 to 100"),
        (plan(new_rows=[new_row(2, token_ids=[203])]), "token id 203; 0 to 202"),
        (plan(new_rows=[new_row(2, token_ids=[-1])]), "token id -1"),
        (plan(new_rows=[new_row(2, num_computed_tokens=5)]), "5 of 5 tokens cannot be computed already"),
        (plan(new_rows=[new_row(2, num_computed_tokens=3, block_ids=[])]), "0 blocks do not hold 3 tokens"),
        (plan(new_rows=[new_row(2, block_ids=[99])]), "block id 99"),
        (plan(new_rows=[new_row(2, num_prompt_tokens=6)]), "6 of 5 tokens cannot be the prompt"),
        (plan(new_rows=[new_row(2, num_prompt_tokens=-1)]), "-1 of 5 tokens"),
        (plan(new_rows=[new_row(2, sampling=SamplingRule(temperature=-1.0))]), "temperature is -1.0, not 0 or more"),
        (plan(new_rows=[new_row(2, sampling=SamplingRule(logit_bias=[(203, 1.0)]))]), "logit_bias 203; 0 to 202"),
        (plan(new_rows=[new_row(2, sampling=SamplingRule(temperature=float("nan")))]), "cannot be sampled"),
        (
            plan(new_rows=[new_row(2)], rows=[2], num_tokens=[3], new_block_ids=[[]], sample=[True]),
            "a token to draw before it has caught up",
        ),
        (
            plan(new_rows=[new_row(2, block_ids=[])], rows=[2], num_tokens=[5], new_block_ids=[[]], sample=[True]),
            "more tokens than its blocks",
        ),
        (
            plan(
                new_rows=[new_row(2, token_ids=[1] * 65, block_ids=[0, 1, 2, 5, 6])],
                rows=[2],
                num_tokens=[65],
                new_block_ids=[[]],
                sample=[True],
            ),
            "has 65 tokens; the limit is 64",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_with_the_reason(runner: ModelRunner, bad: StepPlan, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        runner.execute(bad)
    # Initialising again is all it takes to go on.
    assert StandInCore(runner).generate([PROMPT], 2) == StandInCore(runner).generate([PROMPT], 2)


def test_the_context_ends_at_max_model_len(runner: ModelRunner) -> None:
    full = new_row(0, token_ids=[1] * 100, block_ids=[0, 1, 2, 4, 5, 6, 7])
    runner.execute(plan(new_rows=[full], rows=[0], num_tokens=[64], new_block_ids=[[]], sample=[False]))
    assert len(runner.execute(decode(0, num_tokens=[36])).token_ids) == 1
    with pytest.raises(PlanError, match="with room for 100"):
        runner.execute(decode(0))


def test_initialising_again_forgets_every_row(runner: ModelRunner) -> None:
    runner.initialize(LIMITS)
    with pytest.raises(PlanError, match="row 1, which holds no request"):
        runner.execute(decode())


def test_a_row_that_cannot_draw_fails_alone_and_harms_no_later_plan(runner: ModelRunner) -> None:
    nothing_left = SamplingRule(allowed_token_ids=[3], min_tokens=9, stop_token_ids=[3], logprobs=1)
    result = runner.execute(
        plan(
            new_rows=[new_row(0, sampling=nothing_left, num_prompt_tokens=5)], rows=[0, 1], num_tokens=[5, 1],
            new_block_ids=[[], []], sample=[True, True],
        )
    )  # fmt: skip
    assert result.rows == [0, 1] and result.errors is not None and result.logprobs == [None, None]
    assert result.errors[1] is None and "leave no token to draw" in str(result.errors[0])
    whole = StandInCore(runner).generate([PROMPT], 4)[0]
    assert result.token_ids == [-1, whole[1]]


def test_a_plan_that_was_made_before_a_row_failed_still_runs(runner: ModelRunner) -> None:
    nothing_left = SamplingRule(allowed_token_ids=[3], min_tokens=9, stop_token_ids=[3])
    first = plan(
        new_rows=[new_row(0, sampling=nothing_left, num_prompt_tokens=5)], rows=[0, 1], num_tokens=[5, 1],
        new_block_ids=[[], []], sample=[True, True],
    )  # fmt: skip
    both = plan(rows=[0, 1], num_tokens=[1, 1], new_block_ids=[[], []], sample=[True, True])
    drawn = [runner.execute(first).token_ids[1], runner.execute(both).token_ids[1]]
    last = runner.execute(plan(freed_rows=[0], rows=[1], num_tokens=[1], new_block_ids=[[]], sample=[True]))
    drawn.append(last.token_ids[0])
    assert last.errors is None
    assert drawn == StandInCore(runner).generate([PROMPT], 4)[0][1:]


def test_outputs_of_an_earlier_run_count_for_penalties_and_min_tokens(runner: ModelRunner) -> None:
    """A row that was preempted goes on as if it had not been: its outputs are still outputs."""
    free = StandInCore(runner).generate([PROMPT], 12)[0]
    for rule in (
        SamplingRule(presence_penalty=3.0),
        SamplingRule(frequency_penalty=2.0, repetition_penalty=1.5),
        SamplingRule(min_tokens=7, stop_token_ids=sorted(set(free))),
        SamplingRule(bad_words=[[free[0], free[1]], [free[4], free[5], free[6]]]),
        SamplingRule(temperature=1.2, seed=3, presence_penalty=1.0, logit_bias=[(5, 2.0)]),
    ):
        whole = StandInCore(runner).generate([PROMPT], 12, [rule])[0]
        assert whole != free
        for count in (1, 5, 6, 7, 11):
            core = StandInCore(runner, budget=4)
            assert core.generate([PROMPT + whole[:count]], 12 - count, [rule], [len(PROMPT)]) == [whole[count:]]


def test_any_integer_is_a_seed(runner: ModelRunner) -> None:
    def first(seed: int) -> int:
        return StandInCore(runner).generate([PROMPT], 1, [SamplingRule(5.0, 1.0, 0, seed)])[0][0]

    assert first(-1) == first((1 << 64) - 1)
    assert len({first(seed) for seed in range(40)}) > 10


def test_seeded_requests_do_not_depend_on_order_or_company(runner: ModelRunner) -> None:
    prompts = [PROMPT[: 2 + index % 4] for index in range(6)]
    rules = [SamplingRule(1.5, 0.95, 50, 42 + index // 2, frequency_penalty=index % 2) for index in range(6)]
    alone = [StandInCore(runner).generate([prompts[i]], 10, [rules[i]])[0] for i in range(6)]
    order = [3, 0, 5, 1, 4, 2]
    permuted = StandInCore(runner, budget=9).generate([prompts[i] for i in order], 10, [rules[i] for i in order])
    assert permuted == [alone[i] for i in order]


def test_a_cache_that_does_not_fit_says_what_is_missing(runner: ModelRunner) -> None:
    with pytest.raises(KVCacheMemoryError, match=r"100000000000 blocks need .* GiB, .* GiB available; lower --max-mod"):
        runner.initialize(replace(LIMITS, num_blocks=10**11))
    with pytest.raises(KVCacheMemoryError, match=r"max_num_seqs=1000000000 requests of max_model_len=.*; lower one of"):
        runner.initialize(replace(LIMITS, max_num_seqs=10**9))
    with pytest.raises(KVCacheMemoryError, match=r"max_num_batched_tokens=1000000000000, .* refused; lower it"):
        runner.initialize(replace(LIMITS, max_num_batched_tokens=10**12))
    with pytest.raises(PlanError, match="before initialize_from_config"):
        runner.execute(decode())
    with pytest.raises(UnsupportedModelError, match="block size 20"):
        runner.initialize(replace(LIMITS, block_size=20))
    with pytest.raises(PlanError, match="max_num_seqs of the KV cache is 0"):
        runner.initialize(replace(LIMITS, max_num_seqs=0))
