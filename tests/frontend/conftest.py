"""Shared by the frontend's tests: the real model's tokenizer, the reference records, fake engines, a server over one.

Files whose engine, AsyncLLM or server is another one name theirs alike.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from frontend_fakes import FakeEngine
from server_fixture import EOS, TEXT, ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.detokenizer import TextDecoder
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.engine_client import Health
from ringcast.frontend.model_source import resolve_model
from ringcast.frontend.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import openai

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    """The built-in model's tokenizer, from its GGUF."""
    return load_tokenizer(resolve_model("smollm2"))


@pytest.fixture(scope="session")
def smollm2_decoder(smollm2: Tokenizer) -> TextDecoder:
    return TextDecoder(smollm2)


@pytest.fixture(scope="session")
def greedy_records() -> list[dict[str, Any]]:
    """HF transformers' greedy continuations of 12 prompts, in float32."""
    return json.loads((DATA / "smollm2_greedy.json").read_text())


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def llm(engine: FakeEngine, smollm2: Tokenizer) -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM.from_parts(EngineArgs(), engine, smollm2) as llm:
        yield llm


@pytest.fixture(scope="module")
def server_args() -> EngineArgs:
    """Of the `server`."""
    return EngineArgs()


@pytest.fixture(scope="module")
def server_and_engine(server_args: EngineArgs, smollm2: Tokenizer) -> Iterator[tuple[ServerThread, FakeEngine]]:
    engine = FakeEngine()
    with ServerThread(AsyncLLM.from_parts(server_args, engine, smollm2)) as server:
        yield server, engine


@pytest.fixture
def server(server_and_engine: tuple[ServerThread, FakeEngine]) -> ServerThread:
    """One for a file's tests."""
    return server_and_engine[0]


@pytest.fixture
def served_engine(server_and_engine: tuple[ServerThread, FakeEngine], smollm2: Tokenizer) -> Iterator[FakeEngine]:
    """The engine behind `server`, back to its first state; says `TEXT` to everything."""
    engine = server_and_engine[1]
    engine.added.clear()
    engine.aborted.clear()
    engine.paused = False
    engine.step_s = 0.0
    engine.tokens_per_step = 1
    engine.state = Health("ready")
    engine.script = lambda request: [*smollm2.encode(TEXT), EOS][: request.stop.max_tokens]
    yield engine
    assert engine.running == []


@pytest.fixture
def client(server: ServerThread, served_engine: FakeEngine) -> openai.OpenAI:
    import openai  # slow to import, and most files need none

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
