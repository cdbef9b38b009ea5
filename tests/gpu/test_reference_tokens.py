"""SmolLM2 in float32 gives the reference's tokens, whatever the batch, the chunks and the order of blocks."""

from __future__ import annotations

from typing import Any

import pytest
from stand_in_core import StandInCore

from ringcast.gpu.runner import ModelRunner


@pytest.mark.parametrize("index", range(12))
def test_each_record_alone(float32_runner: ModelRunner, reference: list[dict[str, Any]], index: int) -> None:
    record = reference[index]
    core = StandInCore(float32_runner)
    assert core.generate([record["prompt_token_ids"]], 48) == [record["token_ids"]]


def test_all_records_in_one_batch_chunked_over_scattered_blocks(
    float32_runner: ModelRunner, reference: list[dict[str, Any]]
) -> None:
    core = StandInCore(float32_runner, budget=64, scattered=True)
    outputs = core.generate([record["prompt_token_ids"] for record in reference], 48)
    assert outputs == [record["token_ids"] for record in reference]


def test_chunks_of_a_1001_token_prompt_do_not_change_the_tokens(
    float32_runner: ModelRunner, reference: list[dict[str, Any]]
) -> None:
    prompt = max((record["prompt_token_ids"] for record in reference), key=len)[:1001]
    whole = StandInCore(float32_runner, budget=1001).generate([prompt], 6)
    assert StandInCore(float32_runner, budget=64, scattered=True).generate([prompt], 6) == whole


def test_a_readded_request_goes_on_with_the_same_tokens(
    float32_runner: ModelRunner, reference: list[dict[str, Any]]
) -> None:
    record = reference[2]
    core = StandInCore(float32_runner, budget=16)
    continued = core.generate([record["prompt_token_ids"] + record["token_ids"][:20]], 28)
    assert continued == [record["token_ids"][20:]]
