"""LLMEngine, driven step by step as vLLM's scripts do: the results of LLM.generate, aborts, errors, interrupts."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from frontend_fakes import FakeEngine

import ringcast
from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import EngineError, EngineNotReady, InvalidRequest
from ringcast.frontend.llm import LLM
from ringcast.frontend.llm_engine import LLMEngine
from ringcast.frontend.outputs import RequestOutput
from ringcast.frontend.sampling_params import RequestOutputKind, SamplingParams
from ringcast.frontend.tokenizer import Tokenizer

PROMPTS = [f"number {index} is " + "very " * index + "nice" for index in range(8)]
PARAMS = [
    SamplingParams(max_tokens=1 + (7 * index) % 12, n=1 + index % 2, seed=7, logprobs=index % 3 or None)
    for index in range(8)
]


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def engine(fake: FakeEngine, smollm2: Tokenizer) -> Iterator[LLMEngine]:
    with LLMEngine.from_async_llm(AsyncLLM.from_parts(EngineArgs(), fake, smollm2)) as engine:
        yield engine


def run_all(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    """Step to the end: every request's results in their order."""
    results: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        outputs = engine.step()
        assert outputs, "a step waits for news"
        assert len({output.request_id for output in outputs}) == len(outputs), "one result for a request"
        for output in outputs:
            results.setdefault(output.request_id, []).append(output)
    return results


def test_stepping_to_the_end_gives_what_generate_gives(engine: LLMEngine, smollm2: Tokenizer) -> None:
    with LLM.from_async_llm(AsyncLLM.from_parts(EngineArgs(), FakeEngine(), smollm2)) as llm:
        expected = llm.generate(PROMPTS, PARAMS)
    for index, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(index), prompt, params)
    assert engine.get_num_unfinished_requests() == 8
    results = run_all(engine)
    assert sorted(results) == [str(index) for index in range(8)]
    for index, wanted in enumerate(expected):
        final = results[str(index)][-1]
        assert final.finished
        assert [output.finished for output in results[str(index)]].count(True) == 1
        assert (final.prompt, final.prompt_token_ids) == (wanted.prompt, wanted.prompt_token_ids)
        assert final.outputs == wanted.outputs
    assert (engine.get_num_unfinished_requests(), engine.step()) == (0, [])


def go_on(engine: LLMEngine, fake: FakeEngine) -> None:
    """End the fake's pause."""

    async def on_its_loop() -> None:
        fake.paused = False
        fake._wake.set()

    engine._thread.run(on_its_loop())


def test_requests_join_between_steps_and_ids_may_be_used_again(engine: LLMEngine, fake: FakeEngine) -> None:
    async def first_step() -> None:
        fake.step()

    fake.paused = True
    engine.add_request("a", "first of all", SamplingParams(max_tokens=20))
    engine._thread.run(first_step())
    assert [len(output.outputs[0].token_ids) for output in engine.step()] == [1]
    engine.add_request("b", "and second", SamplingParams(max_tokens=3))
    go_on(engine, fake)
    assert {"a", "b"} == set(run_all(engine))
    engine.add_request("a", "once more", SamplingParams(max_tokens=1))
    (again,) = run_all(engine)["a"]
    assert again.prompt == "once more"


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_the_kind_of_output_says_what_steps_give(engine: LLMEngine, kind: RequestOutputKind) -> None:
    params = SamplingParams(max_tokens=10, output_kind=kind)
    engine.add_request("a", [5, 6, 7], params)
    results = run_all(engine)["a"]
    ids = [output.outputs[0].token_ids for output in results]
    whole = [5, 6, 7, 5, 6, 7, 5, 6, 7, 5]
    if kind is RequestOutputKind.DELTA:
        assert [token for part in ids for token in part] == whole
    else:
        assert ids[-1] == whole
        assert all(whole[: len(part)] == part for part in ids)
    assert kind is not RequestOutputKind.FINAL_ONLY or len(ids) == 1


def test_aborted_requests_have_no_more_results_and_end_in_the_engine(engine: LLMEngine, fake: FakeEngine) -> None:
    fake.step_s, fake.max_model_len = 0.002, 10_000
    for name in "abcd":
        engine.add_request(name, [5, 6], SamplingParams(max_tokens=9000))
    engine.step()
    engine.abort_request("a")
    engine.abort_request(["b", "b", "never heard of"])
    assert engine.get_num_unfinished_requests() == 2
    assert {output.request_id for _ in range(5) for output in engine.step()} <= {"c", "d"}
    engine.abort_request(iter(["c", "d"]))
    assert (engine.has_unfinished_requests(), engine.step()) == (False, [])
    assert [name.split("#")[0] for name in fake.aborted] == ["a", "b", "c", "d"]


def test_what_is_refused_is_not_added(engine: LLMEngine) -> None:
    engine.add_request("a", "fine", SamplingParams(max_tokens=3))
    with pytest.raises(InvalidRequest, match="'a' has not finished yet"):
        engine.add_request("a", "again")
    with pytest.raises(InvalidRequest, match="request_id must be a string, not int"):
        engine.add_request(1, "a number")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        engine.add_request("b", [10**6])
    with pytest.raises(InvalidRequest, match="sampling_params is a dict: give a SamplingParams, or None"):
        engine.add_request("b", "with vLLM's words", {})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="priority"):
        engine.add_request("c", "soon", priority=3)
    assert list(run_all(engine)) == ["a"]


def test_an_error_of_one_request_is_raised_and_costs_the_others_nothing(engine: LLMEngine, fake: FakeEngine) -> None:
    fake.paused = True
    for name in "abc":
        engine.add_request(name, [5, 6], SamplingParams(max_tokens=30, output_kind=RequestOutputKind.DELTA))
    engine._thread.run(engine._llm.abort("b"))  # ends it with an error
    go_on(engine, fake)
    tokens: dict[str, list[int]] = {"a": [], "c": []}
    errors = []
    while engine.has_unfinished_requests():
        try:
            for output in engine.step():
                tokens[output.request_id] += output.outputs[0].token_ids
        except EngineError as error:
            errors.append(str(error))
    assert errors == ["request b was aborted"]
    assert tokens == {"a": [5, 6] * 15, "c": [5, 6] * 15}


def test_ctrl_c_ends_the_waiting_and_nothing_else(engine: LLMEngine, fake: FakeEngine) -> None:
    fake.paused = True
    engine.add_request("a", [5, 6], SamplingParams(max_tokens=4))

    def interrupt() -> None:
        while engine._live["a"].next is None:  # until the step waits
            time.sleep(0.005)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    go_on(engine, fake)
    assert run_all(engine)["a"][-1].outputs[0].token_ids == [5, 6, 5, 6]


def test_closing_ends_it_with_requests_unfinished(engine: LLMEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.add_request("a", [5, 6], SamplingParams(max_tokens=40))
    engine.step()
    engine.close()
    engine.close()
    with pytest.raises(EngineNotReady, match="closed"):
        engine.step()
    del engine
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_it_is_a_public_name() -> None:
    assert ringcast.LLMEngine is LLMEngine
    assert "LLMEngine" in ringcast.__all__
