"""Prompts and parameters in, engine requests out: tokenises, checks against the limits, fans out ``n``.

Called by `AsyncLLM` at admission. Every error names the field and the limit; nothing reaches the engine
unchecked. What can take long (`encode_all`, `encode_params` with lists) is for `EncodingQueue`'s threads.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from ringcast.scheduler.messages import AddRequest, EngineInfo, SamplingRule, StopRule

from .bad_words import BadWords
from .errors import FrontendError, InvalidRequest, TokenizerFailed
from .parameter_checks import below, integer, unicode_text
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt given as text. Only prompts of the same ``cache_salt`` share cached KV blocks."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt given as token ids. ``cache_salt`` as in `TextPrompt`."""

    prompt_token_ids: list[int]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
Message = Mapping[str, Any]

_DRAWN_SEED_BITS = 52  # a drawn seed survives JSON in any language
_SEED_RANGE = 1 << 64
_MAX_PRIORITY = 2**31 - 1
_ALWAYS_READ = 1 << 18  # characters, or ids, of a prompt that are looked at however small the context is
_CHEAP_IDS = 1024  # as many token ids are checked in less time than a change of threads takes


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for admission. ``param`` is what the user called it, for errors."""

    text: str | None
    token_ids: list[int]
    param: str = "prompt"
    cache_salt: str | None = None
    is_truncated: bool = False  # the beginning of the text was cut off
    edges: tuple[int, int] = (0, 0)  # how many special tokens stand around the text, in front and behind
    largest_id: int | None = None  # of ``token_ids``, where it is known


@dataclass(frozen=True, slots=True)
class EncodedParams:
    """Parameters that fit the model, with their words as token ids: worked out once for any number of prompts."""

    params: SamplingParams
    sampling: SamplingRule  # without a seed
    eos_token_ids: list[int]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the chat template, with its own arguments."""

    messages: Sequence[Message]
    add_generation_prompt: bool = True
    variables: Mapping[str, Any] | None = None
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """A prompt to be tokenised. ``max_model_len`` bounds how long a text is looked at at all."""

    prompt: Prompt | ChatPrompt
    add_special_tokens: bool
    max_model_len: int | None = None

    def size(self) -> int:
        """About how many characters it has."""
        return _size(self.prompt)


@dataclass(frozen=True, slots=True)
class ParamsJob:
    """Parameters to be checked against the model, and their words to be tokenised."""

    params: SamplingParams
    info: EngineInfo

    def size(self) -> int:
        """About how many characters it has."""
        return 4 * sum(map(len, self.params.bad_words or ()))  # each is tokenised in four contexts

    def is_cheap(self) -> bool:
        """Whether it is done in less time than a change of threads takes."""
        params = self.params
        lists = (params.allowed_token_ids, params.stop_token_ids, params.logit_bias)
        return not params.bad_words and sum(len(ids) for ids in lists if ids) <= _CHEAP_IDS


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What the user who started the engine lets requests ask for; the model's own limits are `EngineInfo`'s."""

    max_logprobs: int = 20  # -1: as many as the vocabulary has
    has_priorities: bool = False  # the scheduler looks at them


class InputProcessor:
    """Stateless beside its tokenizer; safe to call from any thread."""

    def __init__(self, tokenizer: Tokenizer, limits: AdmissionLimits | None = None) -> None:
        self._tokenizer = tokenizer
        self._bad_words = BadWords(tokenizer)
        self._limits = limits or AdmissionLimits()

    def encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> EncodedPrompt:
        """A text, a list of token ids, or a mapping with ``prompt`` or ``prompt_token_ids``, and ``cache_salt``.

        ``add_special_tokens``: a text gets those that the model puts around plain text.
        """
        return _result(self.encode_all([EncodeJob(prompt, add_special_tokens)]))

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> EncodedPrompt:
        """Messages through the model's chat template, which writes the special tokens itself."""
        return _result(
            self.encode_all([EncodeJob(ChatPrompt(messages, add_generation_prompt, variables), add_special_tokens)])
        )

    def encode_all(self, jobs: Sequence[EncodeJob]) -> list[EncodedPrompt | FrontendError]:
        """Each one's prompt, or what is wrong with it. Texts of the same kind are tokenised together."""
        results: list[EncodedPrompt | FrontendError] = []
        texts: dict[bool, list[int]] = {}
        for job in jobs:
            try:
                prompt = self._read(job)
            except FrontendError as error:
                results.append(error)
                continue
            if prompt.text:
                texts.setdefault(job.add_special_tokens, []).append(len(results))
            results.append(prompt)
        for add_special_tokens, places in texts.items():
            self._tokenise(results, places, add_special_tokens)
        return [_whole(result) if isinstance(result, EncodedPrompt) else result for result in results]

    def _check_length(self, job: EncodeJob, length: int, param: str) -> None:
        """Refuse what cannot fit, however it is tokenised, before more work is spent on it."""
        if job.max_model_len is None:
            return
        most = max(_ALWAYS_READ, job.max_model_len * self._tokenizer.longest_token)
        if length > most:
            raise InvalidRequest(
                f"{param} has a length of {length}: at most {most} characters are read, since the context holds "
                f"{job.max_model_len} tokens; shorten it",
                param,
            )

    def _read(self, job: EncodeJob) -> EncodedPrompt:
        """What was given, checked; a text without its ids yet."""
        prompt, salt = job.prompt, None
        self._check_length(job, job.size(), "messages" if isinstance(prompt, ChatPrompt) else "prompt")
        if isinstance(prompt, ChatPrompt):
            text = self._tokenizer.render_chat(
                prompt.messages,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                variables=prompt.variables,
            )
            self._check_length(job, len(text), "messages")
            return EncodedPrompt(text, [], "messages")
        if isinstance(prompt, Mapping):
            prompt, salt = _from_mapping(prompt)
        if isinstance(prompt, str):
            return EncodedPrompt(prompt, [], cache_salt=salt)
        return EncodedPrompt(None, _checked_ids(prompt), cache_salt=salt)

    def _tokenise(
        self, results: list[EncodedPrompt | FrontendError], places: Sequence[int], add_special_tokens: bool
    ) -> None:
        """Give the prompts at ``places``, which have texts, their ids; all together, or if one is bad each alone."""
        prompts = [result for place in places if isinstance(result := results[place], EncodedPrompt)]
        try:
            texts = [prompt.text or "" for prompt in prompts]
            all_ids = self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
            edges = self._tokenizer.special_edges if add_special_tokens else (0, 0)
        except (InvalidRequest, TokenizerFailed) as error:
            if len(places) > 1:
                for place in places:
                    self._tokenise(results, [place], add_special_tokens)
            elif isinstance(error, InvalidRequest):
                results[places[0]] = InvalidRequest(f"{prompts[0].param}: {error}", prompts[0].param)
            else:
                results[places[0]] = error
            return
        for place, prompt, token_ids in zip(places, prompts, all_ids, strict=True):
            results[place] = replace(prompt, token_ids=token_ids, edges=edges)

    def default_params(self) -> SamplingParams:
        """For callers that give none: the model's own defaults, else the neutral ones."""
        return SamplingParams(**self._tokenizer.generation.sampling_defaults())

    def encode_params(self, params: SamplingParams, info: EngineInfo) -> EncodedParams:
        """What the parameters are for this model. `InvalidRequest` names field, value and limit."""
        below("stop_token_ids", params.stop_token_ids or (), info.vocab_size)
        below("allowed_token_ids", params.allowed_token_ids or (), info.vocab_size)
        below("logit_bias", tuple(params.logit_bias or ()), info.vocab_size)
        self._check_logprobs("logprobs", params.logprobs)
        self._check_logprobs("prompt_logprobs", params.prompt_logprobs)
        bad_words = self._bad_word_ids(params, info.vocab_size)
        eos_token_ids = self._eos_token_ids(params, info)
        _check_something_is_left(params, info, bad_words, eos_token_ids)
        rule = SamplingRule(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            logit_bias=list(params.logit_bias.items()) if params.logit_bias else None,
            allowed_token_ids=list(params.allowed_token_ids) if params.allowed_token_ids else None,
            bad_words=bad_words or None,
            logprobs=_count(params.logprobs, info.vocab_size),
        )
        return EncodedParams(params, rule, eos_token_ids)

    def check(
        self, prompt: EncodedPrompt, params: SamplingParams, info: EngineInfo, priority: int = 0
    ) -> EncodedPrompt:
        """The prompt as it will run: truncated if it is to be. `InvalidRequest` names field, value and limit."""
        prompt = _truncated(prompt, params, info.max_model_len)
        length, limit = len(prompt.token_ids), info.max_model_len
        if length >= limit:
            raise InvalidRequest(
                f"{prompt.param} has {length} tokens, but the context holds {limit} and one must be "
                f"left for the answer: shorten it to {limit - 1} or less",
                prompt.param,
            )
        if params.min_tokens > limit - length:
            raise InvalidRequest(
                f"min_tokens is {params.min_tokens} and the {prompt.param} has {length} tokens, but the context holds "
                f"{limit}: ask for {limit - length} or less",
                "min_tokens",
            )
        ids = prompt.token_ids if prompt.largest_id is None else (prompt.largest_id,)
        below(prompt.param, ids, info.vocab_size)
        integer("priority", priority, -_MAX_PRIORITY, _MAX_PRIORITY)
        if priority and not self._limits.has_priorities:
            raise InvalidRequest(
                f"priority is {priority}, but this engine takes requests in the order of their arrival: leave it out, "
                "or start the engine with scheduling_policy='priority'",
                "priority",
            )
        return prompt

    def requests(
        self,
        prompt: EncodedPrompt,
        encoded: EncodedParams,
        info: EngineInfo,
        ids: Sequence[str],
        priority: int = 0,
    ) -> list[AddRequest]:
        """One engine request per answer, under these ids, of what `check` let pass. Draws the seed if none was given.

        ``max_tokens`` is cut to what the context has left, so an answer at its end finishes with "length". The first
        answer alone asks for the prompt's log-probabilities.
        """
        params = encoded.params
        seed = secrets.randbits(_DRAWN_SEED_BITS) if params.seed is None else params.seed
        left = info.max_model_len - len(prompt.token_ids)
        stop = StopRule(
            max_tokens=left if params.max_tokens is None else min(params.max_tokens, left),
            eos_token_ids=encoded.eos_token_ids,
            stop_token_ids=list(params.stop_token_ids or ()),
            min_tokens=params.min_tokens,
        )
        prompt_logprobs = _count(params.prompt_logprobs, info.vocab_size)
        return [
            AddRequest(
                request_id=request_id,
                client=info.client,
                prompt_token_ids=prompt.token_ids,
                sampling=replace(
                    encoded.sampling, seed=answer_seed(seed, index), prompt_logprobs=None if index else prompt_logprobs
                ),
                stop=stop,
                output_token_ids=[],
                priority=priority,
                cache_salt=prompt.cache_salt,
            )
            for index, request_id in enumerate(ids)
        ]

    def _eos_token_ids(self, params: SamplingParams, info: EngineInfo) -> list[int]:
        return [] if params.ignore_eos else [i for i in self._tokenizer.eos_token_ids if i < info.vocab_size]

    def _check_logprobs(self, name: str, count: int | None) -> None:
        most = self._limits.max_logprobs
        if count is not None and most >= 0 and not 0 <= count <= most:
            raise InvalidRequest(
                f"{name} is {count}: this engine tells 0 to {most}; start it with a larger max_logprobs for more", name
            )

    def _bad_word_ids(self, params: SamplingParams, vocab_size: int) -> list[list[int]]:
        return self._bad_words.sequences(params.bad_words or (), vocab_size)


def _check_something_is_left(
    params: SamplingParams, info: EngineInfo, bad_words: list[list[int]], eos_token_ids: list[int]
) -> None:
    """The rules together must not forbid every token: the engine could draw nothing and had to end the request."""
    if not params.allowed_token_ids and not params.bad_words and not params.min_tokens:
        return
    # A word of several tokens forbids the last of them only behind the others.
    forbidden = {sequence[0] for sequence in bad_words if len(sequence) == 1}
    if params.min_tokens:
        forbidden.update(eos_token_ids, params.stop_token_ids or ())
    candidates = params.allowed_token_ids or range(info.vocab_size)
    if len(forbidden) >= len(candidates) and forbidden.issuperset(candidates):
        name = "allowed_token_ids" if params.allowed_token_ids else "bad_words"
        raise InvalidRequest(
            f"{name}: bad_words, and min_tokens with its end tokens, forbid every token that could be drawn; "
            "allow one that they do not",
            name,
        )


def _truncated(prompt: EncodedPrompt, params: SamplingParams, max_model_len: int) -> EncodedPrompt:
    """The last tokens of a prompt that is longer than ``truncate_prompt_tokens``, and the special ones around it."""
    most = params.truncate_prompt_tokens
    if most == -1:
        most = max(1, max_model_len - (params.max_tokens or 1))
    if most is None or len(prompt.token_ids) <= most:
        return prompt
    before, behind = prompt.edges
    if most < before + behind:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {most}, but the model puts {before + behind} special tokens around a text: ask "
            "for more, or set add_special_tokens to false",
            "truncate_prompt_tokens",
        )
    ids = prompt.token_ids
    return replace(prompt, token_ids=ids[:before] + ids[len(ids) - most + before :], is_truncated=True)


def _count(logprobs: int | None, vocab_size: int) -> int | None:
    """How many likeliest tokens are asked for; -1 is the whole vocabulary."""
    return logprobs if logprobs is None else vocab_size if logprobs < 0 else min(logprobs, vocab_size)


def _from_mapping(prompt: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The prompt, and the salt of its cached blocks."""
    given = [value for key in ("prompt", "prompt_token_ids") if (value := prompt.get(key)) is not None]
    if len(given) != 1 or set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}:
        raise InvalidRequest(
            f"prompt has the keys {sorted(prompt)}: give either prompt or prompt_token_ids, and cache_salt if need be",
            "prompt",
        )
    return given[0], checked_salt(prompt.get("cache_salt"))


def checked_salt(salt: object) -> str | None:
    """None, or a text that is not empty."""
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise InvalidRequest(f"cache_salt is {salt!r}: it must be a text of at least one character", "cache_salt")
    if salt is not None:
        unicode_text("cache_salt", salt)
    return salt


def answer_seed(seed: int, index: int) -> int:
    """The seed of answer ``index``: ``seed + index``, wrapped into 64 signed bits."""
    return (seed + index + _SEED_RANGE // 2) % _SEED_RANGE - _SEED_RANGE // 2


def _whole(prompt: EncodedPrompt) -> EncodedPrompt | FrontendError:
    """With what admission wants to know of its ids; an empty one is refused."""
    if not prompt.token_ids:
        return InvalidRequest(f"{prompt.param} is empty: it must have at least one token", prompt.param)
    return replace(prompt, largest_id=max(prompt.token_ids))


def _size(value: object, depth: int = 5) -> int:
    """About how many characters a prompt or a chat's messages have; what is nested deeper than text parts counts 0."""
    if isinstance(value, str):
        return len(value)
    if not depth:
        return 0
    if isinstance(value, ChatPrompt):
        return _size(value.messages, depth)
    if isinstance(value, Mapping):
        return sum(_size(item, depth - 1) for item in value.values())
    if isinstance(value, list | tuple):
        return len(value) if value and isinstance(value[0], int) else sum(_size(item, depth - 1) for item in value)
    return 0


def _result(results: list[EncodedPrompt | FrontendError]) -> EncodedPrompt:
    (result,) = results
    if isinstance(result, FrontendError):
        raise result
    return result


def _checked_ids(prompt: object) -> list[int]:
    if not isinstance(prompt, list | tuple):
        raise InvalidRequest(f"prompt is a {type(prompt).__name__}: give a text or a list of token ids", "prompt")
    for token_id in prompt:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise InvalidRequest(f"prompt holds {token_id!r}: token ids are integers from 0 on", "prompt")
    return list(prompt)
