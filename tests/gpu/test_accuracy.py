"""bfloat16 and packed blocks are right, not only fast: teacher-forced over the reference records against float32.

The float32 path is the reference: `test_smollm2_logits` and `test_reference_tokens` hold it to transformers. For the
packed blocks it is the dequantised model, which is what the float32 path loads. The limits are those of the issue;
transformers' own bfloat16 was measured at 98.3 %, 0.019 and 0.0009.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ringcast.gpu import Checkpoint
from ringcast.gpu.batch import Batch
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.kv_cache import KVCache
from ringcast.gpu.loader import load_weights
from ringcast.gpu.model import MODELS

Records = list[dict[str, Any]]


def log_probabilities(
    checkpoint: Checkpoint, records: Records, dtype: torch.dtype, keep_blocks: bool = False
) -> Tensor:
    """float32 [tokens of all records, vocab]: of each reference token, given all before it."""
    kernels = CpuKernels(2)
    model = MODELS[checkpoint.config.architecture](
        checkpoint.config, load_weights(checkpoint, dtype, keep_blocks), kernels
    )
    model.prepare(2048)
    cache = KVCache(checkpoint.config, 128, 16, dtype)
    found = []
    for record in records:
        prompt, outputs = record["prompt_token_ids"], record["token_ids"]
        tokens = [*prompt, *outputs[:-1]]
        batch = Batch(
            token_ids=torch.tensor(tokens),
            positions=torch.arange(len(tokens)),
            slots=torch.arange(len(tokens)),
            query_starts=torch.tensor([0, len(tokens)], dtype=torch.int32),
            kv_lengths=torch.tensor([len(tokens)], dtype=torch.int32),
            block_tables=torch.arange(128, dtype=torch.int32).unsqueeze(0),
            logit_tokens=torch.arange(len(prompt) - 1, len(tokens)),
        )
        found.append(model.logits(model.forward(batch, cache)).log_softmax(-1))
    return torch.cat(found)


@pytest.fixture(scope="module")
def records(reference: Records) -> Records:
    """Without the one long prompt, whose prefill would take most of the time."""
    return [record for record in reference if len(record["prompt_token_ids"]) < 100]


@pytest.fixture(scope="module")
def exact(smollm2: Checkpoint, records: Records) -> Tensor:
    return log_probabilities(smollm2, records, torch.float32)


@pytest.mark.parametrize("form", ["bfloat16", "packed"])
def test_it_is_close_to_float32(
    form: str, smollm2: Checkpoint, records: Records, exact: Tensor, record_property: Callable[[str, object], None]
) -> None:
    ours = log_probabilities(smollm2, records, torch.bfloat16, keep_blocks=form == "packed")
    tokens = torch.tensor([token for record in records for token in record["token_ids"]])
    assert exact.argmax(-1).equal(tokens), "the float32 path is no reference"
    picked = tokens.unsqueeze(1)
    agreement = float((ours.argmax(-1) == tokens).float().mean())
    difference = float((ours.gather(1, picked) - exact.gather(1, picked)).abs().mean())
    divergence = float((exact.exp() * (exact - ours)).sum(-1).mean())
    record_property("top1_difference_kl", (agreement, difference, divergence))
    assert agreement >= 0.97 and difference <= 0.03 and 0 <= divergence <= 0.003, (agreement, difference, divergence)
