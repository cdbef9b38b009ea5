"""The JSON of answers, whole and in chunks. Pure functions over results; no I/O.

The order of chunks is fixed: for a chat the role once per choice, for an echoed prompt its text, then content, then one
chunk with the finish reason per choice (never together with content), then usage if it was asked for.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..outputs import CompletionOutput, LogprobsOfToken, RequestOutput
from .logprob_json import CompletionLogprobs, TokenNames, chat_logprobs
from .sse import event, json_text


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


@dataclass(frozen=True)
class Style:
    """What choices tell. ``names`` is None if log-probabilities were not asked for; ``token_ids``: the ids as well."""

    chat: bool
    names: TokenNames | None = None
    top_logprobs: int = 0
    skips_special: bool = True
    token_ids: bool = False


@dataclass(frozen=True)
class Echo:
    """The prompt, to be told before the answer. ``logprobs`` has one entry a token if they were asked for."""

    text: str
    token_ids: list[int]
    logprobs: Sequence[LogprobsOfToken | None] | None = None


class Choice:
    """Makes the JSON of one choice's pieces."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._offsets = (
            None
            if style.names is None or style.chat
            else CompletionLogprobs(style.names, skips_special=style.skips_special)
        )

    def logprobs(self, token_ids: list[int], told: Sequence[LogprobsOfToken | None] | None) -> dict[str, Any] | None:
        """The choice's ``logprobs`` of its next tokens."""
        style = self._style
        if style.names is None or told is None:
            return None
        if self._offsets is not None:
            return self._offsets.piece(token_ids, told)
        return chat_logprobs(style.names, token_ids, [at for at in told if at is not None], style.top_logprobs)

    def whole(self, answer: CompletionOutput, index: int, echo: Echo | None) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        style, text, tokens, told = self._style, answer.text, answer.token_ids, answer.logprobs
        logprobs = self.logprobs(
            tokens if echo is None else echo.token_ids + tokens,
            told if echo is None or told is None else [*(echo.logprobs or ()), *told],
        )
        if style.chat:
            content: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
        else:
            content = {"text": text if echo is None else echo.text + text}
        more = {"token_ids": tokens} if style.token_ids else {}
        return {"index": index, **content, "logprobs": logprobs, **ending(answer), **more}


class ChunkWriter:
    """Turns one answer's deltas into chunks. ``usage``: chunks have a usage field, null but in the last.

    ``prompt_lengths``, in tokens and by choice: every chunk of a choice tells the usage of this choice so far (vLLM's
    ``continuous_usage_stats``).
    """

    def __init__(self, envelope: Envelope, style: Style, *, usage: bool, prompt_lengths: Sequence[int] = ()) -> None:
        self._envelope = envelope
        self._style = style
        self._more: dict[str, object] = {"usage": None} if usage else {}
        self._choices: dict[int, Choice] = {}
        self._running = {index: Usage(length) for index, length in enumerate(prompt_lengths)}
        self._is_plain = style.names is None and not style.token_ids and not self._running
        self._around_text: dict[int, tuple[bytes, bytes]] = {}  # of a plain chunk's JSON, by choice

    def events(
        self, answer: CompletionOutput, index: int, echo: Echo | None = None, prompt_token_ids: list[int] | None = None
    ) -> Iterator[bytes]:
        """`chunks` as server-sent events. Nearly all are a bit of text: of those only the text is encoded anew."""
        if self._is_plain and answer.finish_reason is None and index in self._choices:
            if answer.text:
                yield self._text_event(index, answer.text)
            return
        for chunk in self.chunks(answer, index, echo, prompt_token_ids):
            yield event(chunk)

    def _text_event(self, index: int, text: str) -> bytes:
        around = self._around_text.get(index)
        if around is None:
            mark = "\0"  # behind the text there is none
            before, _, after = event(self._chunk(index, self._content(mark))).rpartition(json_text(mark))
            around = self._around_text[index] = (before, after)
        return around[0] + json_text(text) + around[1]

    def _content(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self._style.chat else {"text": text}

    def chunks(
        self, answer: CompletionOutput, index: int, echo: Echo | None = None, prompt_token_ids: list[int] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The chunks for one delta of choice ``index``. The last two are told once, before the choice's first delta."""
        style, choice = self._style, self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = Choice(style)
            yield from self._beginning(choice, index, echo, prompt_token_ids)
        if index in self._running:
            self._running[index].completion_tokens += len(answer.token_ids)
        tells_tokens = style.token_ids or style.names is not None
        if answer.text or (tells_tokens and answer.token_ids):
            content = self._content(answer.text)
            ids = {"token_ids": answer.token_ids} if style.token_ids else {}
            yield self._chunk(index, {**content, **ids}, choice.logprobs(answer.token_ids, answer.logprobs))
        if answer.finish_reason is not None:
            end: dict[str, Any] = {"delta": {}} if style.chat else {"text": ""}
            yield self._chunk(index, {**end, **ending(answer)})

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last chunk, when usage was asked for."""
        return self._envelope.body([], usage=usage.body())

    def _beginning(
        self, choice: Choice, index: int, echo: Echo | None, prompt_token_ids: list[int] | None
    ) -> Iterator[dict[str, Any]]:
        """The role of a chat; the echoed prompt; the prompt's ids if they were asked for."""
        ids: dict[str, Any] = {} if prompt_token_ids is None else {"prompt_token_ids": prompt_token_ids}
        if self._style.chat:
            first = self._chunk(index, {"delta": {"role": "assistant", "content": ""}})
            yield {**first, **ids}
        elif echo is not None and (echo.text or echo.logprobs or ids):
            yield self._chunk(index, {"text": echo.text, **ids}, choice.logprobs(echo.token_ids, echo.logprobs))
        elif ids:
            yield self._chunk(index, {"text": "", **ids})

    def _chunk(self, index: int, content: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": logprobs}
        choice.setdefault("finish_reason", None)
        if index in self._running:
            return self._envelope.body([choice], usage=self._running[index].body())
        return self._envelope.body([choice], **self._more)


def ending(answer: CompletionOutput) -> dict[str, Any]:
    """How a choice ended: OpenAI's reason, and as extensions what stopped it and the seed that draws it again."""
    return {
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "seed": answer.seed,
    }


def without_tokens(output: RequestOutput) -> RequestOutput:
    """For ``max_tokens: 0``: the engine draws one token at least, which nobody asked for."""
    answers = [
        replace(
            answer,
            text="",
            token_ids=[],
            logprobs=None if answer.logprobs is None else [],
            finish_reason=None if answer.finish_reason is None else "length",
            stop_reason=None,
        )
        for answer in output.outputs
    ]
    return replace(output, outputs=answers)


def count(usage: Usage, output: RequestOutput) -> None:
    """Add a finished result's tokens."""
    usage.prompt_tokens += len(output.prompt_token_ids)
    usage.completion_tokens += sum(len(answer.token_ids) for answer in output.outputs)
