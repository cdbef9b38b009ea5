"""The JSON of answers, whole and in chunks. Pure functions over results; no I/O.

The order of chunks is fixed: for a chat the role once per choice, then content, then one chunk with the
finish reason per choice (never together with content), then usage if it was asked for.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..outputs import CompletionOutput, RequestOutput


@dataclass
class Usage:
    """Token counts of a request over all its prompts and choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def body(self) -> dict[str, int]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True)
class Envelope:
    """What all chunks of an answer share."""

    kind: str
    model: str
    prefix: str
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def id(self) -> str:
        """The answer's id."""
        return f"{self.prefix}-{self.number}"

    def body(self, choices: list[dict[str, Any]], **more: object) -> dict[str, Any]:
        """One chunk, or the whole answer."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }


class ChunkWriter:
    """Turns one answer's deltas into chunks. ``chat`` says which API's; ``usage`` whether chunks have a usage field."""

    def __init__(self, envelope: Envelope, *, chat: bool, usage: bool) -> None:
        self._envelope = envelope
        self._chat = chat
        # With usage asked for, every chunk has the field, null but in the last.
        self._more: dict[str, object] = {"usage": None} if usage else {}
        self._greeted: set[int] = set()

    def chunks(self, answer: CompletionOutput, index: int) -> Iterator[dict[str, Any]]:
        """The chunks for one delta of choice ``index``."""
        if self._chat and index not in self._greeted:
            self._greeted.add(index)
            yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}})
        if answer.text:
            content = {"delta": {"content": answer.text}} if self._chat else {"text": answer.text}
            yield self._chunk(index, content)
        if answer.finish_reason is not None:
            end: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            yield self._chunk(index, {**end, **ending(answer)})

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, when usage was asked for."""
        return self._envelope.body([], usage=usage.body())

    def _chunk(self, index: int, content: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": None}
        choice.setdefault("finish_reason", None)
        return self._envelope.body([choice], **self._more)


def whole_choice(answer: CompletionOutput, index: int, *, chat: bool) -> dict[str, Any]:
    """A choice of an answer that is not streamed."""
    if chat:
        content: dict[str, Any] = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
    else:
        content = {"text": answer.text}
    return {"index": index, **content, "logprobs": None, **ending(answer)}


def ending(answer: CompletionOutput) -> dict[str, Any]:
    """How a choice ended: OpenAI's reason, and as extensions what stopped it and the seed that draws it again."""
    return {
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "seed": answer.seed,
    }


def count(usage: Usage, output: RequestOutput) -> None:
    """Add a finished result's tokens."""
    usage.prompt_tokens += len(output.prompt_token_ids)
    usage.completion_tokens += sum(len(answer.token_ids) for answer in output.outputs)
