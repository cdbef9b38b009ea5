"""What of `SamplingParams` reaches the engine, and what is refused at admission: with field, value and limit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from frontend_fakes import FakeEngine

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import InvalidRequest
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.tokenizer import Tokenizer
from ringcast.scheduler.messages import SamplingRule, StopRule

EOS = 2


@pytest.fixture
async def llm(engine: FakeEngine, smollm2: Tokenizer) -> AsyncIterator[AsyncLLM]:
    args = EngineArgs(scheduling_policy="priority", max_logprobs=5)
    async with AsyncLLM.from_parts(args, engine, smollm2) as llm:
        yield llm


async def _run(llm: AsyncLLM, prompt: Any, **fields: Any) -> None:
    await (await llm.add_request(prompt, SamplingParams(**fields))).final()


async def test_every_rule_reaches_the_engine(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    await _run(
        llm, "x", temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, seed=3, presence_penalty=0.5, frequency_penalty=-1,
        repetition_penalty=1.1, logit_bias={7: 2, "9": -100}, allowed_token_ids=[7, 8, 9], bad_words=["no way"],
        min_tokens=2, max_tokens=5, stop_token_ids=[7], logprobs=2, prompt_logprobs=0,
    )  # fmt: skip
    request = engine.added[0]
    assert request.sampling == SamplingRule(
        temperature=0.7, top_p=0.9, top_k=40, seed=3, min_p=0.1, presence_penalty=0.5, frequency_penalty=-1,
        repetition_penalty=1.1, logit_bias=[(7, 2.0), (9, -100.0)], allowed_token_ids=[7, 8, 9],
        bad_words=[smollm2.encode("no way"), smollm2.encode(" no way")], logprobs=2, prompt_logprobs=0,
    )  # fmt: skip
    assert request.stop == StopRule(max_tokens=5, eos_token_ids=[EOS], stop_token_ids=[7], min_tokens=2)


async def test_neutral_parameters_are_the_neutral_rule(llm: AsyncLLM, engine: FakeEngine) -> None:
    await _run(llm, "x", seed=3)
    assert engine.added[0].sampling == SamplingRule(temperature=1.0, seed=3)


async def test_the_first_of_n_answers_alone_computes_prompt_logprobs(llm: AsyncLLM, engine: FakeEngine) -> None:
    await _run(llm, "x y", n=3, seed=1, logprobs=1, prompt_logprobs=1, max_tokens=1)
    assert [request.sampling.prompt_logprobs for request in engine.added] == [1, None, None]
    assert [request.sampling.logprobs for request in engine.added] == [1, 1, 1]


async def test_priority_and_salt_reach_the_engine(llm: AsyncLLM, engine: FakeEngine) -> None:
    stream = await llm.add_request({"prompt": "x", "cache_salt": "mine"}, SamplingParams(max_tokens=1), priority=-3)
    await stream.final()
    assert (engine.added[0].priority, engine.added[0].cache_salt) == (-3, "mine")


@pytest.mark.parametrize(
    ("prompt", "fields", "priority", "param", "message"),
    [
        ("x", {"logit_bias": {49152: 1}}, 0, "logit_bias", "ids must be below 49152"),
        ("x", {"allowed_token_ids": [49152]}, 0, "allowed_token_ids", "ids must be below 49152"),
        ("x", {"stop_token_ids": [49152]}, 0, "stop_token_ids", "holds the token id 49152"),
        ("x", {"logprobs": 6}, 0, "logprobs", "logprobs is 6: this engine tells 0 to 5"),
        ("x", {"logprobs": -1}, 0, "logprobs", "logprobs is -1: this engine tells 0 to 5"),
        ("x", {"prompt_logprobs": 6}, 0, "prompt_logprobs", "prompt_logprobs is 6"),
        ([5] * 60, {"min_tokens": 5}, 0, "min_tokens", "ask for 4 or less"),
        ("x", {"allowed_token_ids": [EOS], "min_tokens": 1}, 0, "allowed_token_ids", "forbid every token"),
        ("x", {"allowed_token_ids": [7], "min_tokens": 1, "stop_token_ids": [7]}, 0, "allowed_token_ids", "forbid"),
        ("x", {}, 2**31, "priority", "priority is 2147483648"),
        ({"prompt": "x", "cache_salt": ""}, {}, 0, "cache_salt", "at least one character"),
    ],
)
async def test_what_the_engine_could_not_do_is_refused(
    llm: AsyncLLM,
    engine: FakeEngine,
    prompt: Any,
    fields: dict[str, Any],
    priority: int,
    param: str,
    message: str,
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        await llm.add_request(prompt, SamplingParams(**fields), priority=priority)
    assert caught.value.param == param
    assert engine.added == []


async def test_bad_words_may_not_forbid_all_that_is_allowed(llm: AsyncLLM, smollm2: Tokenizer) -> None:
    no, spaced = smollm2.encode("no")[-1], smollm2.encode(" no")[-1]
    with pytest.raises(InvalidRequest, match="forbid every token"):
        await llm.add_request("x", SamplingParams(bad_words=["no"], allowed_token_ids=[no, spaced]))
    await _run(llm, "x", bad_words=["no"], allowed_token_ids=[no, spaced, 7])


async def test_a_priority_is_refused_where_the_scheduler_looks_at_none(engine: FakeEngine, smollm2: Tokenizer) -> None:
    async with AsyncLLM.from_parts(EngineArgs(), engine, smollm2) as llm:
        with pytest.raises(InvalidRequest, match="scheduling_policy='priority'"):
            await llm.add_request("x", priority=1)


@pytest.mark.parametrize(("most", "kept"), [(3, 3), (10, 10), (11, 10), (-1, 10)])
async def test_a_long_prompt_keeps_its_last_tokens(llm: AsyncLLM, engine: FakeEngine, most: int, kept: int) -> None:
    stream = await llm.add_request(list(range(5, 15)), SamplingParams(truncate_prompt_tokens=most, max_tokens=1))
    output = await stream.final()
    assert engine.added[0].prompt_token_ids == output.prompt_token_ids == list(range(15 - kept, 15))


async def test_truncation_to_the_context_leaves_room_for_the_answer(llm: AsyncLLM, engine: FakeEngine) -> None:
    await _run(llm, [*range(100)], truncate_prompt_tokens=-1, max_tokens=20)
    await _run(llm, [*range(100)], truncate_prompt_tokens=-1, max_tokens=None)
    assert engine.added[0].prompt_token_ids == list(range(56, 100))
    assert engine.added[1].prompt_token_ids == list(range(37, 100))
    assert [request.stop.max_tokens for request in engine.added] == [20, 1]


def test_engine_arguments_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="max_logprobs is -2"):
        EngineArgs(max_logprobs=-2)
    with pytest.raises(ValueError, match="scheduling_policy='random'"):
        EngineArgs(scheduling_policy="random").scheduler_config()


@pytest.mark.parametrize("half", ["\ud800", "a\udfffb"])
async def test_half_a_surrogate_pair_is_refused_by_name(llm: AsyncLLM, engine: FakeEngine, half: str) -> None:
    """B9: it was a bare EncodeError."""
    asked: list[tuple[str, Any, dict[str, Any], str | None]] = [
        ("prompt", half, {}, None),
        ("cache_salt", {"prompt": "x", "cache_salt": half}, {}, None),
        ("request_id", "x", {}, half),
        ("bad_words", "x", {"bad_words": [half]}, None),
        ("stop", "x", {"stop": [half]}, None),
    ]
    for param, prompt, fields, request_id in asked:
        with pytest.raises(InvalidRequest, match=f"{param}: the text holds half of a surrogate pair") as caught:
            await llm.add_request(prompt, SamplingParams(**fields), request_id)
        assert caught.value.param == param
    assert engine.added == []
