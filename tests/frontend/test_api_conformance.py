"""The server against its own OpenAPI document: random requests, right and wrong, none of which may break anything.

``make conformance`` runs it with many more cases.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_fixture import ServerThread
from tiny_model import write_tiny_model

from ringcast import AsyncLLM, EngineArgs
from ringcast.frontend.tokenizer import Tokenizer

CASES = int(os.environ.get("RINGCAST_CONFORMANCE_CASES", "80"))
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
RIGHT, WRONG = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
MESSAGES = [{"role": "user", "content": "Hi"}]
# Share of the cases; and of a right request the part that stays, beside some of its random fields: wholly random ones
# nearly always ask for something that the server has not.
OPERATIONS: list[tuple[str, str, schemathesis.GenerationMode, float, dict[str, Any] | None]] = [
    ("POST", "/v1/completions", RIGHT, 0.3, {"prompt": "x", "max_tokens": 3}),
    ("POST", "/v1/completions", WRONG, 0.1, None),
    ("POST", "/v1/chat/completions", RIGHT, 0.3, {"messages": MESSAGES, "max_tokens": 3}),
    ("POST", "/v1/chat/completions", WRONG, 0.1, None),
    ("POST", "/tokenize", RIGHT, 0.05, {"prompt": "x"}),
    ("POST", "/tokenize", WRONG, 0.05, None),
    ("POST", "/detokenize", RIGHT, 0.05, {"tokens": [5, 6]}),
    ("POST", "/detokenize", WRONG, 0.05, None),
    ("GET", "/v1/models/{model}", RIGHT, 0.05, None),
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, smollm2: Tokenizer) -> AsyncLLM:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, smollm2, {"eos_token_id": [0, 2]})
    config = json.dumps({"chat_template": smollm2.chat_template.source if smollm2.chat_template else None})
    (folder / "tokenizer_config.json").write_text(config)
    return AsyncLLM(EngineArgs(model=str(folder), max_model_len=64, scheduling_policy="priority"))


@pytest.fixture(scope="module")
def server(llm: AsyncLLM) -> Iterator[ServerThread]:
    with ServerThread(llm, model="tiny") as server:
        assert server.failure is None
        yield server


@pytest.fixture(scope="module")
def schema(server: ServerThread) -> Any:
    document = httpx.get(f"{server.url}/openapi.json").json()
    return schemathesis.openapi.from_dict(document)


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture(scope="module", autouse=True)
def nothing_leaks(server: ServerThread, llm: AsyncLLM) -> Iterator[None]:
    """Afterwards a normal request works, and what the engine and the process held before is what they hold."""
    process = psutil.Process()
    assert _normal_request(server) == "length"
    before = process.num_fds()
    yield
    assert _normal_request(server) == "length"
    assert httpx.get(f"{server.url}/load").json() == {"server_load": 0}
    assert server.call(lambda: len(llm._running().table)) == 0
    ours = urlsplit(server.url).port  # clients of other files' servers may still hold theirs
    ends = [c for c in process.net_connections("tcp") if ours in {end.port for end in (c.laddr, c.raddr) if end}]
    assert len(ends) == 1, f"the listener alone: {ends}"
    assert process.num_fds() <= before + 16, "a warm spare of a process may have come meanwhile, nothing else"
    assert httpx.get(f"{server.url}/health").json()["status"] == "ready"


def _normal_request(server: ServerThread) -> str:
    body = {"prompt": "x", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return str(httpx.post(f"{server.url}/v1/completions", json=body, timeout=20).json()["choices"][0]["finish_reason"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("method", "path", "mode", "share", "fixed"), OPERATIONS)
def test_no_request_breaks_the_server(
    server: ServerThread,
    schema: Any,
    method: str,
    path: str,
    mode: schemathesis.GenerationMode,
    share: float,
    fixed: dict[str, Any] | None,
    session: requests.Session,
) -> None:
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=math.ceil(CASES * share),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path][method].as_strategy(generation_mode=mode), fields=st.integers(0, 4), random=st.randoms())
    def campaign(case: schemathesis.Case, fields: int, random: Random) -> None:
        if fixed is not None and fields:
            names = random.sample(sorted(case.body), min(fields, len(case.body)))
            case.body = {**fixed, **{name: case.body[name] for name in names}}
            case.body.pop("model", None)
        response = case.call(base_url=server.url, session=session, timeout=20)
        case.validate_response(response, checks=CHECKS)
        statuses[response.status_code] += 1

    campaign()
    print(f"{method} {path}, {mode.value}: {dict(statuses)}")
    assert set(statuses) <= {200, 400, 404, 405}
    if fixed is not None:
        assert statuses[200]
