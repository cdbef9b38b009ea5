"""Requests of OpenAI's completion and chat APIs, and how they become `SamplingParams`.

Pydantic checks shapes and types; values and ranges are `SamplingParams`' matter, so that they are checked
in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from ..errors import InvalidRequest, UnsupportedParameter
from ..input_processor import checked_salt
from ..parameter_checks import MAX_TOKEN_ID
from ..sampling_params import (
    MAX_N,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_SEED,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
    RequestOutputKind,
    SamplingParams,
)
from .unsupported import CHAT, COMPLETION, refuse_unsupported

# Those of `SamplingParams` that requests carry under the same name and with the same meaning.
_PLAIN = frozenset(item.name for item in fields(SamplingParams)) - {
    "logprobs", "max_tokens", "detokenize", "output_kind", "structured_outputs", "guided_decoding",
    "logits_processors", "extra_args",
}  # fmt: skip


def _told(**limits: float) -> Any:
    """A range for the OpenAPI document. `SamplingParams` checks it, with its own words."""
    return Field(json_schema_extra=limits)  # type: ignore[arg-type]


# Unknown parameters are refused, but by name, and neutral values of known ones are not: `refuse_unsupported`.
_STRICT = ConfigDict(extra="allow", strict=True, json_schema_extra={"additionalProperties": False})
Tokens = Annotated[int | None, _told(minimum=1, maximum=MAX_TOKEN_ID)]
Penalty = Annotated[float | None, _told(minimum=-MAX_PENALTY, maximum=MAX_PENALTY)]
Count = Annotated[int | None, _told(minimum=-1)]
TokenId = Annotated[int, _told(minimum=0, maximum=MAX_TOKEN_ID)]
# The first item that is wrong is enough: the client is told of one, and there may be very many.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
# Its numbers are checked by `SamplingParams`, one by one until one is wrong.
Biases = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}})]


class StreamOptions(BaseModel):
    """``include_usage``: a last chunk tells the token counts. ``continuous_usage_stats`` (vLLM's): every other chunk
    those of its choice so far, too.
    """

    model_config = _STRICT

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(BaseModel):
    """What both APIs share. From ``top_k`` on they are extensions with vLLM's names."""

    model_config = _STRICT
    known_unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    model: str | None = None
    max_tokens: Tokens = None
    n: Annotated[int | None, _told(minimum=1, maximum=MAX_N)] = None
    temperature: Annotated[float | None, _told(minimum=0, maximum=MAX_TEMPERATURE)] = None
    top_p: Annotated[float | None, _told(exclusiveMinimum=0, maximum=1)] = None
    seed: Annotated[int | None, _told(minimum=-MAX_SEED - 1, maximum=MAX_SEED)] = None
    stop: str | Texts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: Biases | None = None
    top_k: Count = None
    min_p: Annotated[float | None, _told(minimum=0, maximum=1)] = None
    repetition_penalty: Annotated[
        float | None, _told(minimum=MIN_REPETITION_PENALTY, maximum=MAX_REPETITION_PENALTY)
    ] = None
    min_tokens: Annotated[int | None, _told(minimum=0)] = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    allowed_token_ids: Annotated[TokenIds | None, _told(minItems=1)] = None
    bad_words: Texts | None = None
    prompt_logprobs: Count = None
    truncate_prompt_tokens: Count = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk. As in vLLM, running usage brings it along."""
        return self.runs_usage or (self.stream_options is not None and bool(self.stream_options.include_usage))

    @property
    def runs_usage(self) -> bool:
        """Whether every chunk tells the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def check(self) -> None:
        """Refuse parameters that are unknown or not supported yet, and those that do not go together."""
        refuse_unsupported(self.model_extra or {}, self.known_unsupported)
        checked_salt(self.cache_salt)
        if self.stream_options is not None:
            if not self.stream:
                raise InvalidRequest("stream_options needs stream: true", "stream_options")
            refuse_unsupported(self.stream_options.model_extra or {}, {"include_obfuscation": (False,)})
            if self.runs_usage and self.stream_options.include_usage is False:
                text = "stream_options.continuous_usage_stats needs include_usage: true: set it, or leave both out"
                raise InvalidRequest(text, "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            text = "prompt_logprobs is not supported with stream=true: leave out one of them"
            raise InvalidRequest(text, "prompt_logprobs")

    def answer_limit(self) -> int | None:
        """How many tokens an answer may have; None: to the end of the context."""
        return self.max_tokens

    def _limit_or(self, model_limit: int | None) -> int | None:
        """`answer_limit`, or the model's own if the request does not say."""
        limit = self.answer_limit()
        return model_limit if limit is None else limit

    def wanted_logprobs(self) -> int | None:
        """How many likeliest tokens to tell beside each of the answer's; None: nothing."""
        return None

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        """The parameters, with the model's defaults where the request says nothing."""
        given = {name: value for name in _PLAIN if (value := getattr(self, name)) is not None}
        kind = RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY
        limit = self._limit_or(defaults.max_tokens)
        return replace(defaults, **given, logprobs=self.wanted_logprobs(), max_tokens=limit, output_kind=kind)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. ``max_tokens`` 0 with ``echo`` tells of the prompt alone."""

    known_unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = COMPLETION

    prompt: str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]
    max_tokens: Annotated[int | None, _told(minimum=0, maximum=MAX_TOKEN_ID)] = 16
    logprobs: Count = None
    echo: bool | None = None

    def num_prompts(self) -> int:
        """How many prompts there are."""
        is_one = isinstance(self.prompt, str) or (bool(self.prompt) and isinstance(self.prompt[0], int))
        return 1 if is_one else len(self.prompt)

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one entry each. `InvalidRequest` for an empty list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequest("prompt is an empty list: give at least one prompt", "prompt")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        """``max_tokens`` 0 becomes 1: the engine draws one token at least, and the answer leaves it out."""
        params = super().sampling_params(defaults)
        if self.echo and self.logprobs is not None:
            told = params.prompt_logprobs
            params = replace(params, prompt_logprobs=_most(self.logprobs, told))
        return params

    def answer_limit(self) -> int | None:
        return 1 if self.max_tokens == 0 else self.max_tokens

    def _limit_or(self, model_limit: int | None) -> int | None:
        if model_limit is not None and "max_tokens" not in self.model_fields_set:
            return model_limit  # OpenAI's 16 is for models without an own one
        return super()._limit_or(model_limit)


class ChatMessage(BaseModel):
    """One message. ``content`` is a text or a list of text parts; other parts are not supported yet."""

    model_config = _STRICT

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    name: str | None = None

    def plain(self, place: str) -> dict[str, Any]:
        """What the template sees. OpenAI's "developer" is its newer name for "system"."""
        if self.role in ("tool", "function"):
            raise UnsupportedParameter(f"{place}.role", self.role, "'system', 'user' or 'assistant'")
        refuse_unsupported(
            self.model_extra or {},
            {"tool_calls": ([],), "function_call": (), "refusal": (), "audio": (), "annotations": ([],)},
        )
        if self.content is None:
            raise InvalidRequest(f"{place}.content is missing: give a text", f"{place}.content")
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content}
        if self.name is not None:
            message["name"] = self.name
        return message


Messages = Annotated[list[ChatMessage], Field(fail_fast=True)]


def plain_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as the template sees them."""
    return [message.plain(f"messages[{index}]") for index, message in enumerate(messages)]


def check_continued(
    messages: list[ChatMessage], add_generation_prompt: bool | None, continue_final_message: bool | None
) -> None:
    """`InvalidRequest` unless the chat ends with an answer, if an answer is to be continued, and no other begins."""
    if not continue_final_message:
        return
    if add_generation_prompt is not False:
        text = "continue_final_message and add_generation_prompt (true unless given) exclude each other: "
        raise InvalidRequest(text + "set add_generation_prompt to false", "continue_final_message")
    if not messages or messages[-1].role != "assistant":
        text = "continue_final_message continues an answer: the last message must have the role 'assistant'"
        raise InvalidRequest(text, "continue_final_message")


class ChatCompletionRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    known_unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = CHAT

    messages: Messages
    max_completion_tokens: Tokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, _told(minimum=0)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise InvalidRequest("give max_completion_tokens or max_tokens, not both", "max_tokens")
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
        if self.top_logprobs is not None and self.top_logprobs < 0:
            raise InvalidRequest(f"top_logprobs is {self.top_logprobs}: it must be 0 or more", "top_logprobs")
        check_continued(self.messages, self.add_generation_prompt, self.continue_final_message)

    def answer_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def _most(one: int, other: int | None) -> int:
    """The larger of two counts of likeliest tokens, of which -1 is the largest."""
    return -1 if -1 in (one, other) else max(one, other or 0)
