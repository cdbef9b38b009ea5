"""Checkpoints drawn at random, of every family, size, rope and form: logits and tokens of transformers in float32.

A seeded part of the trial of 75 such checkpoints that found no wrong token (B, "held well").
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import FAMILIES, hf_logits, logits_of, random_model, runner_of, save_gguf
from stand_in_core import StandInCore

from ringcast.gpu import Checkpoint

_ROPES: list[dict[str, Any]] = [
    {}, {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
]  # fmt: skip


def draw(seed: int) -> tuple[str, dict[str, Any], str]:
    """A family, changes of its config, and the form of the files."""
    dice = random.Random(seed)
    family = sorted(FAMILIES)[seed % len(FAMILIES)]
    kv_heads = dice.choice((1, 2, 3))
    heads = kv_heads * dice.choice((1, 2, 4))
    head_dim = dice.choice((16, 32, 48))
    changes: dict[str, Any] = {
        "num_key_value_heads": kv_heads, "num_attention_heads": heads, "head_dim": head_dim,
        "hidden_size": heads * dice.choice((8, 12, 16)), "intermediate_size": dice.randrange(20, 200, 4),
        "num_hidden_layers": dice.randint(1, 4), "vocab_size": dice.randint(60, 300),
        "rms_norm_eps": dice.choice((1e-6, 1e-5)),
    }  # fmt: skip
    if family == "gemma3":
        kinds = ("sliding_attention", "full_attention")
        changes["layer_types"] = [dice.choice(kinds) for _ in range(changes["num_hidden_layers"])]
    if family == "phi3":
        changes["hidden_size"] = heads * head_dim
    if "gemma" not in family and family != "phi3":
        rope = dice.choice(_ROPES)
        if rope:
            changes["rope_parameters"] = {"rope_theta": dice.choice((5000.0, 10000.0)), **rope}
    form = dice.choice(("single", "sharded", "gguf"))
    if form == "gguf" and ("gemma" in family or "window" in family):
        form = "sharded"  # llama.cpp knows neither these windows nor Gemma's untied heads
    return family, changes, form


@pytest.mark.parametrize("seed", range(18))
def test_a_drawn_checkpoint_is_the_model_of_transformers(seed: int, tmp_path: Path) -> None:
    family, changes, form = draw(seed)
    model = random_model(family, seed, **changes)
    if form == "gguf":
        path = tmp_path / "model.gguf"
        save_gguf(model, path)
    else:
        path = tmp_path
        model.save_pretrained(path, max_shard_size="20KB" if form == "sharded" else "1GB")
    checkpoint = Checkpoint.open(path)
    vocabulary = changes["vocab_size"]
    prompt = [(11 * index + seed) % vocabulary for index in range(37)]
    tokens = StandInCore(runner_of(checkpoint), budget=16, scattered=True).generate([prompt], 12)[0]
    sequence = prompt + tokens
    theirs = hf_logits(model, sequence)
    assert (logits_of(checkpoint, sequence, chunk=9) - theirs).abs().max() < 2e-4
    best = theirs[len(prompt) - 1 : -1].topk(2).values
    told_apart = (best[:, 0] - best[:, 1]) > 1e-3
    assert told_apart.sum() > len(tokens) // 2
    expected = theirs[len(prompt) - 1 : -1].argmax(-1)
    assert torch.equal(torch.tensor(tokens)[told_apart], expected[told_apart])
