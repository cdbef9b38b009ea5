"""Log-probabilities of prompts: whole, in chunks, beside others, after a restart; those of transformers' logits."""

from __future__ import annotations

import pytest
import torch
from drawing import check_logprobs, columns
from random_models import hf_logits, random_model, runner_of
from stand_in_core import StandInCore

from ringcast.gpu import Checkpoint
from ringcast.gpu.runner import ModelRunner
from ringcast.scheduler.messages import SamplingRule

PROMPT = [(11 * index + index * index) % 203 for index in range(51)]


@pytest.fixture(scope="module")
def model_logits(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRunner, torch.Tensor]:
    model = random_model("qwen3")
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return runner_of(Checkpoint.open(folder)), hf_logits(model, PROMPT)


@pytest.mark.parametrize("budget", [16, 17, 50, 51, 200])
@pytest.mark.parametrize("count", [0, 1, 7, -1])
def test_a_prompt_of_three_times_the_budget_has_one_entry_less_than_tokens(
    model_logits: tuple[ModelRunner, torch.Tensor], budget: int, count: int
) -> None:
    runner, expected = model_logits
    core = StandInCore(runner, budget=budget, scattered=True)
    core.generate([PROMPT], 3, [SamplingRule(prompt_logprobs=count, logprobs=2)])
    # The first token has none (the frontend puts None there).
    told = core.prompt_logprobs[0]
    check_logprobs(told, expected[:-1], PROMPT[1:], 203 if count == -1 else count, 1e-4)


def test_neighbours_with_other_wishes_change_nothing(model_logits: tuple[ModelRunner, torch.Tensor]) -> None:
    runner, expected = model_logits
    prompts = [PROMPT, PROMPT[:20], PROMPT[:1], PROMPT[:33]]
    rules = [SamplingRule(prompt_logprobs=2), SamplingRule(), SamplingRule(prompt_logprobs=3), SamplingRule(logprobs=1)]
    alone = StandInCore(runner)
    first = alone.generate(prompts[:1], 5, rules[:1])
    core = StandInCore(runner, budget=16, scattered=True)
    together = core.generate(prompts, 5, rules)
    assert core.prompt_logprobs[0] == alone.prompt_logprobs[0]
    assert set(core.prompt_logprobs) == {0}  # a prompt of one token has nothing to tell of
    assert together[0] == first[0]
    check_logprobs(core.prompt_logprobs[0], expected[:-1], PROMPT[1:], 2, 1e-4)
    assert [len(told) for told in core.logprobs] == [0, 0, 0, 5]
    for told, token_id in zip(core.logprobs[3], together[3], strict=True):
        assert columns(told)[0][0, 0] == token_id


def test_a_readded_row_tells_of_its_prompt_and_not_of_its_output(
    model_logits: tuple[ModelRunner, torch.Tensor],
) -> None:
    runner, expected = model_logits
    core = StandInCore(runner, budget=17)
    core.generate([PROMPT], 2, [SamplingRule(prompt_logprobs=1)], num_prompt_tokens=[30])
    check_logprobs(core.prompt_logprobs[0], expected[:29], PROMPT[1:30], 1, 1e-4)
