"""A state machine over the chunks of a stream: what OpenAI's clients rely on, checked for every stream in the tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel


@dataclass
class Choice:
    """One choice, put together from its chunks."""

    text: str = ""
    finish_reason: str | None = None
    state: str = "new"
    seed: int | None = None
    logprobs: list[Any] = field(default_factory=list)  # of a chat: entries; of a completion: (token, value, offset)
    token_ids: list[int] = field(default_factory=list)
    usages: list[tuple[int, int]] = field(default_factory=list)  # prompt and completion tokens, chunk by chunk


@dataclass
class Stream:
    """A whole stream that was in order."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    error: dict[str, Any] | None = None
    num_content_chunks: int = 0


def sse_payloads(lines: Iterable[str]) -> list[str]:
    """The data of server-sent events; every line is a data line or empty."""
    payloads = []
    for line in lines:
        if line:
            assert line.startswith("data: "), line
            payloads.append(line.removeprefix("data: "))
    return payloads


def check_stream(payloads: list[str], *, chat: bool, **asked: Any) -> Stream:
    """Check the events of a raw stream; ``asked`` as in `check_chunks`. An error event must be the last."""
    if payloads[-1] == "[DONE]":
        return check_chunks([json.loads(payload) for payload in payloads[:-1]], chat=chat, **asked)
    error = json.loads(payloads[-1])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    stream = check_chunks([json.loads(payload) for payload in payloads[:-1]], chat=chat, ends=False, **asked)
    stream.error = error
    return stream


def check_client_stream(chunks: Iterable[BaseModel], *, chat: bool, **asked: Any) -> Stream:
    """Check what the official client made of a stream."""
    return check_chunks([chunk.model_dump(exclude_unset=True) for chunk in chunks], chat=chat, **asked)


def check_chunks(
    chunks: list[dict[str, Any]],
    *,
    chat: bool,
    n: int = 1,
    include_usage: bool = False,
    running_usage: bool = False,
    logprobs: bool = False,
    token_ids: bool = False,
    ends: bool = True,
) -> Stream:
    """Check order and shape, against what was asked for; what the stream said. ``ends`` False: an error cut it."""
    stream = Stream()
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1
    for number, chunk in enumerate(chunks):
        assert chunk["object"] == ("chat.completion.chunk" if chat else "text_completion")
        assert ("usage" in chunk) == include_usage
        if not chunk["choices"]:
            assert include_usage
            assert number == len(chunks) - 1, "the usage chunk is the last"
            stream.usage = chunk["usage"]
            continue
        assert len(chunk["choices"]) == 1
        assert (chunk.get("usage") is not None) == running_usage
        if running_usage:
            _count(stream.choices.setdefault(chunk["choices"][0]["index"], Choice()), chunk["usage"])
        _step(stream, chunk["choices"][0], chat=chat, logprobs=logprobs, token_ids=token_ids)
    if ends:
        assert sorted(stream.choices) == list(range(n))
        assert all(choice.state == "finished" for choice in stream.choices.values())
        assert (stream.usage is not None) == include_usage
        if running_usage and stream.usage is not None:
            told = sum(choice.usages[-1][1] for choice in stream.choices.values())
            assert told == stream.usage["completion_tokens"], "what the choices count is what the whole counts"
    return stream


def _count(choice: Choice, usage: dict[str, int]) -> None:
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    assert usage["total_tokens"] == prompt + completion
    if choice.usages:
        assert prompt == choice.usages[-1][0]
        assert completion >= choice.usages[-1][1], "usage never shrinks"
    else:
        assert prompt > 0
    choice.usages.append((prompt, completion))


def _step(stream: Stream, data: dict[str, Any], *, chat: bool, logprobs: bool, token_ids: bool) -> None:
    choice = stream.choices.setdefault(data["index"], Choice())
    assert choice.state != "finished", "nothing follows the finish chunk of a choice"
    assert "finish_reason" in data, "finish_reason is there, if null"
    assert "logprobs" in data
    content = data["delta"] if chat else {"content": data["text"]}
    if chat and choice.state == "new":
        assert content == {"role": "assistant", "content": ""}, "the role comes first, once, alone"
        assert data["finish_reason"] is data["logprobs"] is None
        choice.state = "content"
        return
    assert "role" not in content
    if data["finish_reason"] is not None:
        assert content in ({}, {"content": ""}), "the finish chunk has no content"
        assert data["logprobs"] is None
        assert "token_ids" not in data
        choice.finish_reason, choice.seed, choice.state = data["finish_reason"], data["seed"], "finished"
        return
    assert content["content"] or data["logprobs"] or token_ids, "content chunks are not empty"
    assert (data["logprobs"] is not None) == logprobs
    if logprobs:
        choice.logprobs += _chat_entries(data["logprobs"]) if chat else _completion_entries(data["logprobs"])
    assert token_ids or "token_ids" not in data
    choice.token_ids += data.get("token_ids", [])
    choice.text += content["content"]
    choice.state = "content"
    stream.num_content_chunks += 1


def _chat_entries(logprobs: dict[str, Any]) -> list[Any]:
    assert set(logprobs) == {"content", "refusal"}
    assert logprobs["content"], "no entries would be null"
    for entry in logprobs["content"]:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
    return list(logprobs["content"])


def _completion_entries(logprobs: dict[str, Any]) -> list[Any]:
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"], strict=True))
