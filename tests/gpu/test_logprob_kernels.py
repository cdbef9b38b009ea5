"""Log-probabilities are those of the model's untouched logits, for any count, with ranks, in numpy's formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawing import Rule, check_logprobs, columns, drawn, draws_of

from ringcast.gpu.kernels import LEVELS, CpuKernels
from ringcast.gpu.sampling_kernels import SamplingKernels
from ringcast.scheduler.messages import Logprobs

VOCAB = 1000


@pytest.mark.parametrize("level", LEVELS[: LEVELS.index(CpuKernels(1).level) + 1])
@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 1000, 5003])
def test_they_equal_the_formula_for_any_vocabulary(level: str, vocab: int) -> None:
    logits = torch.randn((5, vocab), generator=torch.Generator().manual_seed(vocab)) * 5
    tokens, rows = np.array([0, vocab - 1, vocab // 2, 0, vocab // 3]), np.array([4, 3, 2, 1, 0])
    for count in {0, 1, min(20, vocab), vocab}:
        token_ids, logprobs, ranks = SamplingKernels(CpuKernels(2, level)).logprobs(logits, rows, tokens, count)
        told = Logprobs(1 + count, token_ids.tobytes(), logprobs.tobytes(), ranks.tobytes())
        check_logprobs(told, logits[rows], tokens.tolist(), count, 2e-6)


def test_large_and_infinite_logits_keep_their_differences() -> None:
    logits = torch.tensor([[1e4, 1e4 - 1.0, float("-inf"), -1e4], [-3e38, 0.0, 3e38, float("-inf")]])
    token_ids, logprobs, ranks = SamplingKernels(CpuKernels(1)).logprobs(logits, np.arange(2), np.array([1, 2]), 4)
    assert token_ids.tolist() == [[1, 0, 1, 3, 2], [2, 2, 1, 0, 3]]
    np.testing.assert_allclose(logprobs[0, :3], [-1.3132616, -0.3132617, -1.3132616], rtol=1e-5)
    assert logprobs[0, 4] == -np.inf and logprobs[1].tolist()[:2] == [0.0, 0.0]
    assert ranks.tolist() == [2, 1]


def test_ties_have_one_rank_and_are_ordered_by_id() -> None:
    logits = torch.zeros(2, 100)
    logits[:, 50] = 1.0
    told = SamplingKernels(CpuKernels(1)).logprobs(logits, np.arange(2), np.array([99, 50]), 4)
    assert told[0].tolist() == [[99, 50, 0, 1, 2], [50, 50, 0, 1, 2]]
    assert told[2].tolist() == [2, 1]


def test_every_row_gets_what_it_asked_for() -> None:
    logits = torch.randn((7, VOCAB), generator=torch.Generator().manual_seed(3)) * 3
    counts = [None, 0, 5, 1, None, -1, 5]
    rules = [Rule(float(row % 3), seed=row, logprobs=count) for row, count in enumerate(counts)]
    draws = draws_of(logits, rules, threads=2)
    assert draws.logprobs is not None
    for row, count in enumerate(counts):
        if count is None:
            assert draws.logprobs[row] is None
        else:
            width = VOCAB if count == -1 else count
            check_logprobs(draws.logprobs[row], logits[row : row + 1], [int(draws.token_ids[row])], width, 2e-6)
    assert draws_of(logits, [Rule(0.0)] * 7).logprobs is None


def test_asking_for_none_still_tells_of_the_token_that_was_drawn() -> None:
    logits = torch.randn((40, VOCAB), generator=torch.Generator().manual_seed(4))
    rules = [Rule(3.0, seed=row, logprobs=0) for row in range(40)]
    draws = draws_of(logits, rules)
    assert draws.logprobs is not None
    ranks = []
    for row, told in enumerate(draws.logprobs):
        check_logprobs(told, logits[row : row + 1], [int(draws.token_ids[row])], 0, 2e-6)
        ranks.append(int(columns(told)[2][0]))
    assert max(ranks) > 20  # unlikely tokens are drawn at this temperature, and told of all the same
    assert draws.token_ids.tolist() == drawn(logits, [Rule(3.0, seed=row) for row in range(40)])


def test_they_are_of_the_logits_before_any_rule() -> None:
    logits = torch.randn((1, VOCAB), generator=torch.Generator().manual_seed(6))
    rule = Rule(
        0.3, 0.5, 3, 0.2, allowed_token_ids=[4, 5, 6], logit_bias=[(4, 50.0)], repetition_penalty=2.0, prompt=[4, 4],
        logprobs=10,
    )  # fmt: skip
    draws = draws_of(logits, [rule])
    assert draws.token_ids.tolist() == [4] and draws.logprobs is not None
    check_logprobs(draws.logprobs[0], logits, [4], 10, 2e-6)
