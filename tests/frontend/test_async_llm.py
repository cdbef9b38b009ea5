"""AsyncLLM over a fake engine: admission, streaming, stop rules, seeds, aborts, deaths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest
from frontend_fakes import FakeEngine

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import (
    EngineDead,
    EngineError,
    EngineNotReady,
    EngineStartFailed,
    InvalidRequest,
    ModelNotFound,
)
from ringcast.frontend.outputs import RequestOutput
from ringcast.frontend.sampling_params import RequestOutputKind, SamplingParams
from ringcast.frontend.tokenizer import Tokenizer
from ringcast.scheduler.messages import AddRequest

DELTA, FINAL = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
EOS = 2


async def _all(outputs: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in outputs]


def _says(tokenizer: Tokenizer, text: str, *more: int) -> Callable[[AddRequest], list[int]]:
    return lambda request: [*tokenizer.encode(text), *more]


async def test_cumulative_results_grow_and_the_last_says_why_it_ended(
    llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer
) -> None:
    engine.script = _says(smollm2, "The answer is Paris.", EOS)
    outputs = await _all(llm.generate("Where?", SamplingParams(max_tokens=20), "my-id"))
    last = outputs[-1]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert (last.request_id, last.prompt) == ("my-id", "Where?")
    assert last.prompt_token_ids == smollm2.encode("Where?")
    answer = last.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("The answer is Paris.", "stop", None)
    assert answer.token_ids == [*smollm2.encode("The answer is Paris."), EOS]
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert last.metrics.first_token_time is not None
    assert last.metrics.finished_time is not None


async def test_deltas_put_together_are_the_whole(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    engine.script = _says(smollm2, "a  🌊 wave", EOS)
    outputs = await _all(llm.generate("x", SamplingParams(max_tokens=30, output_kind=DELTA)))
    assert "".join(output.outputs[0].text for output in outputs) == "a  🌊 wave"
    tokens = [token for output in outputs for token in output.outputs[0].token_ids]
    assert tokens == [*smollm2.encode("a  🌊 wave"), EOS]


async def test_a_slow_caller_gets_merged_results(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    engine.script = _says(smollm2, "one two three four five")
    stream = await llm.add_request("x", SamplingParams(max_tokens=30, output_kind=DELTA))
    await engine.until(lambda: not engine.running)
    outputs = await _all(stream)
    assert len(outputs) == 1
    assert outputs[0].outputs[0].text == "one two three four five"
    assert outputs[0].finished


async def test_final_only_gives_one_result(llm: AsyncLLM) -> None:
    outputs = await _all(llm.generate("x y z", SamplingParams(max_tokens=5, output_kind=FINAL)))
    assert [(output.finished, output.outputs[0].finish_reason) for output in outputs] == [(True, "length")]


async def test_the_end_token_is_counted_but_not_shown(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    engine.script = _says(smollm2, "Hi", EOS)
    for kwargs, text in (
        ({}, "Hi"),
        ({"skip_special_tokens": False}, "Hi"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "Hi<|im_end|>"),
    ):
        params = SamplingParams(max_tokens=9, output_kind=FINAL, **kwargs)
        answer = (await _all(llm.generate("x", params)))[0].outputs[0]
        assert (answer.text, answer.token_ids[-1], answer.finish_reason) == (text, EOS, "stop")


async def test_ignore_eos_sends_no_end_ids(llm: AsyncLLM, engine: FakeEngine) -> None:
    await _all(llm.generate("x", SamplingParams(max_tokens=2, ignore_eos=True)))
    await _all(llm.generate("x", SamplingParams(max_tokens=2)))
    assert [request.stop.eos_token_ids for request in engine.added] == [[], [EOS]]


async def test_a_stop_token_id_is_the_stop_reason(llm: AsyncLLM, smollm2: Tokenizer) -> None:
    a, b = smollm2.encode("x y")
    outputs = await _all(llm.generate([a, b], SamplingParams(max_tokens=9, stop_token_ids=[b])))
    answer = outputs[-1].outputs[0]
    assert (answer.finish_reason, answer.stop_reason, answer.token_ids) == ("stop", b, [a, b])


@pytest.mark.parametrize("tokens_per_step", [1, 3])
async def test_a_stop_string_over_token_borders_cuts_the_text_and_aborts(
    llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer, tokens_per_step: int
) -> None:
    engine.tokens_per_step = tokens_per_step
    engine.script = _says(smollm2, "alpha beta gamma delta epsilon")
    params = SamplingParams(max_tokens=30, stop=["beta gamma"], output_kind=DELTA)
    outputs = await _all(llm.generate("x", params))
    assert "".join(output.outputs[0].text for output in outputs) == "alpha "
    answer = outputs[-1].outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "beta gamma")
    tokens = [token for output in outputs for token in output.outputs[0].token_ids]
    assert smollm2.decode(tokens) == "alpha beta gamma"
    assert engine.aborted == [engine.added[0].request_id]
    assert engine.running == []


async def test_forced_tokens_against_a_long_stop_string(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    engine.script = lambda request: [smollm2.encode(p)[0] for p in ("A", "DEF", "G", "H", "I", "J", "K")]
    params = SamplingParams(max_tokens=30, stop="DEFGHIJ", output_kind=DELTA)
    outputs = await _all(llm.generate("x", params))
    assert "".join(output.outputs[0].text for output in outputs) == "A"
    assert outputs[-1].outputs[0].stop_reason == "DEFGHIJ"


@pytest.mark.parametrize("tokens_per_step", [1, 4])
async def test_a_stop_string_does_not_end_an_answer_before_min_tokens(
    llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer, tokens_per_step: int
) -> None:
    engine.tokens_per_step = tokens_per_step
    engine.script = _says(smollm2, "one two one two one two")
    ids = smollm2.encode("one two one two one two")
    assert len(ids) == 6
    for min_tokens, text in (
        (0, "one"),
        (1, "one"),
        (2, "one two one"),
        (3, "one two one"),
        (4, "one two one two one"),
    ):
        params = SamplingParams(max_tokens=6, min_tokens=min_tokens, stop=" two", output_kind=FINAL)
        answer = (await _all(llm.generate("a long prompt that does not count", params)))[0].outputs[0]
        assert (answer.text, answer.stop_reason) == (text, " two"), min_tokens
        assert len(answer.token_ids) > min_tokens
    params = SamplingParams(max_tokens=6, min_tokens=6, stop=" two", output_kind=FINAL)
    answer = (await _all(llm.generate("x", params)))[0].outputs[0]
    assert (answer.text, answer.finish_reason) == ("one two one two one two", "length")


async def test_text_held_back_for_a_stop_string_comes_at_the_end(
    llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer
) -> None:
    engine.script = _says(smollm2, "alpha beta")
    outputs = await _all(llm.generate("x", SamplingParams(stop="beta gamma", max_tokens=9)))
    assert outputs[-1].outputs[0].text == "alpha beta"
    assert outputs[-1].outputs[0].finish_reason == "length"


async def test_without_detokenising_there_is_no_text(llm: AsyncLLM) -> None:
    outputs = await _all(llm.generate("x", SamplingParams(max_tokens=3, detokenize=False)))
    assert outputs[-1].outputs[0].text == ""
    assert len(outputs[-1].outputs[0].token_ids) == 3


async def test_n_answers_have_their_own_seeds_and_ends(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    engine.script = lambda request: smollm2.encode("word " * (request.sampling.seed - 41))
    params = SamplingParams(n=3, seed=42, max_tokens=9, output_kind=DELTA)
    outputs = await _all(llm.generate("x", params))
    assert [request.sampling.seed for request in engine.added] == [42, 43, 44]
    texts, ends = ["", "", ""], []
    for output in outputs:
        for answer in output.outputs:
            texts[answer.index] += answer.text
            if answer.finish_reason is not None:
                ends.append(answer.index)
            assert answer.seed == 42 + answer.index
    assert texts == ["word ", "word word ", "word word word "]
    assert sorted(ends) == [0, 1, 2]


async def test_a_seed_is_drawn_when_none_is_given_and_returned(llm: AsyncLLM, engine: FakeEngine) -> None:
    seeds = []
    for _ in range(2):
        output = (await _all(llm.generate("x", SamplingParams(max_tokens=1))))[-1]
        seeds.append(output.outputs[0].seed)
    assert seeds == [request.sampling.seed for request in engine.added]
    assert seeds[0] != seeds[1]


async def test_the_largest_seed_wraps_for_the_next_answer(llm: AsyncLLM, engine: FakeEngine) -> None:
    await _all(llm.generate("x", SamplingParams(n=2, seed=2**63 - 1, max_tokens=1)))
    assert [request.sampling.seed for request in engine.added] == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ({"prompt_token_ids": []}, "prompt is empty"),
        ({"prompt": ""}, "prompt is empty"),
        ({}, "either prompt or prompt_token_ids"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "either prompt or prompt_token_ids"),
        ({"prompt": "a", "image": 1}, "either prompt or prompt_token_ids"),
        ([1, -5], "holds -5"),
        ([1, "a"], "holds 'a'"),
        ([1, True], "holds True"),
        (5, "prompt is a int"),
        ([49152], "token id 49152: ids must be below 49152"),
        ([5] * 64, "prompt has 64 tokens, but the context holds 64"),
        ([5] * 65, "prompt has 65 tokens, but the context holds 64"),
    ],
)
async def test_bad_prompts_are_refused_at_admission(
    llm: AsyncLLM, engine: FakeEngine, prompt: object, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        await llm.add_request(prompt)  # type: ignore[arg-type]
    assert caught.value.param == "prompt"
    assert engine.added == []


async def test_white_space_is_a_prompt(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    await _all(llm.generate(" ", SamplingParams(max_tokens=1)))
    assert engine.added[0].prompt_token_ids == smollm2.encode(" ")


async def test_the_longest_prompt_leaves_room_for_one_token(llm: AsyncLLM) -> None:
    outputs = await _all(llm.generate([5] * 63, SamplingParams(max_tokens=20)))
    assert len(outputs[-1].outputs[0].token_ids) == 1
    assert outputs[-1].outputs[0].finish_reason == "length"


async def test_max_tokens_none_goes_to_the_end_of_the_context(llm: AsyncLLM, engine: FakeEngine) -> None:
    await _all(llm.generate([5] * 10, SamplingParams(max_tokens=None)))
    assert engine.added[0].stop.max_tokens == 54


async def test_stop_token_ids_outside_the_vocabulary_are_refused(llm: AsyncLLM) -> None:
    with pytest.raises(InvalidRequest, match="stop_token_ids holds the token id 49152: ids must be below 49152"):
        await llm.add_request("x", SamplingParams(stop_token_ids=[49152]))


async def test_a_running_requests_id_is_taken(llm: AsyncLLM, engine: FakeEngine) -> None:
    engine.paused = True
    stream = await llm.add_request("x", request_id="a")
    with pytest.raises(InvalidRequest, match="'a' is taken"):
        await llm.add_request("x", request_id="a")
    stream.abort()
    again = await llm.add_request("x", SamplingParams(max_tokens=1), request_id="a")
    assert again.request_id == "a"
    assert len(engine.running) == 1  # the refused one did not disturb the others


async def test_leaving_the_iteration_aborts_all_answers(llm: AsyncLLM, engine: FakeEngine) -> None:
    outputs = llm.generate("x", SamplingParams(n=2, max_tokens=40))
    async for _ in outputs:
        break
    await outputs.aclose()  # type: ignore[attr-defined]
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.added)
    assert engine.running == []


async def test_cancelling_the_caller_aborts(llm: AsyncLLM, engine: FakeEngine) -> None:
    engine.paused = True
    task = asyncio.create_task(_all(llm.generate("x")))
    await engine.until(lambda: bool(engine.running))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.running == []


async def test_abort_by_id_ends_the_stream_with_an_error(llm: AsyncLLM, engine: FakeEngine) -> None:
    engine.paused = True
    stream = await llm.add_request("x", request_id="a")
    await llm.abort("a")
    await llm.abort("no such id")
    with pytest.raises(EngineError, match="request a was aborted"):
        await stream.final()
    assert engine.running == []


async def test_one_failed_request_does_not_touch_the_others(llm: AsyncLLM, engine: FakeEngine) -> None:
    engine.paused = True
    bad = await llm.add_request("x", SamplingParams(n=2, max_tokens=2))
    good = await llm.add_request("x", SamplingParams(max_tokens=2))
    engine.fail(engine.added[0].request_id, "the worker ended while this request ran: killed by SIGKILL")
    with pytest.raises(EngineError, match="the worker ended while this request ran"):
        await bad.final()
    assert engine.running == [engine.added[2].request_id]
    engine.step()
    engine.step()
    assert (await good.final()).outputs[0].finish_reason == "length"


async def test_the_death_of_the_engine_ends_live_requests_at_once(llm: AsyncLLM, engine: FakeEngine) -> None:
    engine.paused = True
    streams = [await llm.add_request("x"), await llm.add_request("y", SamplingParams(n=2))]
    engine.die("the engine core died: killed by signal 9", back=True)
    for stream in streams:
        with pytest.raises(EngineDead, match="killed by signal 9"):
            await stream.final()
    assert llm.health().state == "restarting"
    with pytest.raises(EngineNotReady, match="restarting"):
        await llm.add_request("x")


async def test_closing_ends_live_requests_and_health_says_dead(llm: AsyncLLM, engine: FakeEngine) -> None:
    engine.paused = True
    stream = await llm.add_request("x")
    await llm.close()
    await llm.close()
    with pytest.raises(EngineNotReady, match="closed"):
        await stream.final()
    assert engine.closed
    assert llm.health().state == "dead"
    with pytest.raises(EngineNotReady, match="closed"):
        await llm.add_request("x")


async def test_health_tells_of_the_start(smollm2: Tokenizer) -> None:
    gate = asyncio.Event()
    llm = AsyncLLM.from_parts(EngineArgs(), FakeEngine(start_gate=gate), smollm2)
    assert llm.health().state == "starting"
    starting = asyncio.create_task(llm.start())
    await asyncio.sleep(0.05)
    assert llm.health().state == "starting"
    gate.set()
    await starting
    assert llm.health().state == "ready"
    await llm.close()


async def test_a_failed_start_says_why_and_stays_dead(smollm2: Tokenizer) -> None:
    llm = AsyncLLM.from_parts(EngineArgs(), FakeEngine(start_error="no memory for the KV cache"), smollm2)
    with pytest.raises(EngineStartFailed, match="no memory for the KV cache"):
        await llm.start()
    assert (llm.health().state, llm.health().detail) == ("dead", "no memory for the KV cache")
    await llm.close()


async def test_an_unknown_model_fails_the_start() -> None:
    llm = AsyncLLM(EngineArgs(model="nosuch"))
    with pytest.raises(ModelNotFound, match="nosuch"):
        await llm.start()
    assert llm.health().state == "dead"


async def test_closing_during_the_start_gives_it_up(smollm2: Tokenizer) -> None:
    engine = FakeEngine(start_gate=asyncio.Event())
    llm = AsyncLLM.from_parts(EngineArgs(), engine, smollm2)
    starting = asyncio.create_task(llm.start())
    await asyncio.sleep(0.05)
    await llm.close()
    with pytest.raises(EngineNotReady, match="closed while it started"):
        await starting
    assert engine.closed


async def test_cancelling_the_start_stops_the_engine_and_it_can_start_again(smollm2: Tokenizer) -> None:
    gate = asyncio.Event()
    engine = FakeEngine(start_gate=gate)
    llm = AsyncLLM.from_parts(EngineArgs(), engine, smollm2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await llm.start()
    assert engine.closed
    gate.set()
    await llm.start()
    assert llm.health().state == "ready"
    await llm.close()


async def test_the_first_request_starts_the_engine(smollm2: Tokenizer) -> None:
    llm = AsyncLLM.from_parts(EngineArgs(), FakeEngine(), smollm2)
    outputs = await _all(llm.generate("x", SamplingParams(max_tokens=1)))
    assert outputs[-1].finished
    await llm.close()


async def test_chat_uses_the_template(llm: AsyncLLM, engine: FakeEngine, smollm2: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    outputs = await _all(llm.chat(messages, SamplingParams(max_tokens=2)))
    assert outputs[-1].prompt == smollm2.render_chat(messages)
    assert engine.added[0].prompt_token_ids == smollm2.encode(smollm2.render_chat(messages), add_special_tokens=False)


async def test_many_requests_leave_nothing_behind(llm: AsyncLLM, engine: FakeEngine) -> None:
    async def one(index: int) -> str:
        stream = await llm.add_request(f"x{index}", SamplingParams(max_tokens=1 + index % 5))
        if index % 3 == 0:
            stream.abort()
            return "aborted"
        return str((await stream.final()).outputs[0].finish_reason)

    ends = await asyncio.gather(*(one(index) for index in range(200)))
    assert ends.count("length") == 133
    assert engine.running == []
    running = llm._running()
    assert len(running.table) == 0
    assert running.table._answers == {}


def test_settings_of_the_wrong_kind_are_refused_with_the_right_way_to_write_them() -> None:
    with pytest.raises(TypeError, match=r"as EngineArgs\('smollm2'\)"):
        AsyncLLM("smollm2")  # type: ignore[arg-type]
    assert AsyncLLM(EngineArgs("smollm2")).args.model == "smollm2"
