"""Random Llama models give the logits and tokens of transformers, from every form of checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import logits_of, random_llama, runner_of, save_gguf
from stand_in_core import StandInCore

from ringcast.gpu import Checkpoint

PROMPT = [(7 * index + index * index) % 203 for index in range(75)]


def hf_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].float()


def hf_greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(hf_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model(request: pytest.FixtureRequest) -> Any:
    return random_llama(tie=request.param)


@pytest.fixture(params=["single", "sharded", "gguf"])
def checkpoint(request: pytest.FixtureRequest, model: Any, tmp_path: Path) -> Checkpoint:
    if request.param == "gguf":
        save_gguf(model, tmp_path / "model.gguf")
        return Checkpoint.open(tmp_path / "model.gguf")
    model.save_pretrained(tmp_path, max_shard_size="50KB" if request.param == "sharded" else "1GB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 1 or request.param == "sharded"
    return Checkpoint.open(tmp_path)


def test_logits_equal_those_of_transformers(model: Any, checkpoint: Checkpoint) -> None:
    ours, theirs = logits_of(checkpoint, PROMPT), hf_logits(model, PROMPT)
    assert theirs.abs().max() > 5
    assert (ours - theirs).abs().max() < 1e-4


def test_greedy_tokens_equal_those_of_transformers(model: Any, checkpoint: Checkpoint) -> None:
    expected = hf_greedy(model, PROMPT, 24)
    assert StandInCore(runner_of(checkpoint)).generate([PROMPT], 24) == [expected]


def test_a_bfloat16_checkpoint_loads_in_either_type(model: Any, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    random_llama(tie=model.config.tie_word_embeddings).to(torch.bfloat16).save_pretrained(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    expected = hf_logits(LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), PROMPT)
    assert (logits_of(checkpoint, PROMPT) - expected).abs().max() < 1e-4
    # In bfloat16 the products round to 8 bits: the size of the error is that of the type, not of a mistake.
    error = (logits_of(checkpoint, PROMPT, torch.bfloat16) - expected).abs()
    assert error.mean() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("budget", [16, 17, 100, 1000, 1001, 1002])
def test_chunking_a_long_prompt_changes_no_token(
    budget: int, tmp_path_factory: pytest.TempPathFactory, model: Any
) -> None:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    prompt = [(31 * index + 5) % 203 for index in range(1001)]
    expected = hf_greedy(model, prompt, 4)
    core = StandInCore(runner_of(Checkpoint.open(folder)), budget=budget, scattered=True)
    assert core.generate([prompt], 4) == [expected]


def test_batch_mates_change_no_token(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    prompts = [PROMPT[: 3 + 5 * index] for index in range(9)]
    runner = runner_of(Checkpoint.open(tmp_path))
    alone = [StandInCore(runner).generate([prompt], 12)[0] for prompt in prompts]
    assert StandInCore(runner, budget=19, scattered=True).generate(prompts, 12) == alone
    assert StandInCore(runner).generate(prompts[::-1], 12)[::-1] == alone
