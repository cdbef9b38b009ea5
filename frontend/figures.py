"""What an engine's requests have been through, as counts and histograms: fed by `RequestTable`, read by ``/metrics``.

Plain numbers that are cheap to feed (a fifth of a microsecond a token); it knows no metrics system.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

# vLLM's bounds, so that its dashboards fit.
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

_FADE = 0.1  # the weight of the latest request in a fading mean


class Histogram:
    """Counts of values by upper bounds (inclusive), and their sum. The last count is of those above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestFigures:
    """Since the engine's start. A request counts once, each of its ``n`` answers by itself where answers are named."""

    def __init__(self) -> None:
        self.num_prompt_tokens = 0  # of requests that have a first token
        self.num_cached_prompt_tokens = 0  # of those, found in the prefix cache
        self.num_generated_tokens = 0
        self.num_finished: Counter[str] = Counter()  # answers, by finish reason; "error" too
        self.time_to_first_token_s = Histogram(_FIRST_TOKEN_S)
        self.inter_token_latency_s = Histogram(_TOKEN_S)
        self.time_per_output_token_s = Histogram(_TOKEN_S)  # an answer's mean, without its first token
        self.request_latency_s = Histogram(_REQUEST_S)  # of requests that ended by themselves
        self.queue_time_s = Histogram(_FIRST_TOKEN_S)
        self.prompt_tokens = Histogram(_TOKENS)
        self.generated_tokens = Histogram(_TOKENS)  # of answers
        self.recent_queue_time_s = 0.0  # fading mean

    def first_token(self, waited_s: float, queue_time_s: float, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """A request got its first token, ``waited_s`` after it was added."""
        self.num_prompt_tokens += num_prompt_tokens
        self.num_cached_prompt_tokens += num_cached_tokens
        self.prompt_tokens.observe(num_prompt_tokens)
        self.time_to_first_token_s.observe(waited_s)
        self.queue_time_s.observe(queue_time_s)
        self.recent_queue_time_s += _FADE * (queue_time_s - self.recent_queue_time_s)

    def answer_ended(self, reason: str, num_tokens: int, generation_s: float) -> None:
        """An answer ended, ``generation_s`` after its first token."""
        self.num_finished[reason] += 1
        self.generated_tokens.observe(num_tokens)
        if num_tokens > 1:
            self.time_per_output_token_s.observe(generation_s / (num_tokens - 1))
