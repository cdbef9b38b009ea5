"""Log-probabilities in results: every drawn token, every prompt token, whole and as deltas, whatever the tokens are."""

from __future__ import annotations

from itertools import chain

import pytest
from frontend_fakes import FakeEngine

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.detokenizer import TextDecoder
from ringcast.frontend.outputs import Logprob, RequestOutput
from ringcast.frontend.sampling_params import RequestOutputKind, SamplingParams
from ringcast.frontend.tokenizer import Tokenizer

DELTA = RequestOutputKind.DELTA


async def _all(llm: AsyncLLM, prompt: list[int], params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params)]


def _value(token_id: int) -> float:
    return -(token_id % 50) / 8


async def test_a_drawn_token_comes_first_with_its_rank_then_the_likeliest(
    llm: AsyncLLM, smollm2_decoder: TextDecoder
) -> None:
    outputs = await _all(llm, [70, 1], SamplingParams(max_tokens=2, logprobs=2))
    answer = outputs[-1].outputs[0]
    text = smollm2_decoder.token_text
    assert answer.logprobs == [
        {70: Logprob(-2.5, 71, text(70)), 0: Logprob(0.0, 1, text(0)), 1: Logprob(-0.125, 2, text(1))},
        {1: Logprob(-0.125, 2, text(1)), 0: Logprob(0.0, 1, text(0))},
    ]
    assert [list(at) for at in answer.logprobs] == [[70, 0, 1], [1, 0]]
    assert answer.cumulative_logprob == -2.625


async def test_zero_logprobs_still_tell_the_drawn_token(llm: AsyncLLM) -> None:
    answer = (await _all(llm, [70], SamplingParams(max_tokens=1, logprobs=0)))[-1].outputs[0]
    assert answer.logprobs is not None
    assert [list(at) for at in answer.logprobs] == [[70]]


async def test_none_asked_none_told(llm: AsyncLLM) -> None:
    output = (await _all(llm, [70, 1], SamplingParams(max_tokens=2)))[-1]
    assert (output.outputs[0].logprobs, output.outputs[0].cumulative_logprob, output.prompt_logprobs) == (None,) * 3


@pytest.mark.parametrize("tokens_per_step", [1, 3])
async def test_deltas_put_together_are_the_whole(llm: AsyncLLM, engine: FakeEngine, tokens_per_step: int) -> None:
    engine.tokens_per_step = tokens_per_step
    prompt = [5, 60, 7, 8]
    params = SamplingParams(n=2, seed=1, max_tokens=7, logprobs=1, prompt_logprobs=1)
    whole = (await _all(llm, prompt, params))[-1]
    deltas = await _all(llm, prompt, SamplingParams(
        n=2, seed=1, max_tokens=7, logprobs=1, prompt_logprobs=1, output_kind=DELTA
    ))  # fmt: skip
    for index in range(2):
        parts = [answer for output in deltas for answer in output.outputs if answer.index == index]
        assert all(len(part.logprobs or ()) == len(part.token_ids) for part in parts)
        assert list(chain.from_iterable(part.logprobs or () for part in parts)) == whole.outputs[index].logprobs
        assert parts[-1].cumulative_logprob == whole.outputs[index].cumulative_logprob
    told = [output.prompt_logprobs for output in deltas if output.prompt_logprobs is not None]
    assert told == [whole.prompt_logprobs]


async def test_prompt_logprobs_begin_with_none(llm: AsyncLLM) -> None:
    output = (await _all(llm, [5, 60, 7], SamplingParams(max_tokens=1, prompt_logprobs=0)))[-1]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [list(at or ()) for at in output.prompt_logprobs[1:]] == [[60], [7]]
    assert output.prompt_logprobs[1] is not None
    assert output.prompt_logprobs[1][60].logprob == _value(60)


async def test_the_prompt_of_one_token_has_nothing_to_tell(llm: AsyncLLM) -> None:
    output = (await _all(llm, [5], SamplingParams(max_tokens=1, prompt_logprobs=2)))[-1]
    assert output.prompt_logprobs == [None]


async def test_tokens_after_a_stop_string_have_no_logprobs(
    llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer
) -> None:
    engine.tokens_per_step = 10
    engine.script = lambda request: smollm2.encode("alpha beta gamma delta epsilon")
    answer = (await _all(llm, [5], SamplingParams(max_tokens=30, logprobs=0, stop="gamma")))[-1].outputs[0]
    assert answer.logprobs is not None
    assert [list(at) for at in answer.logprobs] == [[token_id] for token_id in answer.token_ids]
    assert smollm2.decode(answer.token_ids) == "alpha beta gamma"


async def test_without_detokenising_there_are_no_texts(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=1, logprobs=1, prompt_logprobs=1, detokenize=False)
    output = (await _all(llm, [70, 71], params))[-1]
    assert output.outputs[0].logprobs is not None
    assert {item.decoded_token for item in output.outputs[0].logprobs[0].values()} == {None}


async def test_parts_of_a_character_keep_their_own_entries(
    llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer, smollm2_decoder: TextDecoder
) -> None:
    ids = smollm2.encode("🌊")
    engine.script = lambda request: ids
    answer = (await _all(llm, [5], SamplingParams(max_tokens=9, logprobs=0)))[-1].outputs[0]
    assert answer.logprobs is not None
    assert [list(at) for at in answer.logprobs] == [[token_id] for token_id in ids]
    assert b"".join(smollm2_decoder.token_bytes(token_id) for token_id in ids).decode() == "🌊"
    assert smollm2_decoder.token_text(ids[0]) == "\ufffd"
