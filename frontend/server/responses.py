"""The shapes of answers, for the OpenAPI document. Answers themselves are built as plain JSON, in `chunks`: faster.

The tests check every answer of a long random campaign against these.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length", "abort"]


class ErrorDetail(BaseModel):
    """What went wrong. ``param`` names the parameter at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail


class UsageBody(BaseModel):
    """Token counts over all prompts and choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PromptLogprob(BaseModel):
    """One token's log-probability at a place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str | None


class CompletionLogprobsBody(BaseModel):
    """One entry a token in each list; null for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _Ending(BaseModel):
    model_config = ConfigDict(extra="forbid")

    index: int
    finish_reason: FinishReason
    stop_reason: int | str | None
    seed: int
    token_ids: list[int] = []


class CompletionChoice(_Ending):
    """One answer. From ``token_ids`` on only if asked for."""

    text: str
    logprobs: CompletionLogprobsBody | None
    prompt_token_ids: list[int] = []
    prompt_logprobs: list[dict[str, PromptLogprob] | None] = []


class Completion(BaseModel):
    """A whole answer of /v1/completions."""

    model_config = ConfigDict(extra="forbid")

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody


class TokenLogprob(BaseModel):
    """A token, its log-probability and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TokenLogprob):
    """With the likeliest tokens in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobsBody(BaseModel):
    """One entry a token."""

    content: list[ContentLogprob]
    refusal: None


class AssistantMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Ending):
    """One answer."""

    message: AssistantMessage
    logprobs: ChatLogprobsBody | None


class ChatCompletion(BaseModel):
    """A whole answer of /v1/chat/completions. The last two only if asked for."""

    model_config = ConfigDict(extra="forbid")

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] = []
    prompt_logprobs: list[dict[str, PromptLogprob] | None] = []


class ModelCard(BaseModel):
    """A model that is served; ``max_model_len`` is null while it loads."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"]
    data: list[ModelCard]


class HealthBody(BaseModel):
    """The engine's state; ``detail`` says in one line what is going on."""

    status: str
    detail: str


class VersionBody(BaseModel):
    """Of this server."""

    version: str


class LoadBody(BaseModel):
    """HTTP requests that are being answered by the engine."""

    server_load: int


class TokenizerInfo(BaseModel):
    """Special tokens by their roles, and more that is known."""

    model_config = ConfigDict(extra="allow")

    eos_token: str | None
    chat_template: str | None
    model_max_length: int


def documented(success: type[BaseModel], *errors: int, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: its success and the errors it may end with."""
    ok: dict[str, Any] = {"model": success}
    if streams:
        text = {"schema": {"type": "string"}}
        ok["content"] = {"text/event-stream": text}
        ok["description"] = "The answer; with `stream: true` its chunks as server-sent events, then `data: [DONE]`."
    texts = {
        400: "The request is wrong: `param` names what.",
        401: "The server asks for an API key, and this is none.",
        404: "No such model is served here.",
        408: "The body did not come in time.",
        413: "The body is too large.",
        415: "The body is compressed.",
        429: "Too many requests are being answered: come again after `Retry-After` seconds.",
        500: "The request failed in the engine.",
        503: "The engine takes no requests now, or the server is stopping.",
        504: "The request's deadline passed.",
    }
    return {200: ok, **{status: {"model": ErrorBody, "description": texts[status]} for status in errors}}
