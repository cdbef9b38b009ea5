"""`SamplingRules`: how each row draws, in columns. Owned by `rows`; read by the sampler once a step.

What a rule asks for is checked here, once, when its request enters: native code relies on every id. A step then only
gathers by row index; rows whose rule changes logits cost a few small arrays more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringcast.scheduler.messages import SamplingRule

from .errors import PlanError

ALL = -1  # of log-probabilities: of the whole vocabulary
NONE = -2  # of log-probabilities: not asked for
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of token ids, one after the other: list i is values[starts[i] : starts[i + 1]]."""

    starts: NDArray[np.int64]
    values: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What the rules of some draws do to their logits; see native/logits.cpp. Arrays are by draw, unless noted."""

    draws: NDArray[np.int64]  # which of the step's draws
    allowed: Lists  # empty: all
    word_starts: NDArray[np.int64]  # [draws + 1]: which of ``words`` are whose
    words: Lists  # by word
    banned: Lists
    biased: Lists
    biases: NDArray[np.float32]  # by value of ``biased``
    history: Lists  # prompt and output of those whose rule looks at them, else empty
    prompt_tokens: NDArray[np.int64]  # how many of the history are the prompt's
    repetition: NDArray[np.float32]
    frequency: NDArray[np.float32]
    presence: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The rules of the rows to draw for, as columns [draws]."""

    temperature: NDArray[np.float64]  # 0 is greedy
    top_p: NDArray[np.float64]  # in (0, 1]
    top_k: NDArray[np.int64]  # 0 keeps all
    min_p: NDArray[np.float64]  # in [0, 1], 0 keeps all
    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]  # index in the sequence of the token being drawn
    logprobs: NDArray[np.int64]  # how many of the likeliest tokens are told of, or NONE
    adjustments: Adjustments | None = None  # None: no rule changes logits


@dataclass(frozen=True, slots=True)
class _RowLists:
    """The lists of one rule, as arrays."""

    allowed: NDArray[np.int32]
    words: list[NDArray[np.int32]]
    banned: NDArray[np.int32]  # while there are fewer outputs than ``min_tokens``
    biased: NDArray[np.int32]
    biases: NDArray[np.float32]


_EMPTY = np.zeros(0, np.int32)
_NO_LISTS = _RowLists(_EMPTY, [], _EMPTY, _EMPTY, np.zeros(0, np.float32))


class SamplingRules:
    """The rules of up to ``num_rows`` requests on a model of ``vocab_size`` tokens."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._temperature = np.zeros(num_rows, np.float64)
        self._top_p = np.ones(num_rows, np.float64)
        self._top_k = np.zeros(num_rows, np.int64)
        self._min_p = np.zeros(num_rows, np.float64)
        self._seeds = np.zeros(num_rows, np.int64)
        self._logprobs = np.full(num_rows, NONE, np.int64)
        self._prompt_logprobs = np.full(num_rows, NONE, np.int64)
        self._min_tokens = np.zeros(num_rows, np.int64)
        self._repetition = np.ones(num_rows, np.float32)
        self._frequency = np.zeros(num_rows, np.float32)
        self._presence = np.zeros(num_rows, np.float32)
        self._adjusts = np.zeros(num_rows, np.bool_)  # always, not only up to min_tokens
        self._remembers = np.zeros(num_rows, np.bool_)  # the rule looks at the tokens so far
        self._lists = [_NO_LISTS] * num_rows

    def enter(self, row: int, rule: SamplingRule, where: str) -> None:
        """Set the rule of ``row``. `PlanError` if it cannot be followed; ``where`` begins its message."""
        self._check(rule, where)
        self._temperature[row] = rule.temperature
        self._top_p[row] = rule.top_p
        self._top_k[row] = min(rule.top_k, self._vocab_size)
        self._min_p[row] = rule.min_p
        # Any integer is a seed: its lowest 64 bits count.
        self._seeds[row] = np.uint64(rule.seed & _SEED_MASK).astype(np.int64)
        self._logprobs[row] = NONE if rule.logprobs is None else rule.logprobs
        self._prompt_logprobs[row] = NONE if rule.prompt_logprobs is None else rule.prompt_logprobs
        self._repetition[row] = rule.repetition_penalty
        self._frequency[row] = rule.frequency_penalty
        self._presence[row] = rule.presence_penalty
        bias = rule.logit_bias or ()
        lists = _RowLists(
            allowed=self._ids(rule.allowed_token_ids or (), "allowed_token_ids", where),
            words=[self._ids(word, "bad_words", where) for word in rule.bad_words or ()],
            banned=self._ids(rule.stop_token_ids or (), "stop_token_ids", where),
            biased=self._ids([token_id for token_id, _ in bias], "logit_bias", where),
            biases=np.array([value for _, value in bias], np.float32),
        )
        has_penalties = (rule.repetition_penalty, rule.frequency_penalty, rule.presence_penalty) != (1.0, 0.0, 0.0)
        self._remembers[row] = has_penalties or bool(lists.words)
        self._adjusts[row] = self._remembers[row] or len(lists.allowed) > 0 or len(lists.biased) > 0
        self._min_tokens[row] = rule.min_tokens if len(lists.banned) else 0
        self._lists[row] = lists if self._adjusts[row] or self._min_tokens[row] else _NO_LISTS

    def gather(
        self,
        rows: NDArray[np.int64],
        token_ids: NDArray[np.int32],
        num_tokens: NDArray[np.int64],
        num_prompt_tokens: NDArray[np.int64],
    ) -> SamplingRows:
        """The rules for drawing the next token of each of ``rows``; the other arrays are those of all rows."""
        too_short = num_tokens[rows] - num_prompt_tokens[rows] < self._min_tokens[rows]
        (draws,) = np.nonzero(self._adjusts[rows] | too_short)
        return SamplingRows(
            temperature=self._temperature[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            min_p=self._min_p[rows],
            seeds=self._seeds[rows],
            positions=num_tokens[rows],
            logprobs=self._logprobs[rows],
            adjustments=self._adjustments(
                draws, rows[draws], too_short[draws], token_ids, num_tokens, num_prompt_tokens
            )
            if len(draws)
            else None,
        )

    def prompt_logprobs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the likeliest tokens are told of at each prompt position of ``rows``, or NONE."""
        return self._prompt_logprobs[rows]

    def _adjustments(
        self,
        draws: NDArray[np.int64],
        rows: NDArray[np.int64],
        too_short: NDArray[np.bool_],
        token_ids: NDArray[np.int32],
        num_tokens: NDArray[np.int64],
        num_prompt_tokens: NDArray[np.int64],
    ) -> Adjustments:
        lists = [self._lists[row] for row in rows.tolist()]
        remembers = self._remembers[rows]
        lengths = np.where(remembers, num_tokens[rows], 0)
        biases = [item.biases for item in lists]
        return Adjustments(
            draws=draws,
            allowed=_joined([item.allowed for item in lists]),
            word_starts=_starts([len(item.words) for item in lists]),
            words=_joined([word for item in lists for word in item.words]),
            banned=_joined([item.banned if short else _EMPTY for item, short in zip(lists, too_short, strict=True)]),
            biased=_joined([item.biased for item in lists]),
            biases=np.concatenate(biases),
            history=_joined([token_ids[row, :length] for row, length in zip(rows, lengths, strict=True)]),
            prompt_tokens=np.where(remembers, num_prompt_tokens[rows], 0),
            repetition=self._repetition[rows],
            frequency=self._frequency[rows],
            presence=self._presence[rows],
        )

    def _check(self, rule: SamplingRule, where: str) -> None:
        for name, value, is_right, wanted in (
            ("temperature", rule.temperature, 0.0 <= rule.temperature < math.inf, "0 or more"),
            ("top_p", rule.top_p, 0.0 < rule.top_p <= 1.0, "more than 0, at most 1"),
            ("top_k", rule.top_k, rule.top_k >= 0, "0 or more"),
            ("min_p", rule.min_p, 0.0 <= rule.min_p <= 1.0, "0 to 1"),
            ("presence_penalty", rule.presence_penalty, math.isfinite(rule.presence_penalty), "finite"),
            ("frequency_penalty", rule.frequency_penalty, math.isfinite(rule.frequency_penalty), "finite"),
            ("repetition_penalty", rule.repetition_penalty, 0.0 < rule.repetition_penalty < math.inf, "more than 0"),
            ("min_tokens", rule.min_tokens, rule.min_tokens >= 0, "0 or more"),
            ("logprobs", rule.logprobs, self._is_count(rule.logprobs), f"{ALL} to {self._vocab_size}"),
            ("prompt_logprobs", rule.prompt_logprobs, self._is_count(rule.prompt_logprobs),
             f"{ALL} to {self._vocab_size}"),
            ("logit_bias", rule.logit_bias, all(math.isfinite(bias) for _, bias in rule.logit_bias or ()), "finite"),
            ("allowed_token_ids", rule.allowed_token_ids, rule.allowed_token_ids != [], "None, or not empty"),
            ("bad_words", rule.bad_words, all(rule.bad_words or ()), "words of at least one token"),
        ):  # fmt: skip
            if not is_right:
                raise PlanError(f"{where} cannot be sampled: {name} is {value}, not {wanted}")

    def _is_count(self, count: int | None) -> bool:
        return count is None or ALL <= count <= self._vocab_size

    def _ids(self, values: Sequence[int], what: str, where: str) -> NDArray[np.int32]:
        return checked_ids(values, self._vocab_size, f"token id in {what}", where).astype(np.int32)


def checked_ids(values: Sequence[int], limit: int, what: str, where: str) -> NDArray[np.int64]:
    """``values`` as an array; `PlanError` if one is outside 0..limit-1."""
    try:
        ids = np.array(values, np.int64)
    except OverflowError as error:
        raise PlanError(f"{where} has a {what} outside 0 to {limit - 1}") from error
    if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
        wrong = ids[(ids < 0) | (ids >= limit)][0]
        raise PlanError(f"{where} has the {what} {wrong}; 0 to {limit - 1} are possible")
    return ids


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _joined(arrays: Sequence[NDArray[np.int32]]) -> Lists:
    return Lists(_starts([len(array) for array in arrays]), np.concatenate(arrays) if arrays else _EMPTY)
