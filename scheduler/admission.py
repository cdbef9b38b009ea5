"""Which requests are let in: the last check before the scheduler and the worker, which rely on every rule here.

The scheduler calls it once per request. It changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from .config import blocks_for
from .errors import RequestRefused
from .messages import AddRequest, KVCacheConfig, SamplingRule, StopRule
from .policy import rank
from .prefix_cache import Chain
from .request import Request


def admit(
    message: AddRequest, limits: KVCacheConfig, vocab_size: int, *, policy: str, arrival: int, now_s: float
) -> Request:
    """The request of a message, its ``max_tokens`` clipped to ``max_model_len``. O(tokens).

    `RequestRefused` when it could never be run to its end: it would wait for ever or stop others.
    """
    prompt, stop = message.prompt_token_ids, message.stop
    if not prompt:
        raise RequestRefused("the prompt is empty: give at least one token")
    tokens = prompt + message.output_token_ids
    _check_ids("the prompt", tokens, vocab_size)
    _check_stop(stop, vocab_size)
    _check_sampling(message.sampling, vocab_size)
    if len(prompt) + 1 > limits.max_model_len:
        raise RequestRefused(
            f"the prompt has {len(prompt)} tokens, but prompt and answer together may have "
            f"{limits.max_model_len} (max_model_len): shorten it to {limits.max_model_len - 1} or less"
        )
    max_num_tokens = min(len(prompt) + stop.max_tokens, limits.max_model_len)
    check_fits(max_num_tokens, limits)
    ending = frozenset(stop.eos_token_ids) | frozenset(stop.stop_token_ids)
    return Request(
        request_id=message.request_id,
        client=message.client,
        arrival=arrival,
        arrival_s=now_s,
        rank=rank(policy, message.priority, arrival),
        sampling=_complete(message.sampling, stop, ending),
        all_token_ids=tokens,
        num_prompt_tokens=len(prompt),
        min_num_tokens=len(prompt) + stop.min_tokens,
        max_num_tokens=max_num_tokens,
        eos_token_ids=frozenset(stop.eos_token_ids),
        ending_token_ids=ending,
        chain=Chain(message.cache_salt),
    )


def check_fits(max_num_tokens: int, limits: KVCacheConfig) -> None:
    """`RequestRefused` when a request of so many tokens has no place even alone."""
    needed = blocks_for(max_num_tokens - 1, limits.block_size)  # the last token is never computed
    if needed > limits.num_blocks:
        raise RequestRefused(
            f"prompt and answer may reach {max_num_tokens} tokens and need {needed} KV blocks of "
            f"{limits.block_size}, but there are {limits.num_blocks}: shorten the prompt, lower max_tokens, "
            "or start with more blocks"
        )


def _complete(sampling: SamplingRule, stop: StopRule, ending: frozenset[int]) -> SamplingRule:
    """The rule as the worker needs it: what must not be drawn too early is told by the stop rule alone."""
    if not stop.min_tokens or not ending:
        return replace(sampling, min_tokens=0, stop_token_ids=None) if sampling.min_tokens else sampling
    return replace(sampling, min_tokens=stop.min_tokens, stop_token_ids=sorted(ending))


def _check_stop(stop: StopRule, vocab_size: int) -> None:
    if stop.max_tokens < 1:
        raise RequestRefused(f"max_tokens={stop.max_tokens}: ask for at least 1")
    if not 0 <= stop.min_tokens <= stop.max_tokens:
        raise RequestRefused(f"min_tokens={stop.min_tokens}: give 0 to max_tokens, which is {stop.max_tokens}")
    _check_ids("eos_token_ids", stop.eos_token_ids, vocab_size)
    _check_ids("stop_token_ids", stop.stop_token_ids, vocab_size)


def _check_sampling(rule: SamplingRule, vocab_size: int) -> None:
    """A worker stops at a rule that it cannot follow, and with it everybody's step."""
    if rule == SamplingRule(rule.temperature, seed=rule.seed) and 0.0 <= rule.temperature < math.inf:
        return  # nothing but a temperature: most requests
    for name, value, is_right, remedy in (
        ("temperature", rule.temperature, 0.0 <= rule.temperature < math.inf, "0 or more"),
        ("top_p", rule.top_p, 0.0 < rule.top_p <= 1.0, "more than 0, at most 1"),
        ("top_k", rule.top_k, rule.top_k >= 0, "0 for the whole vocabulary, or more"),
        ("min_p", rule.min_p, 0.0 <= rule.min_p <= 1.0, "0 to 1"),
        ("presence_penalty", rule.presence_penalty, math.isfinite(rule.presence_penalty), "a finite number"),
        ("frequency_penalty", rule.frequency_penalty, math.isfinite(rule.frequency_penalty), "a finite number"),
        ("repetition_penalty", rule.repetition_penalty, 0.0 < rule.repetition_penalty < math.inf, "more than 0"),
        ("logprobs", rule.logprobs, 0 <= (rule.logprobs or 0) <= vocab_size, f"0 to {vocab_size}"),
        ("prompt_logprobs", rule.prompt_logprobs, 0 <= (rule.prompt_logprobs or 0) <= vocab_size, f"0 to {vocab_size}"),
    ):
        if not is_right:
            raise RequestRefused(f"{name}={value}: give {remedy}")
    if rule.logit_bias:
        _check_ids("logit_bias", [token_id for token_id, _ in rule.logit_bias], vocab_size)
        if not all(math.isfinite(bias) for _, bias in rule.logit_bias):
            raise RequestRefused("logit_bias: give finite numbers")
    if rule.allowed_token_ids is not None:
        if not rule.allowed_token_ids:
            raise RequestRefused("allowed_token_ids is empty: nothing could be drawn")
        _check_ids("allowed_token_ids", rule.allowed_token_ids, vocab_size)
    for sequence in rule.bad_words or ():
        if not sequence:
            raise RequestRefused("bad_words holds a word without tokens")
        _check_ids("bad_words", sequence, vocab_size)


def _check_ids(what: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise RequestRefused(
            f"{what} has token ids from {min(token_ids)} to {max(token_ids)}: the model knows 0 to {vocab_size - 1}"
        )
