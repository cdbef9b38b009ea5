"""The OpenAI-compatible server over a fake engine, with the official client and with raw requests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest
from chunk_checker import Stream, check_client_stream, check_stream, sse_payloads
from frontend_fakes import FakeEngine
from server_fixture import ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.engine_client import Health
from ringcast.frontend.tokenizer import Tokenizer

HTTP = httpx.Client()  # one for all: a new one costs 20 ms
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def engine(served_engine: FakeEngine) -> FakeEngine:
    return served_engine


def _post(server: ServerThread, path: str, body: Any) -> httpx.Response:
    content = json.dumps(body).encode()  # as ASCII: bodies may hold what has no UTF-8 form
    headers = {"content-type": "application/json"}
    return HTTP.post(f"{server.url}{path}", content=content, headers=headers, timeout=10)


def _stream(server: ServerThread, path: str, body: dict[str, Any]) -> Stream:
    chat = "chat" in path
    with HTTP.stream("POST", f"{server.url}{path}", json={**body, "stream": True}, timeout=10) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        payloads = sse_payloads(response.iter_lines())
    prompts = body.get("prompt")
    several = len(prompts) if isinstance(prompts, list) and isinstance(prompts[0], str | list) else 1
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return check_stream(
        payloads,
        chat=chat,
        n=body.get("n", 1) * several,
        include_usage=usage,
        logprobs=body.get("logprobs") not in (None, False),
        token_ids=bool(body.get("return_token_ids")),
    )


def test_chat_with_the_official_client(client: openai.OpenAI, engine: FakeEngine, smollm2: Tokenizer) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=HI, temperature=0, seed=7)  # type: ignore[arg-type]
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello  🌊!", "stop")
    assert answer.object == "chat.completion"
    assert answer.usage is not None
    prompt_tokens = len(smollm2.encode(smollm2.render_chat(HI)))
    completion_tokens = len(smollm2.encode("Hello  🌊!")) + 1
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, completion_tokens)
    assert answer.usage.total_tokens == prompt_tokens + completion_tokens
    assert choice.model_extra is not None
    assert choice.model_extra["seed"] == 7
    assert engine.added[0].sampling.temperature == 0
    assert engine.added[0].stop.max_tokens == 64 - prompt_tokens


def test_chat_streams_with_the_official_client(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=HI,
        stream=True,
        stream_options={"include_usage": True},  # type: ignore[arg-type]
    )
    checked = check_client_stream(stream, chat=True, include_usage=True)
    assert (checked.choices[0].text, checked.choices[0].finish_reason) == ("Hello  🌊!", "stop")


def test_completions_with_the_official_client(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.completions.create(model="smollm2", prompt="Say", max_tokens=2, temperature=0.5, top_p=0.9)
    assert (answer.object, answer.choices[0].text) == ("text_completion", "Hello ")
    assert answer.choices[0].finish_reason == "length"
    rule = engine.added[0].sampling
    assert (rule.temperature, rule.top_p) == (0.5, 0.9)


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_chat_chunks_are_in_order(
    server: ServerThread, engine: FakeEngine, n: int, include_usage: bool, smollm2: Tokenizer
) -> None:
    body: dict[str, Any] = {"model": "smollm2", "messages": HI, "n": n, "seed": 5}
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    stream = _stream(server, "/v1/chat/completions", body)
    assert [choice.text for choice in stream.choices.values()] == ["Hello  🌊!"] * n
    assert {index: choice.seed for index, choice in stream.choices.items()} == {i: 5 + i for i in range(n)}
    if include_usage:
        assert stream.usage is not None
        assert stream.usage["prompt_tokens"] == len(smollm2.encode(smollm2.render_chat(HI)))
        assert stream.usage["completion_tokens"] == n * (len(smollm2.encode("Hello  🌊!")) + 1)


@pytest.mark.parametrize("prompt", ["Say", ["Say", "it"], [5, 6, 7], [[5, 6], [7], [8, 9]]])
def test_completions_take_every_form_of_prompt(
    server: ServerThread, engine: FakeEngine, smollm2: Tokenizer, prompt: Any
) -> None:
    several = prompt if isinstance(prompt, list) and isinstance(prompt[0], str | list) else [prompt]
    ids = [smollm2.encode(item) if isinstance(item, str) else item for item in several]
    body = {"prompt": prompt, "n": 2, "max_tokens": 3, "stream_options": {"include_usage": True}}
    stream = _stream(server, "/v1/completions", body)
    assert [request.prompt_token_ids for request in engine.added] == [item for item in ids for _ in range(2)]
    assert len(stream.choices) == 2 * len(several)
    assert stream.usage == {
        "prompt_tokens": sum(map(len, ids)),
        "completion_tokens": 6 * len(several),
        "total_tokens": sum(map(len, ids)) + 6 * len(several),
    }
    del body["stream_options"]
    whole = _post(server, "/v1/completions", body).json()
    assert [choice["index"] for choice in whole["choices"]] == list(range(2 * len(several)))
    assert [choice["text"] for choice in whole["choices"]] == [stream.choices[i].text for i in range(2 * len(several))]
    assert whole["usage"] == stream.usage


def test_stop_strings_end_both_kinds_of_answer(server: ServerThread, engine: FakeEngine) -> None:
    body = {"messages": HI, "stop": ["🌊", "never"]}
    stream = _stream(server, "/v1/chat/completions", body)
    assert (stream.choices[0].text, stream.choices[0].finish_reason) == ("Hello  ", "stop")
    choice = _post(server, "/v1/chat/completions", body).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("Hello  ", "🌊")


def test_text_parts_and_developer_messages(server: ServerThread, engine: FakeEngine, smollm2: Tokenizer) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    assert _post(server, "/v1/chat/completions", {"messages": messages}).status_code == 200
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\nb"}]
    assert smollm2.decode(engine.added[0].prompt_token_ids, skip_special_tokens=False) == smollm2.render_chat(expected)


CHAT_400 = [
    ({"tools": [{"type": "function"}]}, "tools", "not supported yet"),
    ({"response_format": {"type": "json_object"}}, "response_format", "not supported yet"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21: this engine tells 0 to 20"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "0 or more"),
    ({"logprobs": 1}, "logprobs", "valid boolean"),
    ({"logit_bias": {"49152": 1}}, "logit_bias", "below 49152"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "has the key 'x'"),
    ({"logit_bias": {"5": 101}}, "logit_bias[5]", "[-100, 100]"),
    ({"presence_penalty": 2.5}, "presence_penalty", "[-2, 2]"),
    ({"frequency_penalty": "no"}, "frequency_penalty", "valid number"),
    ({"priority": 1}, "priority", "scheduling_policy"),
    ({"cache_salt": ""}, "cache_salt", "at least one character"),
    ({"echo": True}, "echo", "not supported yet"),
    ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages", "not valid Unicode"),
    ({"functions": [{}]}, "functions", "not supported yet"),
    ({"tool_choice": "required"}, "tool_choice", "not supported yet"),
    ({"modalities": ["audio"]}, "modalities", "not supported yet"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "not supported yet"),
    ({"store": True}, "store", "not supported yet"),
    ({"frobnicate": 1}, "frobnicate", "unknown parameter"),
    ({"temperature": -1}, "temperature", "[0, 100]"),
    ({"temperature": "hot"}, "temperature", "valid number"),
    ({"top_p": 0}, "top_p", "(0, 1]"),
    ({"n": 0}, "n", "[1, 128]"),
    ({"max_tokens": 0}, "max_tokens", "[1, "),
    ({"max_completion_tokens": 1000}, "max_tokens", "the context holds 64"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "not both"),
    ({"stop": ["a", ""]}, "stop", "at least one character"),
    ({"stop_token_ids": [49152]}, "stop_token_ids", "below 49152"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"messages": []}, "messages", "messages is empty"),
    ({"messages": "Hi"}, "messages", "valid list"),
    ({"messages": [{"role": "narrator", "content": "x"}]}, "messages", "role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "not supported yet"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "not supported yet",
    ),
    ({"messages": [{"role": "user", "content": "word " * 80}]}, "messages", "the context holds 64"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("change", "param", "message"), CHAT_400)
def test_bad_chat_requests_get_a_400_in_openais_shape(
    server: ServerThread, engine: FakeEngine, change: dict[str, Any], param: str, message: str, stream: bool
) -> None:
    if "stream_options" in change and stream:
        change = {"stream_options": {"include_obfuscation": True}}
        message = "not supported yet"
        param = "include_obfuscation"
    response = _post(server, "/v1/chat/completions", {"messages": HI, "stream": stream, **change})
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]
    assert engine.added == []


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "prompt is empty"),
        ({"prompt": [""]}, "prompt", "prompt is empty"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": [[]]}, "prompt", "prompt is empty"),
        ({"prompt": ["fine", ""]}, "prompt", "prompt is empty"),
        ({"prompt": [1.5]}, "prompt", "valid"),
        ({"prompt": [49152]}, "prompt", "below 49152"),
        ({"prompt": [-1]}, "prompt", "holds -1"),
        ({"prompt": None}, "prompt", "valid"),
        ({"prompt": [5] * 64}, "prompt", "the context holds 64"),
        ({"prompt": [5] * 60, "max_tokens": 5}, "max_tokens", "ask for 4 or less"),
        ({"suffix": "x"}, "suffix", "not supported yet"),
        ({"best_of": 2}, "best_of", "not supported yet"),
        ({"logprobs": 21}, "logprobs", "logprobs is 21: this engine tells 0 to 20"),
        ({"logprobs": True}, "logprobs", "valid integer"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "leave out one of them"),
        ({"prompt_logprobs": 30}, "prompt_logprobs", "0 to 20"),
        ({"min_p": 2}, "min_p", "[0, 1]"),
        ({"repetition_penalty": 0}, "repetition_penalty", "[0.01, 100]"),
        ({"min_tokens": 17}, "min_tokens", "[0, 16]"),
        ({"bad_words": [""]}, "bad_words", "at least one character"),
        ({"bad_words": ["a\ud800"]}, "bad_words", "not valid Unicode"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "nothing could be drawn"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "[1, ...]"),
        ({"max_tokens": -1}, "max_tokens", "[1, "),
        ({"prompt": "a\ud800"}, "prompt", "not valid Unicode"),
        ({"use_beam_search": True}, "use_beam_search", "not supported yet"),
    ],
)
def test_bad_completion_requests_get_a_400(
    server: ServerThread, engine: FakeEngine, change: dict[str, Any], param: str, message: str
) -> None:
    response = _post(server, "/v1/completions", {"prompt": "x", **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert message in response.json()["error"]["message"]
    assert engine.added == []


@pytest.mark.parametrize("change", [{"\ud800": 1}, {"model": "\ud800"}, {"suffix": "\ud800"}, {"seed": "\ud800"}])
def test_what_is_no_unicode_text_is_the_clients_error(server: ServerThread, engine: FakeEngine, change: Any) -> None:
    response = _post(server, "/v1/completions", {"prompt": "x", **change})
    assert response.status_code in (400, 404)
    assert response.json()["error"]["message"]


def test_neutral_values_of_missing_parameters_pass(server: ServerThread, engine: FakeEngine) -> None:
    chat = {
        "messages": HI, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logprobs": False,
        "top_logprobs": None, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "me",
        "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True, "modalities": ["text"],
    }  # fmt: skip
    assert _post(server, "/v1/chat/completions", chat).status_code == 200
    completion = {"prompt": "x", "suffix": None, "echo": False, "best_of": 1, "logprobs": None, "min_p": 0}
    assert _post(server, "/v1/completions", completion).status_code == 200


def test_a_completion_at_the_contexts_end_is_cut_when_no_limit_was_asked(
    server: ServerThread, engine: FakeEngine
) -> None:
    assert _post(server, "/v1/completions", {"prompt": [5] * 62}).status_code == 200
    assert engine.added[0].stop.max_tokens == 2


def test_a_body_that_is_not_json(server: ServerThread, engine: FakeEngine) -> None:
    response = httpx.post(
        f"{server.url}/v1/completions", content=b"{nope", headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_a_body_of_another_content_type_is_told_what_to_send(server: ServerThread) -> None:
    for headers, named in (({"content-type": "application/x-www-form-urlencoded"}, "urlencoded"), ({}, "none")):
        response = httpx.post(f"{server.url}/v1/completions", content=b'{"prompt": "x"}', headers=headers)  # as curl -d
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "invalid_content_type")
        assert named in error["message"]
        assert error["message"].endswith("send JSON with the header Content-Type: application/json")
    assert "the body is empty" in httpx.post(f"{server.url}/v1/completions").json()["error"]["message"]


def test_errors_are_the_clients_typed_exceptions(client: openai.OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError, match="the model 'gpt-4' is not served here: use 'smollm2'"):
        client.chat.completions.create(model="gpt-4", messages=HI)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model="smollm2", messages=HI, tools=[{"type": "function"}])  # type: ignore
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="smollm2", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="smollm2", prompt="x", logit_bias={"49152": 1})
    assert (caught.value.param, caught.value.code, caught.value.type) == (
        "logit_bias", "invalid_value", "invalid_request_error"
    )  # fmt: skip
    engine.state = Health("dead", "the worker is gone for good")
    with pytest.raises(openai.InternalServerError, match="the worker is gone for good"):
        client.completions.create(model="smollm2", prompt="x")
    engine.state = Health("ready")


def test_models_are_listed(client: openai.OpenAI, server: ServerThread) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "ringcast"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")
    assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"] == 64


def test_unknown_paths_and_methods_have_the_same_error_shape(server: ServerThread) -> None:
    for response, status in (
        (httpx.get(f"{server.url}/v1/nothing"), 404),
        (httpx.get(f"{server.url}/v1/completions"), 405),
    ):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_head_is_answered_wherever_get_is(server: ServerThread, engine: FakeEngine) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    documented = [path.replace("{model}", "smollm2") for path, routes in document["paths"].items() if "get" in routes]
    assert {"/health", "/health/ready", "/health/live", "/version", "/metrics", "/v1/models"} <= set(documented)
    for path in (*documented, "/openapi.json", "/ui", "/ui/", "/ui/page.js", "/ui/state"):
        asked, looked = HTTP.head(f"{server.url}{path}"), HTTP.get(f"{server.url}{path}")
        assert (asked.status_code, asked.content) == (looked.status_code, b""), path
        assert asked.headers.keys() == looked.headers.keys(), path
        assert asked.headers.get("content-type") == looked.headers.get("content-type"), path
    engine.state = Health("restarting", "the worker died")
    assert HTTP.head(f"{server.url}/health").status_code == 503
    refused = HTTP.head(f"{server.url}/v1/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert HTTP.post(f"{server.url}/health").headers["allow"] == "GET, HEAD"
    assert HTTP.head(f"{server.url}/nothing").status_code == 404


def test_health_tells_the_truth(server: ServerThread, engine: FakeEngine) -> None:
    assert (httpx.get(f"{server.url}/health").status_code, httpx.get(f"{server.url}/health").json()["status"]) == (
        200,
        "ready",
    )
    for state in ("starting", "stalled", "restarting", "dead"):
        engine.state = Health(state, "the engine core died")  # type: ignore[arg-type]
        response = httpx.get(f"{server.url}/health")
        assert response.status_code == 503
        assert response.json() == {"status": state, "detail": "the engine core died"}
        answer = _post(server, "/v1/completions", {"prompt": "x"})
        assert answer.status_code == 503
        assert state in answer.json()["error"]["message"]
    engine.state = Health("ready")


def test_a_death_before_the_first_token_is_a_503(server: ServerThread, engine: FakeEngine) -> None:
    async def scenario(stream: bool) -> httpx.Response:
        async with httpx.AsyncClient(timeout=10) as http:
            body = {"prompt": "x", "stream": stream}
            answer = asyncio.create_task(http.post(f"{server.url}/v1/completions", json=body))
            await engine.until(lambda: bool(engine.running))
            server.call(lambda: engine.die("the engine core died: killed by signal 9", back=True))
            return await answer

    for stream in (False, True):
        engine.paused = True
        engine.state = Health("ready")
        response = asyncio.run(scenario(stream))
        assert response.status_code == 503
        assert "killed by signal 9" in response.json()["error"]["message"]
    engine.state = Health("ready")


def test_a_death_in_mid_stream_is_an_error_event_and_the_end(
    server: ServerThread, engine: FakeEngine, client: openai.OpenAI
) -> None:
    engine.paused = True
    _step_soon(server, engine)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={"messages": HI, "stream": True}) as response:
        lines = response.iter_lines()
        payloads = sse_payloads(next(lines) for _ in range(4))
        server.call(lambda: engine.fail(engine.running[0], "the worker ended while this request ran: exit code 1"))
        payloads += sse_payloads(lines)
    stream = check_stream(payloads, chat=True)
    assert stream.choices[0].text == "Hello"
    assert stream.error is not None
    assert "the worker ended" in stream.error["message"]
    assert stream.error["type"] == "server_error"


def test_a_death_in_mid_stream_is_an_api_error_for_the_official_client(
    server: ServerThread, engine: FakeEngine, client: openai.OpenAI
) -> None:
    engine.paused = True

    async def scenario() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as api:
            opening = asyncio.create_task(
                api.chat.completions.create(model="smollm2", messages=HI, stream=True)  # type: ignore[arg-type]
            )
            await engine.until(lambda: bool(engine.running))
            server.call(engine.step)
            text = ""
            async for chunk in await opening:
                text += chunk.choices[0].delta.content or ""
                if text == "Hello" and engine.running:
                    server.call(lambda: engine.die("the engine core died"))
            return text

    with pytest.raises(openai.APIError, match="the engine core died"):
        asyncio.run(scenario())
    engine.state = Health("ready")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_aborts_its_request(server: ServerThread, engine: FakeEngine, stream: bool) -> None:
    engine.paused = True
    body = {"prompt": ["x", "y"], "n": 2, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.3)
    _wait(lambda: not engine.running)
    assert len(engine.aborted) == 4


def test_a_client_that_leaves_in_mid_stream_aborts_its_request(server: ServerThread, engine: FakeEngine) -> None:
    engine.paused = True
    _step_soon(server, engine)
    with httpx.stream("POST", f"{server.url}/v1/completions", json={"prompt": "x", "stream": True}) as response:
        next(response.iter_lines())
    _wait(lambda: not engine.running)
    assert len(engine.aborted) == 1


def test_many_streams_at_once_and_some_that_leave(server: ServerThread, engine: FakeEngine) -> None:
    async def one(http: httpx.AsyncClient, index: int) -> str:
        body = {"messages": HI, "stream": True, "n": 1 + index % 2}
        async with http.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
            payloads = []
            async for line in response.aiter_lines():
                payloads += sse_payloads([line])
                if index % 3 == 0:
                    return "left"
        return check_stream(payloads, chat=True, n=1 + index % 2).choices[0].text

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(timeout=30, limits=limits) as http:
            return await asyncio.gather(*(one(http, index) for index in range(60)))

    texts = asyncio.run(all_of_them())
    assert texts.count("Hello  🌊!") == 40
    _wait(lambda: not engine.running)


def test_while_the_engine_starts_the_server_says_so(smollm2: Tokenizer) -> None:
    gate = asyncio.Event()
    llm = AsyncLLM.from_parts(EngineArgs(model="m"), FakeEngine(start_gate=gate), smollm2)
    with ServerThread(llm, model="served-name", wait=False) as server:
        _wait(lambda: _reachable(server))
        response = httpx.get(f"{server.url}/health")
        assert (response.status_code, response.json()["status"]) == (503, "starting")
        assert _post(server, "/v1/chat/completions", {"messages": HI}).status_code == 503
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "served-name"
        server.call(gate.set)
        _wait(lambda: httpx.get(f"{server.url}/health").status_code == 200)


def test_a_failed_start_is_told_and_health_stays_503(smollm2: Tokenizer) -> None:
    llm = AsyncLLM.from_parts(EngineArgs(), FakeEngine(start_error="no memory for the KV cache"), smollm2)
    with ServerThread(llm) as server:
        assert str(server.failure) == "no memory for the KV cache"
        assert httpx.get(f"{server.url}/health").json() == {"status": "dead", "detail": "no memory for the KV cache"}


def test_an_engine_that_is_gone_for_good_is_told(smollm2: Tokenizer) -> None:
    engine = FakeEngine(paused=True)
    llm = AsyncLLM.from_parts(EngineArgs(), engine, smollm2)
    with ServerThread(llm) as server:
        server.call(lambda: engine.die("the worker is gone for good"))
        _wait(lambda: server.failure is not None)
        assert str(server.failure) == "the worker is gone for good"
        assert httpx.get(f"{server.url}/health").json()["status"] == "dead"


def test_the_openapi_document_describes_the_requests(server: ServerThread) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert set(document["paths"]) >= {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health"}
    assert "max_completion_tokens" in json.dumps(document["components"]["schemas"]["ChatCompletionRequest"])


def _step_soon(server: ServerThread, engine: FakeEngine) -> None:
    """Let the paused engine make one step as soon as a request is there: headers come with the first token."""

    def wait_and_step() -> None:
        _wait(lambda: bool(engine.running))
        server.call(engine.step)

    threading.Thread(target=wait_and_step).start()


def _wait(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _reachable(server: ServerThread) -> bool:
    try:
        httpx.get(f"{server.url}/health", timeout=1)
    except httpx.HTTPError:
        return False
    return True
