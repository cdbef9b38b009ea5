"""A request's logits are equal as bytes whatever its company, chunks, blocks and threads, and after it was re-added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact_core import ExactCore
from random_models import random_model, save_gguf
from test_attention import LEVELS_HERE

from ringcast.gpu import Checkpoint
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.loader import load_weights
from ringcast.gpu.runner import ModelRunner
from ringcast.scheduler.messages import KVCacheConfig, NewRow, SamplingRule, StepPlan

FORMS: dict[str, tuple[torch.dtype, bool]] = {
    "float32": (torch.float32, False), "bfloat16": (torch.bfloat16, False), "packed": (torch.bfloat16, True),
}  # fmt: skip
each_form = pytest.mark.parametrize("form", FORMS)
PROMPTS = [[(31 * index + 7 * number + 5) % 203 for index in range(3 + 5 * number)] for number in range(32)]


def runner_of(checkpoint: Checkpoint, form: str, threads: int = 1, level: str | None = None) -> ModelRunner:
    dtype, keep_blocks = FORMS[form]
    weights = load_weights(checkpoint, dtype, keep_blocks)
    return ModelRunner(checkpoint.config, weights, dtype, CpuKernels(threads, level))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A random Llama with blocks of Q4_1, its head of Q8_0."""
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    model = random_model("llama", hidden_size=96, intermediate_size=160)
    save_gguf(model, path, lambda name: "Q8_0" if "embed" in name or "head" in name else "Q4_1")
    return Checkpoint.open(path)


@each_form
@pytest.mark.parametrize("level", LEVELS_HERE)
def test_company_chunks_and_blocks_change_no_byte(small: Checkpoint, form: str, level: str) -> None:
    runner = runner_of(small, form, level=level)
    alone = [ExactCore(runner).logits_of([prompt], 4)[0] for prompt in PROMPTS]
    assert len({row for rows in alone for row in rows}) > 100
    for count in (2, 5, 8, 32):
        assert ExactCore(runner).logits_of(PROMPTS[:count], 4) == alone[:count]
    for budget in (16, 17, 64, 1000):
        assert ExactCore(runner, budget=budget, scattered=True).logits_of(PROMPTS, 4) == alone
    assert ExactCore(runner, block_size=32).logits_of(PROMPTS[::-1], 4) == alone[::-1]


@each_form
def test_threads_change_no_byte(small: Checkpoint, form: str) -> None:
    expected = ExactCore(runner_of(small, form)).logits_of(PROMPTS, 4)
    for threads in (2, 3, 7):
        assert ExactCore(runner_of(small, form, threads), budget=64).logits_of(PROMPTS, 4) == expected


@each_form
def test_a_readded_request_goes_on_with_the_same_bytes(small: Checkpoint, form: str) -> None:
    runner = runner_of(small, form, threads=2)
    prompt = PROMPTS[9]
    core = ExactCore(runner)
    expected = core.logits_of([prompt], 12)[0]
    tokens = core.generate([prompt], 12)[0]
    for done in (1, 5, 11):
        # What a preemption and a worker's restart come to: all tokens are computed again, in other chunks.
        again = ExactCore(runner, budget=17, scattered=True).logits_of([PROMPTS[20], prompt + tokens[:done]], 12 - done)
        assert again[1] == expected[done:]


@each_form
def test_a_prefix_from_the_cache_changes_no_byte(small: Checkpoint, form: str) -> None:
    runner = runner_of(small, form, threads=2)
    prompt = [(index * 5) % 203 for index in range(40)]
    core = ExactCore(runner)
    expected = core.logits_of([prompt], 1)[0]
    runner.initialize(KVCacheConfig(20, 16, 4, 64, 100))
    steps = (
        NewRow(0, [*prompt[:32], 9, 9], 0, [7, 2, 9], SamplingRule()),
        NewRow(3, prompt, 32, [7, 2, 11], SamplingRule()),  # shares two full blocks with row 0
    )
    for row, count in zip(steps, (34, 8), strict=True):
        result = runner.execute(StepPlan(1, [], [row], [row.row], [count], [[]], [True]))
        core._collect(result)
    assert core.logits[60] == expected


@pytest.mark.parametrize("form", ["float32", "bfloat16", "packed"])
def test_the_real_model_is_exact(smollm2: Checkpoint, reference: list[dict[str, Any]], form: str) -> None:
    prompts = [record["prompt_token_ids"][:40] for record in reference]
    alone = [ExactCore(runner_of(smollm2, form)).logits_of([prompt], 2)[0] for prompt in prompts[:4]]
    runner = runner_of(smollm2, form, threads=2)
    assert ExactCore(runner, budget=64, scattered=True).logits_of(prompts, 2)[:4] == alone
    assert ExactCore(runner, budget=17).logits_of(prompts[:4], 2) == alone


def test_the_runner_says_that_it_is_exact(small: Checkpoint) -> None:
    runner = runner_of(small, "packed")
    assert runner.exact
    assert runner.exactness.startswith("exact: ")
