"""A model with a context of 131,072 tokens can be given all of it over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from frontend_fakes import FakeEngine
from server_fixture import ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.tokenizer import Tokenizer

CONTEXT = 131_072


@pytest.fixture(scope="module")
def server(smollm2: Tokenizer) -> Iterator[ServerThread]:
    llm = AsyncLLM.from_parts(EngineArgs(), FakeEngine(max_model_len=CONTEXT), smollm2)
    with ServerThread(llm) as server:
        yield server


def _post(server: ServerThread, path: str, **body: object) -> httpx.Response:
    return httpx.post(server.url + path, json={"max_tokens": 1, **body}, timeout=60)


def test_a_prompt_of_ids_may_fill_the_context(server: ServerThread) -> None:
    answer = _post(server, "/v1/completions", prompt=list(range(100, 100 + 40_000)) * 3 + [7] * (CONTEXT - 120_001))
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] == CONTEXT - 1
    answer = _post(server, "/v1/completions", prompt=[7] * CONTEXT)
    assert answer.status_code == 400
    assert f"the context holds {CONTEXT}" in answer.json()["error"]["message"]


def test_texts_may_fill_the_context(server: ServerThread) -> None:
    """655,000 characters, as a prompt, a chat, and for the tokenizer's endpoint."""
    text = " word" * (CONTEXT - 100)
    completion = _post(server, "/v1/completions", prompt=text)
    assert completion.json()["usage"]["prompt_tokens"] == CONTEXT - 100
    chat = _post(server, "/v1/chat/completions", messages=[{"role": "user", "content": text}])
    assert CONTEXT - 100 < chat.json()["usage"]["prompt_tokens"] < CONTEXT
    tokens = httpx.post(server.url + "/tokenize", json={"prompt": text}, timeout=60).json()["tokens"]
    assert len(tokens) == CONTEXT - 100
    back = httpx.post(server.url + "/detokenize", json={"tokens": tokens}, timeout=60)
    assert back.json()["prompt"] == text
