"""What the scheduler carries for the sampler, and the part of it that it decides: when a token may end a request."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from scheduler_fakes import VOCAB_SIZE, Engine, limits, logprobs_of, request, solo, values_of

from ringcast.channels.codec import Codec
from ringcast.scheduler.errors import ResultError
from ringcast.scheduler.messages import Logprobs, PromptLogprobs, SamplingRule, StepResult

ENDING = list(range(0, VOCAB_SIZE, 3))  # a third of the vocabulary: it would end soon


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 5, 9, 10])
@pytest.mark.parametrize("kind", ["eos", "stop"])
def test_nothing_but_the_count_ends_a_request_before_min_tokens(min_tokens: int, kind: str) -> None:
    for seed in range(20):
        ids: dict[str, Any] = {kind: ENDING}
        message = request("a", [1] * 30, 10, seed=seed, min_tokens=min_tokens, **ids)
        engine = Engine()
        engine.add(message)
        engine.run()
        engine.expect_solo(message)
        tokens = engine.collected.token_ids["a"]
        assert not set(tokens[:min_tokens]) & set(ENDING)
        if engine.collected.last["a"].finish_reason == "stop":
            assert len(tokens) > min_tokens and tokens[-1] in ENDING


def test_worker_is_told_the_ids_that_it_must_not_draw_too_early() -> None:
    engine = Engine()
    engine.add(request("a", [1], eos=[5, 3], stop=[9, 3], min_tokens=4), request("b", [1], eos=[5]))
    first, second = engine.plan().new_rows
    assert (first.sampling.min_tokens, first.sampling.stop_token_ids) == (4, [3, 5, 9])
    assert (second.sampling.min_tokens, second.sampling.stop_token_ids) == (0, None)


def test_id_that_comes_too_early_does_not_end_the_request_even_if_a_worker_draws_it() -> None:
    engine = Engine()
    engine.add(request("a", [1], 8, eos=[5], stop=[6], min_tokens=2))
    ends = []
    for token_id in (5, 5):
        plan = engine.scheduler.schedule()
        assert plan is not None
        outputs = engine.scheduler.update(StepResult(plan.step_id, plan.rows, [token_id]))
        ends.append(next(outputs[1].each()).finish_reason)
    assert ends == [None, "stop"]


def test_min_tokens_survive_a_preemption_and_the_death_of_the_worker() -> None:
    engine = Engine(limits(7))
    messages = [request(f"r{i}", [i] * 10, 80, seed=i, eos=ENDING, min_tokens=60) for i in range(3)]
    engine.add(*messages)
    for _ in range(5):
        engine.step(15)
        engine.plan()
        engine.lose_worker()
    engine.run()
    engine.expect_solo(*messages)
    assert engine.scheduler.statistics().num_preemptions > 0


@pytest.mark.parametrize("count", [0, 1, 5, VOCAB_SIZE])
def test_logprobs_travel_from_the_worker_to_the_frontend_of_the_request_that_asked(count: int) -> None:
    engine = Engine()
    asks, does_not = request("asks", [1] * 20, 6, logprobs=count), request("does not", [1] * 20, 6)
    engine.add(does_not, asks)
    engine.run()
    engine.expect_solo(asks, does_not)
    tokens = solo(asks, engine.sizes)[0]
    values = values_of([1] * 20 + tokens)[19:-1]
    assert engine.collected.logprobs == {
        "asks": [logprobs_of([t], [v], count) for t, v in zip(tokens, values, strict=True)]
    }


@pytest.mark.parametrize("budget", [16, 17, 64])
@pytest.mark.parametrize("length", [1, 2, 16, 48, 50, 130])
def test_prompt_logprobs_come_whole_with_the_first_token_however_the_prompt_is_chunked(
    budget: int, length: int
) -> None:
    engine = Engine(limits(max_num_batched_tokens=budget))
    prompt = [i % VOCAB_SIZE for i in range(length)]
    warm = request("warm", prompt, 2)
    asks = request("asks", prompt, 4, prompt_logprobs=1)
    engine.add(warm)
    engine.run()
    engine.add(asks)
    engine.run()
    engine.expect_solo(warm, asks)
    first = engine.collected.first["asks"]
    assert first.prompt_logprobs == logprobs_of(prompt[1:], values_of(prompt)[:-1], 1)
    assert len(first.prompt_logprobs.ranks) == 4 * (length - 1)
    assert first.num_cached_tokens == 0  # to tell them the whole prompt has to be computed
    assert engine.collected.last["asks"].prompt_logprobs is None


def test_prompt_logprobs_come_once_through_losses_and_preemptions() -> None:
    engine = Engine(limits(10, max_num_batched_tokens=16))
    prompt = [i % VOCAB_SIZE for i in range(60)]
    messages = [request(f"r{i}", prompt, 30, seed=i, prompt_logprobs=2) for i in range(3)]
    engine.add(*messages)
    engine.step(2)
    engine.plan()
    engine.lose_worker()
    engine.step(7)
    engine.plan()
    engine.lose_worker()
    engine.run()
    engine.expect_solo(*messages)
    expected = logprobs_of(prompt[1:], values_of(prompt)[:-1], 2)
    assert all(engine.collected.first[m.request_id].prompt_logprobs == expected for m in messages)
    assert engine.scheduler.statistics().num_preemptions > 0


def test_row_that_enters_again_does_not_compute_prompt_logprobs_again() -> None:
    engine = Engine()
    engine.add(request("a", [1] * 20, prompt_logprobs=1))
    engine.step()
    engine.plan()
    engine.lose_worker()
    assert engine.plan().new_rows[0].sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": None},
        {"logprobs": [logprobs_of([1], [1], 3), logprobs_of([1], [1], 2)]},
        {"logprobs": [None, logprobs_of([1, 2], [1, 2], 2)]},
        {"prompt_logprobs": None},
        {"prompt_logprobs": [PromptLogprobs(1, 1, logprobs_of([1] * 7, [1] * 7, 1))]},
        {"prompt_logprobs": [PromptLogprobs(0, 2, logprobs_of([1] * 7, [1] * 7, 1))]},
        {"prompt_logprobs": [PromptLogprobs(0, 1, logprobs_of([1] * 6, [1] * 6, 1))]},
        {"prompt_logprobs": [PromptLogprobs(0, 1, Logprobs(2, b"", b"", b""))]},
    ],
)
def test_result_without_the_logprobs_that_were_asked_for_is_refused(changes: dict[str, Any]) -> None:
    engine = Engine()
    messages = [request("a", [1] * 8, prompt_logprobs=1), request("b", [2], logprobs=2)]
    engine.add(*messages)
    result = engine.worker.execute(engine.plan())
    with pytest.raises(ResultError, match=r"^step 1 "):
        engine.scheduler.update(replace(result, **changes))
    engine.plans.clear()
    engine.collected.take(engine.scheduler.update(result))
    engine.run()
    engine.expect_solo(*messages)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"temperature": -0.5}, "temperature=-0.5: give 0 or more"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0: give more than 0, at most 1"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": -1}, "top_k=-1"),
        ({"min_p": 1.1}, "min_p=1.1"),
        ({"presence_penalty": float("inf")}, "presence_penalty=inf"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty=nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"logprobs": 98}, "logprobs=98: give 0 to 97"),
        ({"prompt_logprobs": -1}, "prompt_logprobs=-1"),
        ({"logit_bias": [(97, 1.0)]}, "logit_bias has token ids from 97 to 97: the model knows 0 to 96"),
        ({"logit_bias": [(-1, 1.0)]}, "logit_bias has token ids from -1"),
        ({"logit_bias": [(1, float("nan"))]}, "logit_bias: give finite numbers"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": [3, 400]}, "allowed_token_ids has token ids from 3 to 400"),
        ({"bad_words": [[]]}, "bad_words holds a word without tokens"),
        ({"bad_words": [[1], [2, 97]]}, "bad_words has token ids from 2 to 97"),
    ],
)
def test_rule_that_no_worker_can_follow_is_refused(changes: dict[str, Any], text: str) -> None:
    """A worker would stop at it, and with it everybody's step."""
    message = replace(request("a", [1]), sampling=SamplingRule(seed=3, **changes))
    output = Engine().scheduler.add(message)
    assert output is not None and output.error is not None and re.search(text, output.error)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"eos": [97]}, "eos_token_ids has token ids from 97"),
        ({"stop": [5, -2]}, "stop_token_ids has token ids from -2 to 5"),
        ({"min_tokens": 9}, "min_tokens=9: give 0 to max_tokens, which is 8"),
        ({"min_tokens": -1}, "min_tokens=-1"),
    ],
)
def test_stop_rule_that_makes_no_sense_is_refused(changes: dict[str, Any], text: str) -> None:
    output = Engine().scheduler.add(request("a", [1], **changes))
    assert output is not None and output.error is not None and re.search(text, output.error)


def test_every_field_reaches_the_worker() -> None:
    rule = SamplingRule(
        temperature=0.7, top_p=0.9, top_k=5, seed=-3, min_p=0.1, presence_penalty=0.5, frequency_penalty=-0.5,
        repetition_penalty=1.2, logit_bias=[(3, -2.0)], allowed_token_ids=[1, 2, 3], bad_words=[[1, 2]],
        logprobs=3, prompt_logprobs=2,
    )  # fmt: skip
    engine = Engine()
    engine.add(replace(request("a", [1]), sampling=rule))
    assert engine.plan().new_rows[0].sampling == rule


def test_messages_travel() -> None:
    codec = Codec()
    logprobs = logprobs_of([1, 2], [3, 4], 2)
    result = StepResult(3, [1], [5], [logprobs], [PromptLogprobs(1, 1, logprobs)])
    assert codec.decode(codec.encode(result)) == result
    rule = SamplingRule(logit_bias=[(3, -2.0)], bad_words=[[1, 2]], stop_token_ids=[4], min_tokens=2)
    travelled = codec.decode(codec.encode(rule))
    assert [tuple(pair) for pair in travelled.logit_bias] == [(3, -2.0)]
    assert replace(travelled, logit_bias=None) == replace(rule, logit_bias=None)
