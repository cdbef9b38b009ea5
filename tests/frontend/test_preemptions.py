"""Rules of requests hold over preemptions (C, "held well"): penalties, seeds, min_tokens, stop strings, long lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_model import VOCAB, write_tiny_model

from ringcast import LLM, SamplingParams
from ringcast.frontend.outputs import RequestOutput
from ringcast.frontend.tokenizer import Tokenizer

RULES: list[dict[str, Any]] = [
    {"seed": 2, "temperature": 0},
    {"seed": 3, "temperature": 1.5},
    {"seed": 4, "presence_penalty": 1.5, "frequency_penalty": 1.0},
    {"seed": 5, "repetition_penalty": 1.4, "top_k": 100},
    {"seed": 6, "min_tokens": 70, "stop_token_ids": list(range(0, VOCAB, 2))},
    {"seed": 7, "min_tokens": 60, "stop": ["e", "a"]},
    {"seed": 8, "bad_words": ["the", "\n"], "logit_bias": {7: 2.0}},
    {"seed": 9, "allowed_token_ids": list(range(VOCAB))},
    {"seed": 10, "logprobs": 3, "min_p": 0.0001},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, smollm2, {})
    return folder


def answers(llm: LLM) -> list[RequestOutput]:
    params = [SamplingParams(**{"max_tokens": 90, "ignore_eos": True, **rule}) for rule in RULES]
    return llm.generate([[100 + index] * 20 for index in range(len(RULES))], params)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Iterator[list[RequestOutput]]:
    with LLM(str(folder), dtype="float32") as llm:
        found = answers(llm)
        assert llm.statistics().num_preemptions == 0
        yield found


def test_answers_are_the_same_over_many_preemptions(folder: Path, undisturbed: list[RequestOutput]) -> None:
    # One request needs 7 blocks of 16 tokens: at most one of the nine can run to its end without giving way.
    with LLM(str(folder), dtype="float32", num_kv_blocks=10, max_num_batched_tokens=64) as llm:
        found = answers(llm)
        assert llm.statistics().num_preemptions >= len(RULES)
    for rule, expected, output in zip(RULES, undisturbed, found, strict=True):
        one, other = expected.outputs[0], output.outputs[0]
        assert (one.token_ids, one.text) == (other.token_ids, other.text), rule
        assert (one.finish_reason, one.stop_reason, one.seed) == (other.finish_reason, other.stop_reason, other.seed)
        assert one.cumulative_logprob == other.cumulative_logprob


def test_the_rules_had_something_to_do(undisturbed: list[RequestOutput]) -> None:
    by_ids, by_text, without, everything = (undisturbed[index].outputs[0] for index in (4, 5, 6, 7))
    assert by_ids.finish_reason == by_text.finish_reason == "stop"
    assert len(by_ids.token_ids) > 70 and len(by_text.token_ids) > 60
    assert "\n" not in without.text
    assert len(everything.token_ids) == 90
