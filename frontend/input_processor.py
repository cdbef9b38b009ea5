"""Prompts and parameters in, engine requests out: tokenises, checks against the limits, fans out ``n``.

Called by `AsyncLLM` at admission. Every error names the field and the limit; nothing reaches the engine
unchecked.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ringcast.scheduler.messages import AddRequest, EngineInfo, SamplingRule, StopRule

from .errors import InvalidRequest
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt given as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt given as token ids."""

    prompt_token_ids: list[int]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
Message = Mapping[str, Any]

_DRAWN_SEED_BITS = 52  # a drawn seed survives JSON in any language
_SEED_RANGE = 1 << 64


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for admission. ``param`` is what the user called it, for errors."""

    text: str | None
    token_ids: list[int]
    param: str = "prompt"


class InputProcessor:
    """Stateless beside its tokenizer; safe to call from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """A text, a list of token ids, or a mapping with ``prompt`` or ``prompt_token_ids``."""
        if isinstance(prompt, Mapping):
            prompt = _from_mapping(prompt)
        if isinstance(prompt, str):
            token_ids = self._tokenizer.encode(prompt) if prompt else []
            return EncodedPrompt(prompt, _not_empty(token_ids))
        return EncodedPrompt(None, _not_empty(_checked_ids(prompt)))

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> EncodedPrompt:
        """Messages through the model's chat template."""
        text = self._tokenizer.render_chat(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        return EncodedPrompt(text, _not_empty(token_ids, "messages"), "messages")

    def default_params(self) -> SamplingParams:
        """For callers that give none: the model's own defaults, else the neutral ones."""
        return SamplingParams(**self._tokenizer.generation.sampling_defaults())  # type: ignore[arg-type]

    def check(self, prompt: EncodedPrompt, params: SamplingParams, info: EngineInfo) -> None:
        """Refuse what the engine could not run. `InvalidRequest` names field, value and limit."""
        length, limit = len(prompt.token_ids), info.max_model_len
        if length >= limit:
            raise InvalidRequest(
                f"{prompt.param} has {length} tokens, but the context holds {limit} and one must be "
                f"left for the answer: shorten it to {limit - 1} or less",
                prompt.param,
            )
        largest = max(prompt.token_ids)
        if largest >= info.vocab_size:
            raise InvalidRequest(
                f"{prompt.param} holds the token id {largest}: ids must be below {info.vocab_size}",
                prompt.param,
            )
        for token_id in params.stop_token_ids or ():
            if token_id >= info.vocab_size:
                raise InvalidRequest(
                    f"stop_token_ids holds {token_id}: ids must be below {info.vocab_size}", "stop_token_ids"
                )

    def requests(
        self, prompt: EncodedPrompt, params: SamplingParams, info: EngineInfo, ids: Sequence[str]
    ) -> list[AddRequest]:
        """One engine request per answer, under these ids. Draws the seed if the user gave none.

        ``max_tokens`` is cut to what the context has left, so an answer at its end finishes with "length".
        """
        seed = secrets.randbits(_DRAWN_SEED_BITS) if params.seed is None else params.seed
        left = info.max_model_len - len(prompt.token_ids)
        eos = [] if params.ignore_eos else [i for i in self._tokenizer.eos_token_ids if i < info.vocab_size]
        stop = StopRule(
            max_tokens=left if params.max_tokens is None else min(params.max_tokens, left),
            eos_token_ids=eos,
            stop_token_ids=list(params.stop_token_ids or ()),
        )
        return [
            AddRequest(
                request_id=request_id,
                client=info.client,
                prompt_token_ids=prompt.token_ids,
                sampling=_sampling_rule(params, answer_seed(seed, index)),
                stop=stop,
                output_token_ids=[],
            )
            for index, request_id in enumerate(ids)
        ]


def _from_mapping(prompt: Mapping[str, Any]) -> Any:
    given = [value for key in ("prompt", "prompt_token_ids") if (value := prompt.get(key)) is not None]
    if len(given) != 1 or set(prompt) - {"prompt", "prompt_token_ids"}:
        raise InvalidRequest(f"prompt has the keys {sorted(prompt)}: give either prompt or prompt_token_ids", "prompt")
    return given[0]


def answer_seed(seed: int, index: int) -> int:
    """The seed of answer ``index``: ``seed + index``, wrapped into 64 signed bits."""
    return (seed + index + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2


def _sampling_rule(params: SamplingParams, seed: int) -> SamplingRule:
    return SamplingRule(temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, seed=seed)


def _not_empty(token_ids: list[int], param: str = "prompt") -> list[int]:
    if not token_ids:
        raise InvalidRequest(f"{param} is empty: it must have at least one token", param)
    return token_ids


def _checked_ids(prompt: object) -> list[int]:
    if not isinstance(prompt, list | tuple):
        raise InvalidRequest(f"prompt is a {type(prompt).__name__}: give a text or a list of token ids", "prompt")
    for token_id in prompt:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise InvalidRequest(f"prompt holds {token_id!r}: token ids are integers from 0 on", "prompt")
    return list(prompt)
