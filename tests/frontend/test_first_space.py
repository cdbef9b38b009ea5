"""The space between prompt and answer, with a tokenizer that strips the first space of a text: library and server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from frontend_fakes import FakeEngine
from server_fixture import ServerThread
from tokenizers_made_here import sentencepiece_style

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.sampling_params import SamplingParams
from ringcast.frontend.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return sentencepiece_style(["▁", "▁Hello", "▁world", "▁Paris", "!"])


@pytest.fixture(scope="module")
def answer(tokenizer: Tokenizer) -> list[int]:
    return [_id(tokenizer, "▁Paris"), _id(tokenizer, "!")]


def _id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.backend.token_to_id(token)
    assert token_id is not None
    return token_id


@pytest.fixture(scope="module")
def engine(answer: list[int]) -> FakeEngine:
    engine = FakeEngine()
    engine.script = lambda request: answer[: request.stop.max_tokens]
    return engine


@pytest.fixture(scope="module")
def client(engine: FakeEngine, tokenizer: Tokenizer) -> Iterator[openai.OpenAI]:
    with ServerThread(AsyncLLM.from_parts(EngineArgs(), engine, tokenizer)) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("kind", ["echo", "answer"])
def test_a_completion_begins_with_its_space(
    client: openai.OpenAI, tokenizer: Tokenizer, kind: str, answer: list[int]
) -> None:
    """C18: "Hello world" with " Paris!" behind it used to be "Hello worldParis!"."""
    prompt = [_id(tokenizer, "▁Hello"), _id(tokenizer, "▁world")]
    expected = "Hello world Paris!" if kind == "echo" else " Paris!"
    assert tokenizer.decode([*prompt, *answer]) == "Hello world Paris!"
    arguments = {"model": "smollm2", "prompt": prompt, "echo": kind == "echo", "max_tokens": 2}
    assert client.completions.create(**arguments).choices[0].text == expected  # type: ignore[call-overload]
    chunks = client.completions.create(**arguments, stream=True)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected


async def test_an_answer_to_nothing_but_special_tokens_begins_a_text(tokenizer: Tokenizer, answer: list[int]) -> None:
    """C18: there a decoder strips the space."""
    engine = FakeEngine()
    engine.script = lambda request: answer[: request.stop.max_tokens]
    async with AsyncLLM.from_parts(EngineArgs(), engine, tokenizer) as llm:
        end = _id(tokenizer, "</s>")
        for prompt, text in (([end], "Paris!"), ([end, _id(tokenizer, "▁Hello")], " Paris!")):
            outputs = [output async for output in llm.generate(prompt, SamplingParams(max_tokens=2, n=2))]
            assert [one.text for one in outputs[-1].outputs] == [text, text]
