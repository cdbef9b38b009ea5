"""LLM, the synchronous face: prompts in all forms, results in order, errors, interrupts."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frontend_fakes import FakeEngine

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import EngineNotReady, EngineStartFailed, InvalidRequest, ModelNotFound
from ringcast.frontend.llm import LLM
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.tokenizer import Tokenizer


@pytest.fixture
def llm(engine: FakeEngine, smollm2: Tokenizer) -> Iterator[LLM]:
    with LLM.from_async_llm(AsyncLLM.from_parts(EngineArgs(), engine, smollm2)) as llm:
        yield llm


def test_one_prompt_in_every_form(llm: LLM, smollm2: Tokenizer) -> None:
    ids = smollm2.encode("Hello there")
    for prompt in ("Hello there", ids, {"prompt": "Hello there"}, {"prompt_token_ids": ids}, ["Hello there"]):
        outputs = llm.generate(prompt, SamplingParams(max_tokens=2))
        assert len(outputs) == 1
        assert outputs[0].prompt_token_ids == ids
        assert outputs[0].outputs[0].text == "Hello there"
        assert outputs[0].finished


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"number {index}" for index in range(20)]
    params = [SamplingParams(max_tokens=1 + (7 * index) % 5) for index in range(20)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [p.max_tokens for p in params]


def test_a_list_of_token_lists_is_several_prompts(llm: LLM) -> None:
    outputs = llm.generate([[5, 6], [7]], SamplingParams(max_tokens=1))
    assert [output.prompt_token_ids for output in outputs] == [[5, 6], [7]]


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_no_parameters_mean_the_models_defaults(llm: LLM, engine: FakeEngine) -> None:
    llm.generate("x")
    assert engine.added[0].sampling.temperature == 1.0
    assert engine.added[0].stop.max_tokens == 16


def test_the_number_of_parameters_must_fit(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="2 entries for 1 prompts"):
        llm.generate(["x"], [SamplingParams()] * 2)


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (None, None, "prompts is a NoneType: give a prompt, or a list of them"),
        (b"bytes", None, "prompts is a bytes: give a prompt"),
        (7, None, "prompts is a int: give a prompt"),
        ("x", {"max_tokens": 3}, "sampling_params is a dict: give a SamplingParams, or a list of them"),
        (["x"], [{"max_tokens": 3}], "sampling_params holds a dict: each must be a SamplingParams"),
    ],
)
def test_what_is_no_prompt_or_no_parameters_is_named(llm: LLM, prompts: Any, params: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        llm.generate(prompts, params)


def test_one_bad_prompt_refuses_the_batch_before_anything_runs(llm: LLM, engine: FakeEngine) -> None:
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        llm.generate(["fine", ""])
    assert engine.added == []
    assert llm.generate("fine", SamplingParams(max_tokens=1))[0].finished


def test_chat_takes_one_conversation_or_several(llm: LLM, smollm2: Tokenizer) -> None:
    hi, bye = ([{"role": "user", "content": text}] for text in ("Hi", "Bye"))
    assert llm.chat(hi, SamplingParams(max_tokens=1))[0].prompt == smollm2.render_chat(hi)
    prompts = [output.prompt for output in llm.chat([hi, bye], SamplingParams(max_tokens=1))]
    assert prompts == [smollm2.render_chat(hi), smollm2.render_chat(bye)]
    begun = [*hi, {"role": "assistant", "content": "Well"}]
    (open_end,) = llm.chat(begun, add_generation_prompt=False, continue_final_message=True)
    assert open_end.prompt == smollm2.render_chat(hi) + "Well"
    with pytest.raises(InvalidRequest, match="exclude each other"):
        llm.chat(begun, continue_final_message=True)
    with pytest.raises(InvalidRequest, match="messages is empty"):
        llm.chat([])


def test_it_works_inside_a_running_loop_as_in_a_notebook(llm: LLM) -> None:
    async def cell() -> str:
        return llm.generate("Hello", SamplingParams(max_tokens=1))[0].outputs[0].text

    assert asyncio.run(cell()) == "Hello"


def test_it_works_from_several_threads(llm: LLM) -> None:
    texts: dict[int, str] = {}

    def call(index: int) -> None:
        texts[index] = llm.generate(f"t{index}", SamplingParams(max_tokens=8))[0].outputs[0].text

    threads = [threading.Thread(target=call, args=(index,)) for index in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(text.startswith(f"t{index}") for index, text in texts.items())
    assert len(texts) == 5


def test_keyboard_interrupt_aborts_the_requests_and_the_engine_goes_on(llm: LLM, engine: FakeEngine) -> None:
    engine.paused = True

    def interrupt() -> None:
        while not engine.running:
            time.sleep(0.005)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x", "y"], SamplingParams(max_tokens=40))
    assert engine.running == []
    engine.paused = False
    assert llm.generate("x", SamplingParams(max_tokens=1))[0].finished


def test_closing_is_safe_twice_and_ends_the_engine(engine: FakeEngine, smollm2: Tokenizer) -> None:
    llm = LLM.from_async_llm(AsyncLLM.from_parts(EngineArgs(), engine, smollm2))
    llm.close()
    llm.close()
    assert engine.closed
    assert llm.health().state == "dead"
    with pytest.raises(EngineNotReady, match="closed"):
        llm.generate("x")
    with pytest.raises(EngineNotReady, match="closed"):
        llm.generate("x", SamplingParams())


def test_forgetting_it_ends_the_engine(engine: FakeEngine, smollm2: Tokenizer) -> None:
    threads = threading.active_count()
    LLM.from_async_llm(AsyncLLM.from_parts(EngineArgs(), engine, smollm2))
    assert engine.closed
    assert not any(thread.name == "ringcast LLM" for thread in threading.enumerate())
    assert threading.active_count() <= threads + 1  # the executor of the tokenizer may live on


def test_being_collected_on_its_own_loop_ends_the_engine_too(engine: FakeEngine, smollm2: Tokenizer) -> None:
    llm = LLM.from_async_llm(AsyncLLM.from_parts(EngineArgs(), engine, smollm2))
    thread = llm._thread._thread

    async def collect_there() -> None:
        llm.close()

    llm._thread._loop.call_soon_threadsafe(asyncio.ensure_future, collect_there())
    thread.join(5)
    assert not thread.is_alive()
    assert engine.closed


def test_a_failed_start_leaves_no_thread(smollm2: Tokenizer) -> None:
    with pytest.raises(EngineStartFailed, match="boom"):
        LLM.from_async_llm(AsyncLLM.from_parts(EngineArgs(), FakeEngine(start_error="boom"), smollm2))
    with pytest.raises(ModelNotFound, match="nosuch"):
        LLM("nosuch")
    assert not any(thread.name == "ringcast LLM" for thread in threading.enumerate())


def test_the_constructor_takes_every_engine_argument_with_its_default() -> None:
    parameters = inspect.signature(LLM).parameters
    assert {name: parameters[name].default for name in parameters} == {
        field.name: field.default for field in dataclasses.fields(EngineArgs)
    }


@pytest.mark.parametrize("value", [-2, 10**12, 10**30, 1.5, "many", True, math.nan, []], ids=str)
def test_an_absurd_size_is_refused_at_once_by_its_name(value: Any) -> None:
    """At once: a model that is not there would be the next thing to be told."""
    sizes = [field.name for field in dataclasses.fields(EngineArgs) if str(field.type) in ("int", "int | None")]
    assert len(sizes) == 8
    for name in sizes:
        if (name, value) == ("kv_cache_memory_bytes", 10**12):
            continue  # a large machine's
        with pytest.raises(ValueError, match=rf"^{name}( is |=){re.escape(repr(value))}: .*\d") as refused:
            LLM("nosuch", **{name: value})
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="^block_size is 17: use a multiple of 16$"):
        LLM("nosuch", block_size=17)


@pytest.mark.parametrize("name", ["dtype", "scheduling_policy", "quantization", "enable_prefix_caching"])
@pytest.mark.parametrize("value", ["other", None, 3, []], ids=str)
def test_a_wrong_choice_is_refused_at_once_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}( is |=){re.escape(repr(value))}: use "):
        LLM("nosuch", **{name: value})


def test_quantization_reaches_the_worker() -> None:
    assert EngineArgs(quantization="gguf").worker_config(Path("x.gguf")).quantization == "gguf"
    with pytest.raises(ValueError, match=r"quantization is 'int3': use one of none, gguf"):
        EngineArgs(quantization="int3").worker_config(Path("x.gguf"))
