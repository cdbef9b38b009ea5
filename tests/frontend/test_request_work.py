"""What one request costs the others: its work is bounded, off the loop, in turns, and its failures are its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from frontend_fakes import FakeEngine
from server_fixture import ServerThread
from test_encoding_queue import SlowProcessor
from tokenizers import Tokenizer as Backend
from tokenizers import models

from ringcast.frontend import startup
from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.encoding_queue import EncodingQueue
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import EngineError, InvalidRequest, TokenizerFailed
from ringcast.frontend.generation_config import GenerationConfig
from ringcast.frontend.input_processor import EncodedPrompt, EncodeJob, InputProcessor
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.server.settings import ServerSettings
from ringcast.frontend.tokenizer import Tokenizer


class CountingProcessor(InputProcessor):
    """Remembers on which threads bad words were tokenised; waits for ``gate`` before prompts."""

    word_threads: list[int]
    gate: threading.Event

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        type(self).word_threads = []
        type(self).gate = threading.Event()
        type(self).gate.set()

    def _bad_word_ids(self, *args: Any) -> list[list[int]]:
        self.word_threads.append(threading.get_ident())
        return super()._bad_word_ids(*args)

    def encode_all(self, jobs: Sequence[EncodeJob]) -> list[Any]:
        self.gate.wait(10)
        return super().encode_all(jobs)


@pytest.fixture(scope="module")
def kit(smollm2: Tokenizer) -> Iterator[tuple[ServerThread, FakeEngine]]:
    engine = FakeEngine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "InputProcessor", CountingProcessor)
        llm = AsyncLLM.from_parts(EngineArgs(), engine, smollm2)
        with ServerThread(llm, settings=ServerSettings(max_prompts_per_request=200)) as server:
            yield server, engine


def _post(server: ServerThread, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    headers = {"X-Request-Timeout": str(timeout)} if (timeout := body.pop("timeout", None)) else {}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=30)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"bad_words": ["x" * 30_000] * 128}, "bad_words", "a string of 30000 characters: at most 256"),
        ({"bad_words": ["x"] * 129}, "bad_words", "129 strings: at most 128"),
        ({"stop": ["x" * 5000]}, "stop", "a string of 5000 characters: at most 4096"),
        ({"prompt": "x" * 2_000_000}, "prompt", "a length of 2000000: at most 262144 characters"),
        ({"prompt": [5] * 262_100}, "prompt", "has 262100 tokens, but the context holds 64"),
        ({"prompt": ["x"] * 60_000}, "prompt", "60000 prompts with n=1: this server answers at most 200"),
        ({"prompt": ["x"] * 101, "n": 2}, "prompt", "101 prompts with n=2: this server answers at most 200"),
    ],
)
def test_what_would_cost_too_much_is_refused_by_name(
    kit: tuple[ServerThread, FakeEngine], body: dict[str, Any], param: str, said: str
) -> None:
    """C4, C9: before anything is tokenised, or made for each prompt."""
    server, engine = kit
    engine.added.clear()
    answer = _post(server, **{"prompt": "x", **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
    assert engine.added == []


def test_a_chat_that_is_far_too_long_is_refused_before_its_template_runs(kit: tuple[ServerThread, FakeEngine]) -> None:
    """C9: and so is what /tokenize gets."""
    body = {"messages": [{"role": "user", "content": "x" * 2_000_000}]}
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = _post(kit[0], path, **body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"


def test_bad_words_are_tokenised_once_a_request_and_off_the_loop(kit: tuple[ServerThread, FakeEngine]) -> None:
    """C9: 1,000 prompts with 128 bad words tokenised them 2,000 times on the loop."""
    server, engine = kit
    engine.added.clear()
    CountingProcessor.word_threads.clear()
    words = [f"word {number}" for number in range(128)]
    answer = _post(server, prompt=["a", "b"] * 100, bad_words=words, max_tokens=1)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 200
    assert len(CountingProcessor.word_threads) == 1
    assert CountingProcessor.word_threads[0] != server.call(threading.get_ident)
    assert all(len(request.sampling.bad_words or ()) >= 128 for request in engine.added)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_deadline_that_passes_while_a_prompt_is_tokenised_is_a_504(
    kit: tuple[ServerThread, FakeEngine], path: str, stream: bool
) -> None:
    """C9: it got 400 after 4.5 s."""
    more = {"stream": stream} if path == "/v1/completions" else {}
    CountingProcessor.gate.clear()
    try:
        answer = _post(kit[0], path, prompt="x", timeout=0.2, **more)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_passed"
    finally:
        CountingProcessor.gate.set()


@pytest.mark.parametrize("stream", [False, True])
def test_one_request_has_no_more_prompts_in_the_engine_than_it_can_run(smollm2: Tokenizer, stream: bool) -> None:
    """C4: behind them others have their turn."""
    engine = FakeEngine(paused=True)
    with ServerThread(AsyncLLM.from_parts(EngineArgs(), engine, smollm2)) as server:
        body = {"prompt": ["a", "b"] * 100, "max_tokens": 1, "stream": stream}
        asking = threading.Thread(target=lambda: _post(server, **body))
        asking.start()
        server_wait(server, lambda: len(engine.added) == 64)
        server.call(engine.step)
        server_wait(server, lambda: len(engine.added) == 128)
        engine.paused = False
        server.call(engine._wake.set)
        asking.join()
        assert len(engine.added) == 200


def server_wait(server: ServerThread, condition: Any) -> None:
    """Until ``condition`` holds, and holds still a moment later."""
    for _ in range(2000):
        if server.call(condition):
            break
        threading.Event().wait(0.005)
    threading.Event().wait(0.05)
    assert server.call(condition)


async def test_a_request_with_many_prompts_does_not_delay_one_with_one(smollm2: Tokenizer) -> None:
    """C9: requests take turns at the tokenizer."""
    processor = SlowProcessor(smollm2)
    queue = EncodingQueue(processor)
    many = asyncio.create_task(queue.encode_all([EncodeJob(f"number {index}", True) for index in range(1000)]))
    while len(processor.batches) < 2:
        await asyncio.sleep(0.001)
    one = asyncio.create_task(queue.encode(EncodeJob("mine", True)))
    await asyncio.sleep(0)
    processor.gate.set()
    assert (await one).text == "mine"
    assert len(processor.batches) <= 5, "of 16: it was in the third"
    assert [prompt.text for prompt in await many] == [f"number {index}" for index in range(1000)]


async def test_long_texts_have_a_thread_of_their_own(smollm2: Tokenizer) -> None:
    """C9: they cannot be cut; short ones go past them."""
    processor = SlowProcessor(smollm2)
    queue = EncodingQueue(processor)
    long = [asyncio.create_task(queue.encode(EncodeJob("word " * 10_000, True))) for _ in range(5)]
    while not processor.batches:
        await asyncio.sleep(0.001)
    fast = EncodingQueue(InputProcessor(smollm2))
    queue._short = fast._short  # which does not wait for the gate
    assert (await asyncio.wait_for(queue.encode(EncodeJob("short", True)), 10)).text == "short"
    assert processor.batches == [1]
    processor.gate.set()
    await asyncio.gather(*long)


class PanickingBackend:
    """A tokenizer whose post-processor panics, as native code does, for texts that say so."""

    def __init__(self, backend: Backend) -> None:
        broken = json.loads(Backend(models.WordLevel({"a": 0}, unk_token="a")).to_str())
        sequence = [{"Sequence": {"id": "B", "type_id": 0}}]
        broken["post_processor"] = {
            "type": "TemplateProcessing", "single": sequence, "pair": sequence, "special_tokens": {}
        }  # fmt: skip
        self._broken = Backend.from_str(json.dumps(broken))
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode_batch_fast(self, texts: list[str], **more: Any) -> Any:
        backend = self._broken if any("panic" in text for text in texts) else self._backend
        return backend.encode_batch_fast(texts, **more)

    def decode(self, ids: list[int], **more: Any) -> str:
        if 1000 in ids:
            self._broken.encode_batch_fast(["a"])
        return str(self._backend.decode(ids, **more))


@pytest.fixture
def panicking(smollm2: Tokenizer) -> Tokenizer:
    return Tokenizer(PanickingBackend(smollm2.backend), GenerationConfig(), smollm2.chat_template)  # type: ignore[arg-type]


async def test_a_panic_is_the_fault_of_its_text_alone(panicking: Tokenizer) -> None:
    """C51: a BaseException of native code ends its own job; batch mates get their prompts, and the queue lives on."""
    queue = EncodingQueue(InputProcessor(panicking))
    for _ in range(2):
        texts = ["good", "please panic", "fine"]
        jobs = [queue.encode(EncodeJob(text, True)) for text in texts]
        first, second, third = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 10)
        assert isinstance(first, EncodedPrompt) and first.text == "good"
        assert isinstance(third, EncodedPrompt) and third.text == "fine"
        assert isinstance(second, TokenizerFailed)
        assert "PanicException" in str(second)


async def test_any_base_exception_in_a_job_is_contained(smollm2: Tokenizer) -> None:
    """C51: not only the tokenizer's."""

    class Strange(BaseException):
        pass

    class Broken(InputProcessor):
        def _read(self, job: EncodeJob) -> EncodedPrompt:
            if job.prompt == "odd":
                raise Strange("odd")
            return super()._read(job)

    queue = EncodingQueue(Broken(smollm2))
    jobs = [queue.encode(EncodeJob(text, True)) for text in ("good", "odd", "fine")]
    results = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 10)
    assert [type(result) for result in results] == [EncodedPrompt, TokenizerFailed, EncodedPrompt]


def test_a_panic_is_told_to_the_client_and_the_server_goes_on(panicking: Tokenizer) -> None:
    """C51: the request never ended, and /health said ready."""
    with ServerThread(AsyncLLM.from_parts(EngineArgs(), FakeEngine(), panicking)) as server:
        for path in ("/v1/completions", "/tokenize"):
            answer = _post(server, path, prompt="please panic")
            assert answer.status_code == 500
            assert "the tokenizer failed on the text" in answer.json()["error"]["message"]
        answer = _post(server, prompt="x", bad_words=["panic"])
        assert answer.status_code == 500
        assert _post(server, prompt="good", max_tokens=1).status_code == 200


async def test_a_panic_in_decoding_ends_its_request_alone(panicking: Tokenizer) -> None:
    """C51: the detokenizer runs native code, too."""
    panicking.backend.decoder = None
    async with AsyncLLM.from_parts(EngineArgs(), FakeEngine(), panicking) as llm:
        params = SamplingParams(max_tokens=1, ignore_eos=True)
        bad, good = [await llm.add_request([token_id], params) for token_id in (1000, 1001)]
        with pytest.raises(EngineError, match="the tokenizer failed on the token ids"):
            await bad.final()
        assert len((await good.final()).outputs[0].token_ids) == 1


async def test_parameters_are_encoded_once_for_many_requests(smollm2: Tokenizer) -> None:
    """C9: in the library, too."""
    engine = FakeEngine()
    async with AsyncLLM.from_parts(EngineArgs(), engine, smollm2) as llm:
        params = await llm.encode_params(SamplingParams(bad_words=["no"], max_tokens=1))
        for prompt in await llm.encode_all(["a", "b"]):
            llm.check(prompt, params)
            await (await llm.add_request(prompt, params)).final()
        assert engine.added[0].sampling.bad_words is engine.added[1].sampling.bad_words
        with pytest.raises(InvalidRequest, match="ids must be below"):
            await llm.encode_params(SamplingParams(stop_token_ids=[60_000]))
