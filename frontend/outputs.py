"""Result objects with vLLM's names: what `generate` and `chat` return. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of `time.monotonic`; None while they have not."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely a token was at its place, by the model's own logits. Natural logarithm.

    ``rank`` is 1 for the likeliest. ``decoded_token`` is its text alone (bytes that are no text are U+FFFD), None where
    nothing is detokenised.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# At one place: first the token that stands there, then the likeliest ones, best first. By token id: two tokens may
# have the same text.
LogprobsOfToken = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the ``n`` answers of a request.

    ``finish_reason`` is None while it runs. ``stop_reason`` is the stop string or the stop token id that
    ended it, None for the end-of-sequence token. ``seed`` is the seed it was drawn with, given or not.
    ``logprobs`` has one entry for each of ``token_ids`` and ``cumulative_logprob`` is the sum over the whole answer so
    far; both None if they were not asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seed: int | None = None
    cumulative_logprob: float | None = None
    logprobs: list[LogprobsOfToken] | None = None

    def finished(self) -> bool:
        """True when no more tokens come."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's answers so far. ``prompt`` is None when the prompt was given as token ids.

    ``prompt_token_ids`` are those that the model sees: after a truncation, fewer than the text's.
    ``prompt_logprobs`` has one entry for each of them, None for the first; None as a whole if not asked for, and in
    deltas after the first.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    prompt_logprobs: list[LogprobsOfToken | None] | None = None
