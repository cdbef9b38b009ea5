"""Random models of every family give the logits and tokens of transformers, from every form of checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import FAMILIES, hf_logits, logits_of, random_model, runner_of, save_gguf
from stand_in_core import StandInCore

from ringcast.gpu import Checkpoint

PROMPT = [(7 * index + index * index) % 203 for index in range(45)]
NUM_TOKENS = 64


def saved(model: Any, folder: Path, form: str) -> Checkpoint:
    """The model as a checkpoint on disk."""
    if form == "gguf":
        save_gguf(model, folder / "model.gguf")
        return Checkpoint.open(folder / "model.gguf")
    model.save_pretrained(folder, max_shard_size="50KB" if form == "sharded" else "1GB")
    assert len(list(folder.glob("*.safetensors"))) > 1 or form != "sharded"
    return Checkpoint.open(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logits_equal_those_of_transformers(
    family: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model = random_model(family)
    checkpoint = saved(model, tmp_path, "single")
    runner = runner_of(checkpoint)
    tokens = StandInCore(runner).generate([PROMPT], NUM_TOKENS)[0]
    # One pass over prompt and tokens: each token must be the greedy choice after all before it.
    sequence = PROMPT + tokens
    theirs = hf_logits(model, sequence)
    best = theirs[len(PROMPT) - 1 : -1].topk(2)
    assert tokens == best.indices[:, 0].tolist()
    assert len(set(tokens)) > 10
    gap = float((best.values[:, 0] - best.values[:, 1]).min())
    record_property("smallest_gap", gap)
    assert gap > 1e-4, "the model cannot tell a right result from a wrong one: take another seed"
    ours = logits_of(checkpoint, sequence)
    assert (ours - theirs).abs().max() < 1e-4
    for chunk in (16, 17):
        assert torch.equal(logits_of(checkpoint, sequence, chunk=chunk), ours)
    assert StandInCore(runner, budget=17, scattered=True).generate([PROMPT], NUM_TOKENS) == [tokens]


@pytest.mark.parametrize("form", ["sharded", "gguf"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_every_form_of_checkpoint_holds_the_same_model(family: str, form: str, tmp_path: Path) -> None:
    # llama.cpp scales Gemma's queries by the size of the head, and knows it with a tied head only.
    gemmas = {"query_pre_attn_scalar": 16, "tie_word_embeddings": True} if "gemma" in family else {}
    model = random_model(family, **gemmas)
    checkpoint = saved(model, tmp_path, form)
    assert (logits_of(checkpoint, PROMPT) - hf_logits(model, PROMPT)).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "phi3"])
def test_the_head_may_be_the_embedding(family: str, tmp_path: Path) -> None:
    model = random_model(family, tie_word_embeddings=True)
    checkpoint = saved(model, tmp_path, "single")
    assert checkpoint.config.tie_word_embeddings
    assert (logits_of(checkpoint, PROMPT) - hf_logits(model, PROMPT)).abs().max() < 1e-4


def test_wrong_numbers_would_be_seen() -> None:
    """The tests above are worth something: each part that they cover changes these models' logits by far more."""
    logits = hf_logits(random_model("gemma3"), PROMPT)
    for changes in (
        {"sliding_window": 18}, {"query_pre_attn_scalar": 21}, {"rms_norm_eps": 1e-2},
        {"layer_types": ["full_attention"] * 3}, {"final_logit_softcapping": 30.0},
    ):  # fmt: skip
        assert (hf_logits(random_model("gemma3", **changes), PROMPT) - logits).abs().max() > 1e-2
    logits = hf_logits(random_model("gemma2"), PROMPT)
    for changes in ({"sliding_window": 23}, {"attn_logit_softcapping": 3.1}):
        assert (hf_logits(random_model("gemma2", **changes), PROMPT) - logits).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "phi3"])
def test_a_bfloat16_checkpoint_loads_in_either_type(family: str, tmp_path: Path) -> None:
    model = random_model(family).to(torch.bfloat16)
    checkpoint = saved(model, tmp_path, "single")
    expected = hf_logits(type(model).from_pretrained(tmp_path, dtype=torch.float32), PROMPT)
    assert (logits_of(checkpoint, PROMPT) - expected).abs().max() < 1e-4
    # In bfloat16 the products round to 8 bits: the size of the error is that of the type, not of a mistake.
    error = (logits_of(checkpoint, PROMPT, torch.bfloat16) - expected).abs()
    assert error.mean() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("budget", [16, 17, 100, 1000, 1001, 1002])
@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_chunking_a_long_prompt_changes_no_token(
    family: str, budget: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = random_model(family)
    folder = tmp_path_factory.mktemp("model")
    prompt = [(31 * index + 5) % 203 for index in range(1001)]
    core = StandInCore(runner_of(saved(model, folder, "single")), budget=budget, scattered=True)
    tokens = core.generate([prompt], 4)[0]
    assert tokens == hf_logits(model, prompt + tokens)[1000:-1].argmax(1).tolist()


def test_batch_mates_change_no_token(tmp_path: Path) -> None:
    prompts = [PROMPT[: 3 + 5 * index] for index in range(9)]
    runner = runner_of(saved(random_model("gemma3"), tmp_path, "single"))
    alone = [StandInCore(runner).generate([prompt], 12)[0] for prompt in prompts]
    assert StandInCore(runner, budget=19, scattered=True).generate(prompts, 12) == alone
    assert StandInCore(runner).generate(prompts[::-1], 12)[::-1] == alone
