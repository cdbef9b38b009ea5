"""`SamplingParams`: how to draw tokens and when to stop, with vLLM's names and defaults.

Users build them and they are validated here, once; what needs the model's limits is checked at admission, by the
processor, which splits them into the engine's rules. Fields that vLLM has and ringcast lacks yet are known by name, so
that a value other than the neutral one is refused and never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

from .errors import InvalidRequest, UnsupportedParameter
from .parameter_checks import MAX_TOKEN_ID, boolean, integer, number, strings, token_biases, token_ids

GREEDY_BELOW = 1e-5  # a temperature below it is 0, as in vLLM
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0  # logits are divided by it, and must stay finite
MAX_BIAS = 100.0
MAX_SEED = 2**63 - 1
MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 4096  # of one stop string: every piece of an answer is searched for the beginnings of all
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256


class RequestOutputKind(IntEnum):
    """What each yielded output holds: everything so far, only what is new, or the end alone."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


_NEUTRAL_ONLY = {"unsupported": True}  # metadata of a field that only takes its default for now
_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled. Immutable; ``InvalidRequest`` names field, value and allowed range.

    Drawing: ``temperature`` below 1e-5 is greedy. ``top_k`` 0 or -1 keeps the whole vocabulary; ``min_p`` keeps what is
    at least so likely as that share of the likeliest. Presence and frequency penalties look at the answer so far, the
    repetition penalty at the prompt too. ``logit_bias`` maps token ids to what is added to their logits.
    ``allowed_token_ids``: nothing else is drawn; ``bad_words``: texts that are not drawn. With ``n`` > 1 answer i is
    drawn with ``seed + i``; without a seed one is drawn at admission and returned with the output.

    Ends: ``max_tokens`` None means to the end of the context. ``stop`` are strings: the output is cut before the first
    one, unless ``include_stop_str_in_output``. Before ``min_tokens`` tokens nothing ends an answer, no stop string,
    no end-of-sequence token, no id of ``stop_token_ids``.

    Results: ``logprobs`` k tells the log-probability of each drawn token and of the k likeliest (0: of the token alone;
    -1: of the vocabulary), by the model's own logits; ``prompt_logprobs`` likewise of the prompt's tokens.
    ``truncate_prompt_tokens`` k keeps the last k tokens of a longer prompt; -1 as many as leave room for
    ``max_tokens``. The fields from ``structured_outputs`` on are not supported yet.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | str | None = None
    truncate_prompt_tokens: int | None = None

    structured_outputs: Any = field(default=None, metadata=_NEUTRAL_ONLY)
    guided_decoding: Any = field(default=None, metadata=_NEUTRAL_ONLY)
    logits_processors: Any = field(default=None, metadata=_NEUTRAL_ONLY)
    extra_args: dict[str, Any] | None = field(default=None, metadata=_NEUTRAL_ONLY)

    def __post_init__(self) -> None:
        self._refuse_unsupported()
        self._check_drawing()
        self._check_ends()
        for name in _FLAGS:
            boolean(name, getattr(self, name))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), -1, MAX_TOKEN_ID)
        if self.truncate_prompt_tokens is not None:
            integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, MAX_TOKEN_ID)
            if self.truncate_prompt_tokens == 0:
                raise InvalidRequest(
                    "truncate_prompt_tokens is 0: it must be -1, or a number of tokens in [1, ...]",
                    "truncate_prompt_tokens",
                )

    def _check_drawing(self) -> None:
        integer("n", self.n, 1, MAX_N)
        number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        number("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        number("top_p", self.top_p, 0.0, 1.0, above=True)
        integer("top_k", self.top_k, -1, MAX_TOKEN_ID)
        number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            integer("seed", self.seed, -MAX_SEED - 1, MAX_SEED)
        self._keep("logit_bias", token_biases("logit_bias", self.logit_bias, MAX_BIAS))
        if self.allowed_token_ids is not None:
            allowed = token_ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise InvalidRequest(
                    "allowed_token_ids is empty: nothing could be drawn; leave it out, or name at least one id",
                    "allowed_token_ids",
                )
            self._keep("allowed_token_ids", allowed)
        self._keep(
            "bad_words", strings("bad_words", self.bad_words, at_most=MAX_BAD_WORDS, max_chars=MAX_BAD_WORD_CHARS)
        )
        self._keep("top_k", max(self.top_k, 0))
        if self.temperature < GREEDY_BELOW:
            self._keep("temperature", 0.0)

    def _check_ends(self) -> None:
        if self.max_tokens is not None:
            integer("max_tokens", self.max_tokens, 1, MAX_TOKEN_ID)
        integer("min_tokens", self.min_tokens, 0, MAX_TOKEN_ID if self.max_tokens is None else self.max_tokens)
        stop = strings("stop", self.stop, at_most=MAX_STOP_STRINGS, max_chars=MAX_STOP_CHARS)
        if stop and not self.detokenize:
            raise InvalidRequest("stop needs detokenize=True: there is no text to search without", "stop")
        self._keep("stop", stop)
        self._keep("stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

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
