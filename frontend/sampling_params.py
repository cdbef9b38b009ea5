"""`SamplingParams`: how to draw tokens and when to stop, with vLLM's names and defaults.

Users build them and they are validated here, once; the processor splits them into the engine's rules.
Fields that vLLM has and ringcast lacks yet are known by name, so that a value other than the neutral one is
refused and never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

from .errors import InvalidRequest, UnsupportedParameter

GREEDY_BELOW = 1e-5  # a temperature below it is 0, as in vLLM
MAX_TEMPERATURE = 100.0
MAX_SEED = 2**63 - 1
MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_TOKEN_ID = 2**31 - 1


class RequestOutputKind(IntEnum):
    """What each yielded output holds: everything so far, only what is new, or the end alone."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


_NEUTRAL_ONLY = {"unsupported": True}  # metadata of a field that only takes its default for now


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled. Immutable; ``InvalidRequest`` names field, value and allowed range.

    ``temperature`` below 1e-5 is greedy. ``top_k`` 0 or -1 keeps the whole vocabulary. ``max_tokens`` None
    means: to the end of the context. ``stop`` are strings: the output is cut before the first one, unless
    ``include_stop_str_in_output``. With ``n`` > 1 answer i is drawn with ``seed + i``; without a seed one
    is drawn at admission and returned with the output. The fields from ``min_p`` on are not supported yet.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    min_p: float = field(default=0.0, metadata=_NEUTRAL_ONLY)
    presence_penalty: float = field(default=0.0, metadata=_NEUTRAL_ONLY)
    frequency_penalty: float = field(default=0.0, metadata=_NEUTRAL_ONLY)
    repetition_penalty: float = field(default=1.0, metadata=_NEUTRAL_ONLY)
    min_tokens: int = field(default=0, metadata=_NEUTRAL_ONLY)
    logprobs: int | None = field(default=None, metadata=_NEUTRAL_ONLY)
    prompt_logprobs: int | None = field(default=None, metadata=_NEUTRAL_ONLY)
    logit_bias: dict[int, float] | None = field(default=None, metadata=_NEUTRAL_ONLY)
    allowed_token_ids: list[int] | None = field(default=None, metadata=_NEUTRAL_ONLY)
    bad_words: list[str] | None = field(default=None, metadata=_NEUTRAL_ONLY)
    truncate_prompt_tokens: int | None = field(default=None, metadata=_NEUTRAL_ONLY)
    spaces_between_special_tokens: bool = field(default=True, metadata=_NEUTRAL_ONLY)
    structured_outputs: Any = field(default=None, metadata=_NEUTRAL_ONLY)
    guided_decoding: Any = field(default=None, metadata=_NEUTRAL_ONLY)
    logits_processors: Any = field(default=None, metadata=_NEUTRAL_ONLY)
    extra_args: dict[str, Any] | None = field(default=None, metadata=_NEUTRAL_ONLY)

    def __post_init__(self) -> None:
        self._refuse_unsupported()
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _number("top_p", self.top_p, 0.0, 1.0, above=True)
        _integer("top_k", self.top_k, -1, MAX_TOKEN_ID)
        if self.seed is not None:
            _integer("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, MAX_TOKEN_ID)
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}: it must be true or false", name)
        stop = _stop_strings(self.stop)
        if stop and not self.detokenize:
            raise InvalidRequest("stop needs detokenize=True: there is no text to search without", "stop")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        if self.temperature < GREEDY_BELOW:
            object.__setattr__(self, "temperature", 0.0)

    def _refuse_unsupported(self) -> None:
        for item in fields(self):
            if item.metadata.get("unsupported"):
                value = getattr(self, item.name)
                if value != item.default and value not in ([], {}):
                    raise UnsupportedParameter(item.name, value, f"its default, {item.default!r}")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as it was normalised: a tuple, empty for none."""
        return tuple(self.stop or ())

    def with_seed(self, seed: int) -> SamplingParams:
        """The same parameters with a seed."""
        return replace(self, seed=seed)


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Check that ``value`` is a finite number from ``low`` (or above it) to ``high``."""
    bracket = "(" if above else "["
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
        or (above and value == low)
    ):
        raise InvalidRequest(f"{name} is {value!r}: it must be a number in {bracket}{low:g}, {high:g}]", name)


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name} is {value!r}: it must be an integer in [{low}, {high}]", name)


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(item, str) for item in strings):
        raise InvalidRequest(f"stop is {value!r}: it must be a string or a list of strings", "stop")
    if not all(strings):
        raise InvalidRequest("stop holds an empty string: a stop string needs at least one character", "stop")
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop holds {len(strings)} strings: at most {MAX_STOP_STRINGS} may be", "stop")
    return tuple(dict.fromkeys(strings))


def _token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"stop_token_ids is {value!r}: it must be a list of token ids", "stop_token_ids")
    for index, token_id in enumerate(value):
        _integer(f"stop_token_ids[{index}]", token_id, 0, MAX_TOKEN_ID)
    return tuple(dict.fromkeys(value))
