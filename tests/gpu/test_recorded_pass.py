"""The recorded forward pass computes what the model computes call by call, for every family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from random_models import FAMILIES, random_model

from ringcast.gpu import Checkpoint
from ringcast.gpu.batch import Batch
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.kv_cache import KVCache
from ringcast.gpu.loader import load_weights
from ringcast.gpu.model import MODELS
from ringcast.gpu.recorded_pass import RecordedPass, RecordingKernels

MAX_TOKENS = 48
# Tokens of each sequence in three successive steps: a batch of prompts, a chunk beside decodes, decodes.
STEPS = ((30, 1, 17), (1, 16, 1), (1, 1, 1))


def batches(logit_tokens: Sequence[Sequence[int]]) -> list[Batch]:
    """The batches of `STEPS`; sequence s has the blocks 4 s to 4 s + 3."""
    made, lengths = [], [0, 0, 0]
    for counts, wanted in zip(STEPS, logit_tokens, strict=True):
        places = [(s, lengths[s] + i) for s, count in enumerate(counts) for i in range(count)]
        lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
        made.append(
            Batch(
                token_ids=torch.tensor([(17 * s + 7 * p) % 203 for s, p in places]),
                positions=torch.tensor([p for _, p in places]),
                slots=torch.tensor([64 * s + p for s, p in places]),
                query_starts=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
                kv_lengths=torch.tensor(lengths, dtype=torch.int32),
                block_tables=torch.arange(12, dtype=torch.int32).view(3, 4),
                logit_tokens=torch.tensor(wanted, dtype=torch.int64),
            )
        )
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_the_model_call_by_call(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    random_model(family).save_pretrained(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    weights = load_weights(checkpoint, dtype)
    kernels = CpuKernels(2)
    recorder = RecordingKernels(kernels)
    model, recorded = (
        MODELS[checkpoint.config.architecture](checkpoint.config, weights, k) for k in (kernels, recorder)
    )
    caches = [KVCache(checkpoint.config, 12, 16, dtype) for _ in range(2)]
    for layer in (*caches[0].layers, *caches[1].layers):
        layer.keys.zero_()
        layer.values.zero_()
    for own in (model, recorded):
        own.prepare(64)
    forward = RecordedPass(recorded.forward, recorder, caches[1], MAX_TOKENS)
    # The second step wants no logits: then nothing behind the cache writes is computed.
    told = 0

    def on_progress() -> None:
        nonlocal told
        told += 1

    for batch in batches([[29, 30, 47], [], [0, 2]]):
        expected, hidden = model.forward(batch, caches[0]), forward(batch, on_progress)
        assert torch.equal(hidden, expected) and hidden.dtype is dtype
        for ours, theirs in zip(caches[1].layers, caches[0].layers, strict=True):
            assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
    assert told >= 2, "B7: a pass over many tokens says that it is at work"


def test_memory_of_one_layer_serves_the_next(tmp_path: Path) -> None:
    blocks = []
    for layers in (3, 30):
        random_model("llama", num_hidden_layers=layers).save_pretrained(tmp_path / str(layers))
        checkpoint = Checkpoint.open(tmp_path / str(layers))
        recorder = RecordingKernels(CpuKernels(1))
        model = MODELS["LlamaForCausalLM"](checkpoint.config, load_weights(checkpoint, torch.float32), recorder)
        model.prepare(64)
        RecordedPass(model.forward, recorder, KVCache(checkpoint.config, 4, 16, torch.float32), MAX_TOKENS)
        blocks.append(sum(len(block) for block in recorder.blocks))
    assert blocks[0] == blocks[1] < 8 * MAX_TOKENS * 200 * 4


def test_more_tokens_than_were_recorded_are_refused(tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    recorder = RecordingKernels(CpuKernels(1))
    model = MODELS["LlamaForCausalLM"](checkpoint.config, load_weights(checkpoint, torch.float32), recorder)
    model.prepare(64)
    forward = RecordedPass(model.forward, recorder, KVCache(checkpoint.config, 12, 16, torch.float32), 47)
    with pytest.raises(ValueError, match="48 tokens, 3 draws: recorded for up to 47"):
        forward(batches([[29, 30, 47], [], []])[0])
