"""Every sampling parameter on a real engine, small model; log-probabilities against transformers in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import write_tiny_model

from ringcast import LLM, SamplingParams
from ringcast.frontend.outputs import LogprobsOfToken
from ringcast.frontend.tokenizer import Tokenizer

PROMPT = "The sea, the sea: a long way to go"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, smollm2, {"eos_token_id": [0, 2]})
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    # Chunks of 8 tokens: prompt log-probabilities come in pieces.
    with LLM(str(folder), dtype="float32", max_num_batched_tokens=8, scheduling_policy="priority") as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


def _expected(oracle: Any, token_ids: list[int]) -> torch.Tensor:
    """[tokens, vocabulary]: row i is about token i + 1."""
    with torch.no_grad():
        return torch.log_softmax(oracle(torch.tensor([token_ids])).logits[0].double(), -1)


def _check(at: LogprobsOfToken, token_id: int, row: torch.Tensor, count: int) -> None:
    assert next(iter(at)) == token_id
    assert at[token_id].rank == 1 + int((row > row[token_id]).sum())
    assert len(at) in (count, count + 1)
    likeliest = [item for item in at if (at[item].rank or 0) <= count]
    assert sorted(likeliest, key=lambda item: at[item].rank or 0) == row.topk(count).indices.tolist()
    for item, told in at.items():
        assert abs(told.logprob - float(row[item])) < 1e-4


def test_logprobs_of_prompt_and_answer_are_those_of_transformers(llm: LLM, oracle: Any) -> None:
    params = SamplingParams(
        temperature=1.3, seed=5, min_p=0.01, max_tokens=20, logprobs=3, prompt_logprobs=2, repetition_penalty=1.2,
        ignore_eos=True,
    )  # fmt: skip
    output = llm.generate(PROMPT, params)[0]
    answer, prompt = output.outputs[0], output.prompt_token_ids
    rows = _expected(oracle, prompt + answer.token_ids)
    assert output.prompt_logprobs is not None and answer.logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt) > 8
    for index, at in enumerate(output.prompt_logprobs[1:], 1):
        assert at is not None
        _check(at, prompt[index], rows[index - 1], 2)
    assert len(answer.logprobs) == 20
    for index, at in enumerate(answer.logprobs):
        _check(at, answer.token_ids[index], rows[len(prompt) + index - 1], 3)
    total = sum(at[token_id].logprob for at, token_id in zip(answer.logprobs, answer.token_ids, strict=True))
    assert answer.cumulative_logprob == pytest.approx(total)


def test_penalties_are_those_of_the_formula(llm: LLM, oracle: Any) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=16, ignore_eos=True, presence_penalty=0.5, frequency_penalty=1.5,
        repetition_penalty=1.3, logit_bias={7: 0.5},
    )  # fmt: skip
    output = llm.generate(PROMPT, params)[0]
    sequence = list(output.prompt_token_ids)
    drawn: dict[int, int] = {}
    for token_id in output.outputs[0].token_ids:
        with torch.no_grad():
            logits = oracle(torch.tensor([sequence])).logits[0, -1].double()
        logits[7] += 0.5
        seen = torch.tensor(sorted(set(sequence)))
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / 1.3, logits[seen] * 1.3)
        for item, times in drawn.items():
            logits[item] -= 0.5 + 1.5 * times
        assert float(logits.max() - logits[token_id]) < 1e-4
        sequence.append(token_id)
        drawn[token_id] = drawn.get(token_id, 0) + 1


def test_allowed_tokens_bad_words_and_biases(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    abc = [tokenizer.encode(letter)[0] for letter in "abc"]
    params = SamplingParams(max_tokens=12, seed=1, allowed_token_ids=abc, ignore_eos=True)
    assert set(llm.generate(PROMPT, params)[0].outputs[0].token_ids) == set(abc)
    params = SamplingParams(max_tokens=12, seed=1, allowed_token_ids=abc, bad_words="b", ignore_eos=True)
    assert set(llm.generate(PROMPT, params)[0].outputs[0].text) == set("ac")
    params = SamplingParams(max_tokens=12, seed=1, logit_bias={abc[0]: 100.0}, ignore_eos=True)
    assert llm.generate(PROMPT, params)[0].outputs[0].text == "a" * 12


def test_min_p_one_keeps_the_likeliest_alone(llm: LLM) -> None:
    greedy = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=6))[0].outputs[0]
    sampled = llm.generate(PROMPT, SamplingParams(temperature=1.0, min_p=1.0, max_tokens=6))[0].outputs[0]
    assert sampled.token_ids == greedy.token_ids


@pytest.mark.parametrize("eos", [0, 2])
@pytest.mark.parametrize("min_tokens", [0, 1, 3])
def test_no_end_token_before_min_tokens(llm: LLM, eos: int, min_tokens: int) -> None:
    """Both of the model's end tokens; the prompt's length does not count."""
    params = SamplingParams(temperature=0, max_tokens=8, min_tokens=min_tokens, logit_bias={eos: 100.0})
    answer = llm.generate(PROMPT, params)[0].outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (min_tokens + 1, "stop")
    assert eos not in answer.token_ids[:-1]


def test_priorities_are_taken(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, temperature=0)
    one = llm.generate([PROMPT, PROMPT], params, priority=[5, -5])
    assert one[0].outputs[0].token_ids == one[1].outputs[0].token_ids
