"""The server's parameters beyond the plain ones: log-probabilities, echo, token ids, the tokenizer's endpoints."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest
from chunk_checker import Stream, check_client_stream, check_stream, sse_payloads
from frontend_fakes import FakeEngine
from server_fixture import EOS, TEXT, ServerThread

from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.tokenizer import Tokenizer

HTTP = httpx.Client()  # one for all: a new one costs 20 ms
HI: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server_args() -> EngineArgs:
    return EngineArgs(scheduling_policy="priority")


@pytest.fixture
def engine(served_engine: FakeEngine) -> FakeEngine:
    return served_engine


@pytest.fixture
def url(server: ServerThread, engine: FakeEngine) -> str:
    return server.url


def _post(url: str, path: str, body: Any) -> Any:
    response = HTTP.post(f"{url}{path}", json=body, timeout=10)
    assert response.status_code == 200, response.text
    return response.json()


def _stream(url: str, body: dict[str, Any], *, n: int = 1) -> Stream:
    chat = "messages" in body
    path = "/v1/chat/completions" if chat else "/v1/completions"
    with HTTP.stream("POST", f"{url}{path}", json={**body, "stream": True}, timeout=10) as response:
        payloads = sse_payloads(response.iter_lines())
    running = bool((body.get("stream_options") or {}).get("continuous_usage_stats"))
    return check_stream(
        payloads,
        chat=chat,
        n=n,
        logprobs=body.get("logprobs") is not None,
        token_ids=bool(body.get("return_token_ids")),
        include_usage=running,
        running_usage=running,
    )


def _value(token_id: int) -> float:
    """`frontend_fakes.logprobs_of`."""
    return -(token_id % 50) / 8


@pytest.fixture
def ids(smollm2: Tokenizer) -> list[int]:
    """What the engine says."""
    return [*smollm2.encode(TEXT), EOS]


def test_chat_logprobs_have_bytes_and_the_likeliest(client: openai.OpenAI, ids: list[int]) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=HI, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [entry.logprob for entry in logprobs.content] == [_value(token_id) for token_id in ids]
    told = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content)
    assert told.decode() == TEXT + "<|im_end|>"
    assert logprobs.content[0].token == "Hello"
    assert any(entry.token.startswith("bytes:\\x") for entry in logprobs.content), "parts of the emoji"
    for entry in logprobs.content:
        assert [item.logprob for item in entry.top_logprobs] == [0.0, -0.125]


def test_chat_logprobs_stream_as_they_are_told_whole(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smollm2", "messages": HI, "logprobs": True, "top_logprobs": 1, "n": 3}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    checked = check_client_stream(stream, chat=True, n=3, logprobs=True, include_usage=True)
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert checked.choices[choice.index].text == choice.message.content == TEXT
        assert checked.choices[choice.index].logprobs == choice.logprobs.model_dump(exclude_unset=True)["content"]
    assert whole.usage is not None
    assert checked.usage == whole.usage.model_dump(exclude_unset=True)


def test_without_top_logprobs_the_drawn_tokens_alone_are_told(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=HI, logprobs=True)
    assert answer.choices[0].logprobs is not None
    assert {len(entry.top_logprobs) for entry in answer.choices[0].logprobs.content or ()} == {0}


def test_completion_logprobs(client: openai.OpenAI, ids: list[int], smollm2: Tokenizer) -> None:
    answer = client.completions.create(model="smollm2", prompt="Say", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.text_offset is not None
    assert logprobs.token_logprobs == [_value(token_id) for token_id in ids]
    assert logprobs.tokens[0] == "Hello"
    assert logprobs.top_logprobs is not None
    first = smollm2.decode([0], skip_special_tokens=False)
    assert logprobs.top_logprobs[0] == {"Hello": _value(ids[0]), first: 0.0}
    # In characters: the parts of the emoji share its place, the end token has no text.
    text = answer.choices[0].text
    assert text == TEXT
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset[-1] == len(TEXT)
    assert text[logprobs.text_offset[-2] :] == "!"
    assert logprobs.text_offset.count(text.index("🌊")) >= 2


def test_zero_logprobs_tell_the_drawn_token(url: str, ids: list[int]) -> None:
    logprobs = _post(url, "/v1/completions", {"prompt": "Say", "logprobs": 0})["choices"][0]["logprobs"]
    assert [list(at.values()) for at in logprobs["top_logprobs"]] == [[_value(token_id)] for token_id in ids]


def test_tokens_may_be_told_as_ids(url: str, ids: list[int]) -> None:
    body = {"prompt": "Say", "logprobs": 1, "return_tokens_as_token_ids": True}
    logprobs = _post(url, "/v1/completions", body)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{token_id}" for token_id in ids]
    assert list(logprobs["top_logprobs"][0]) == [f"token_id:{ids[0]}", "token_id:0"]


@pytest.mark.parametrize("prompt", ["The sea", [5, 6, 7], [[5, 6, 7], [8]]])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("max_tokens", [0, 1, 16])
def test_echo_tells_the_prompt_before_the_answer(
    url: str, smollm2: Tokenizer, ids: list[int], prompt: Any, logprobs: int | None, max_tokens: int
) -> None:
    body = {"prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": max_tokens, "n": 2}
    several = prompt if isinstance(prompt, list) and isinstance(prompt[0], list) else [prompt]
    answer = _post(url, "/v1/completions", body)
    stream = _stream(url, body, n=2 * len(several))
    assert len(answer["choices"]) == 2 * len(several)
    for index, choice in enumerate(answer["choices"]):
        one = several[index // 2]
        text, tokens = (one, smollm2.encode(one)) if isinstance(one, str) else (smollm2.decode(one), one)
        said = ids[:max_tokens]
        assert choice["text"] == text + smollm2.decode(said)
        assert choice["finish_reason"] == ("stop" if max_tokens == 16 else "length")
        assert stream.choices[index].text == choice["text"]
        if logprobs is None:
            assert choice["logprobs"] is None
            continue
        told = choice["logprobs"]
        assert told["token_logprobs"] == [None, *map(_value, [*tokens[1:], *said])]
        assert told["top_logprobs"][0] is None
        assert told["text_offset"][len(tokens) :][:1] in ([], [len(text)])
        entries = list(zip(told["tokens"], told["token_logprobs"], told["text_offset"], strict=True))
        assert stream.choices[index].logprobs == entries
    assert answer["usage"]["completion_tokens"] == 2 * len(several) * min(max_tokens, len(ids))


def test_no_tokens_without_echo_are_an_empty_answer(url: str, engine: FakeEngine) -> None:
    choice = _post(url, "/v1/completions", {"prompt": "x", "max_tokens": 0})["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert engine.added[0].stop.max_tokens == 1


def test_the_requests_of_lm_eval(url: str, ids: list[int]) -> None:
    """Its ``local-completions`` model: batches of token arrays, echo, one token; the last entry is cut off."""
    body = {
        "model": "smollm2", "prompt": [[5, 60, 7, 8], [9, 10]], "temperature": 0, "max_tokens": 1, "logprobs": 1,
        "seed": 1234, "echo": True,
    }  # fmt: skip
    choices = _post(url, "/v1/completions", body)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert choices[0]["logprobs"]["token_logprobs"][1:-1] == [_value(60), _value(7), _value(8)]
    for at in choices[0]["logprobs"]["top_logprobs"][1:]:
        assert max(at.values()) == 0.0


def test_prompt_logprobs_by_token_id(url: str, smollm2: Tokenizer) -> None:
    choice = _post(url, "/v1/completions", {"prompt": [5, 60, 7], "prompt_logprobs": 1})["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert list(choice["prompt_logprobs"][1]) == ["60", "0"]
    text = smollm2.decode([60])
    assert choice["prompt_logprobs"][1]["60"] == {"logprob": _value(60), "rank": 61, "decoded_token": text}
    chat = _post(url, "/v1/chat/completions", {"messages": HI, "prompt_logprobs": 0})
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_token_ids_are_told_on_request(url: str, ids: list[int], smollm2: Tokenizer) -> None:
    body = {"prompt": "Say", "return_token_ids": True}
    choice = _post(url, "/v1/completions", body)["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (smollm2.encode("Say"), ids)
    assert _stream(url, body).choices[0].token_ids == ids
    chat = _post(url, "/v1/chat/completions", {"messages": HI, "return_token_ids": True})
    assert chat["prompt_token_ids"] == smollm2.encode(smollm2.render_chat(HI))
    assert chat["choices"][0]["token_ids"] == ids


def test_extensions_reach_the_engine(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model="smollm2", messages=HI, presence_penalty=1, frequency_penalty=-1, logit_bias={"7": 2}, seed=3,
        extra_body={
            "top_k": 5, "min_p": 0.25, "repetition_penalty": 1.5, "min_tokens": 1, "ignore_eos": True,
            "stop_token_ids": [9], "bad_words": ["x"], "allowed_token_ids": [7, 8], "priority": -2,
            "cache_salt": "mine",
        },
    )  # fmt: skip
    request = engine.added[0]
    rule = request.sampling
    assert (rule.presence_penalty, rule.frequency_penalty, rule.logit_bias, rule.seed) == (1, -1, [(7, 2.0)], 3)
    assert (rule.top_k, rule.min_p, rule.repetition_penalty, rule.allowed_token_ids) == (5, 0.25, 1.5, [7, 8])
    assert rule.bad_words
    assert (request.stop.min_tokens, request.stop.stop_token_ids, request.stop.eos_token_ids) == (1, [9], [])
    assert (request.priority, request.cache_salt) == (-2, "mine")


@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"return_token_ids": True}], ids=str)
def test_running_usage_counts_each_choice_chunk_by_chunk(
    url: str, ids: list[int], smollm2: Tokenizer, more: dict[str, Any], options: dict[str, Any]
) -> None:
    options = {**options, "continuous_usage_stats": True}
    in_chat = {"logprobs": True} if "logprobs" in more else more
    chat = _stream(url, {"messages": HI, "n": 2, "stream_options": options, **in_chat}, n=2)
    length = len(smollm2.encode(smollm2.render_chat(HI)))
    assert chat.usage == {
        "prompt_tokens": length, "completion_tokens": 2 * len(ids), "total_tokens": length + 2 * len(ids)
    }  # fmt: skip
    for choice in chat.choices.values():
        assert choice.usages[0] == (length, 0), "with the role nothing has been drawn"
        assert (length, 1) in choice.usages
        assert choice.usages[-1] == (length, len(ids))
    body = {"prompt": ["one two three", "x"], "n": 2, "echo": True, "stream_options": options, **more}
    several = _stream(url, body, n=4)
    lengths = [len(smollm2.encode(prompt)) for prompt in ("one two three", "x") for _ in range(2)]
    assert [several.choices[index].usages[0] for index in range(4)] == [(length, 0) for length in lengths]
    assert [several.choices[index].usages[-1] for index in range(4)] == [(length, len(ids)) for length in lengths]


def test_running_usage_of_no_tokens_is_none(url: str) -> None:
    options = {"continuous_usage_stats": True}
    told = _stream(url, {"prompt": [5, 6], "echo": True, "max_tokens": 0, "stream_options": options})
    assert set(told.choices[0].usages) == {(2, 0)}


def test_running_usage_without_usage_is_refused(url: str) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True}
    body = {"prompt": "x", "stream": True, "stream_options": options}
    response = httpx.post(f"{url}/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"
    assert "continuous_usage_stats needs include_usage: true" in response.json()["error"]["message"]


BEGUN = [*HI, {"role": "assistant", "content": "Well, "}]
OPEN = {"add_generation_prompt": False, "continue_final_message": True}


def test_an_answer_is_continued_where_it_ends(url: str, engine: FakeEngine, smollm2: Tokenizer) -> None:
    begun = smollm2.encode(smollm2.render_chat(HI) + "Well, ")
    answer = _post(url, "/v1/chat/completions", {"messages": BEGUN, **OPEN})
    assert engine.added[0].prompt_token_ids == begun
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": TEXT, "refusal": None}, "what is new"
    parts = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Well, "}]}]
    assert _stream(url, {"messages": parts, **OPEN}).choices[0].text == TEXT
    assert engine.added[1].prompt_token_ids == begun
    assert _post(url, "/tokenize", {"messages": BEGUN, **OPEN})["tokens"] == begun
    _post(url, "/v1/chat/completions", {"messages": HI, "continue_final_message": False})
    assert engine.added[2].prompt_token_ids == smollm2.encode(smollm2.render_chat(HI)), "neutral"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"add_generation_prompt": True}, "exclude each other: set add_generation_prompt to false"),
        ({"add_generation_prompt": None}, "exclude each other: set add_generation_prompt to false"),
        ({"messages": HI}, "the last message must have the role 'assistant'"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_nothing_to_continue_is_a_400(url: str, engine: FakeEngine, path: str, change: Any, said: str) -> None:
    response = httpx.post(f"{url}{path}", json={"messages": BEGUN, **OPEN, **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "continue_final_message"
    assert said in response.json()["error"]["message"]
    assert engine.added == []


def test_special_tokens_and_truncation(url: str, engine: FakeEngine) -> None:
    body = {"prompt": [5, 6, 7, 8], "truncate_prompt_tokens": 2, "echo": True, "max_tokens": 0}
    answer = _post(url, "/v1/completions", body)
    assert engine.added[0].prompt_token_ids == [7, 8]
    assert answer["usage"]["prompt_tokens"] == 2
    text = _post(url, "/v1/completions", {**body, "prompt": "one two three four", "truncate_prompt_tokens": 1})
    assert text["choices"][0]["text"] == " four"


def test_seeds_are_returned_and_draw_again(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.completions.create(model="smollm2", prompt="x", n=3)
    seeds = [(choice.model_extra or {})["seed"] for choice in answer.choices]
    assert seeds == [request.sampling.seed for request in engine.added]
    assert seeds[1:] == [seeds[0] + 1, seeds[0] + 2]


def test_tokenize_and_detokenize(url: str, smollm2: Tokenizer) -> None:
    ids = smollm2.encode("Hello  🌊!")
    answer = _post(url, "/tokenize", {"prompt": "Hello  🌊!", "return_token_strs": True})
    assert (answer["tokens"], answer["count"], answer["max_model_len"]) == (ids, len(ids), 64)
    assert answer["token_strs"][0] == "Hello"
    assert _post(url, "/detokenize", {"tokens": ids, "model": "smollm2"}) == {"prompt": "Hello  🌊!"}
    chat = _post(url, "/tokenize", {"messages": HI, "add_generation_prompt": False})
    assert chat["tokens"] == smollm2.encode(smollm2.render_chat(HI, add_generation_prompt=False))
    assert _post(url, "/tokenize", {"prompt": ""})["tokens"] == []
    assert _post(url, "/detokenize", {"tokens": []})["prompt"] == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": "x", "frobnicate": 1}, "frobnicate"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
        ("/detokenize", {"tokens": [49152]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_bad_tokenizing_is_a_400(url: str, path: str, body: Any, param: str) -> None:
    response = httpx.post(f"{url}{path}", content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_version_load_and_tokenizer_info(url: str) -> None:
    import ringcast

    assert httpx.get(f"{url}/version").json() == {"version": ringcast.__version__}
    assert httpx.get(f"{url}/load").json() == {"server_load": 0}
    info = httpx.get(f"{url}/tokenizer_info").json()
    assert (info["eos_token"], info["model_max_length"]) == ("<|im_end|>", 64)
    assert "messages" in info["chat_template"]


def test_load_counts_what_is_being_answered(url: str, engine: FakeEngine) -> None:
    engine.script = lambda request: [70] * 1000
    engine.step_s = 0.01
    with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "x", "stream": True}) as response:
        lines = response.iter_lines()  # kept: its end would end the stream
        next(lines)
        assert httpx.get(f"{url}/load").json() == {"server_load": 1}
    engine.step_s = 0.0
    while httpx.get(f"{url}/load").json() != {"server_load": 0}:
        time.sleep(0.01)
    assert engine.running == []


def test_the_openapi_document_has_no_422_and_tells_every_answer(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    for path in document["paths"].values():
        for operation in path.values():
            assert "422" not in operation["responses"]
            assert "200" in operation["responses"]
    text = json.dumps(document)
    assert "HTTPValidationError" not in text
    assert "text/event-stream" in text
