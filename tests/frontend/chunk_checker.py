"""A state machine over the chunks of a stream: what OpenAI's clients rely on, checked for every stream in the tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Choice:
    """One choice, put together from its chunks."""

    text: str = ""
    finish_reason: str | None = None
    state: str = "new"
    seed: int | None = None


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


def check_stream(payloads: list[str], *, chat: bool, n: int = 1, include_usage: bool = False) -> Stream:
    """Check order and shape; what the stream said. An error event must be the last."""
    stream = Stream()
    error = json.loads(payloads[-1]).get("error") if payloads[-1] != "[DONE]" else None
    if error is not None:
        stream.error = error
        assert set(error) == {"message", "type", "param", "code"}
    else:
        assert payloads[-1] == "[DONE]"
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks}) == 1
    for number, chunk in enumerate(chunks):
        assert chunk["object"] == ("chat.completion.chunk" if chat else "text_completion")
        assert ("usage" in chunk) == include_usage
        if not chunk["choices"]:
            assert include_usage
            assert number == len(chunks) - 1, "the usage chunk is the last"
            stream.usage = chunk["usage"]
            continue
        assert chunk.get("usage") is None
        assert len(chunk["choices"]) == 1
        _step(stream, chunk["choices"][0], chat=chat)
    if error is None:
        assert sorted(stream.choices) == list(range(n))
        assert all(choice.state == "finished" for choice in stream.choices.values())
        assert (stream.usage is not None) == include_usage
    return stream


def _step(stream: Stream, data: dict[str, Any], *, chat: bool) -> None:
    choice = stream.choices.setdefault(data["index"], Choice())
    assert choice.state != "finished", "nothing follows the finish chunk of a choice"
    assert "finish_reason" in data, "finish_reason is there, if null"
    assert data["logprobs"] is None
    content = data["delta"] if chat else {"content": data["text"]}
    if chat and choice.state == "new":
        assert content == {"role": "assistant", "content": ""}, "the role comes first, once, alone"
        assert data["finish_reason"] is None
        choice.state = "content"
        return
    assert "role" not in content
    if data["finish_reason"] is not None:
        assert content in ({}, {"content": ""}), "the finish chunk has no content"
        choice.finish_reason, choice.seed, choice.state = data["finish_reason"], data["seed"], "finished"
        return
    assert content["content"], "content chunks are not empty"
    choice.text += content["content"]
    choice.state = "content"
    stream.num_content_chunks += 1
