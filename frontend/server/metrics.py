"""``/metrics``: an engine's and a server's figures in Prometheus' format, under vLLM's names where vLLM has them.

Everything is read when it is asked for; nothing is kept here. What the engine could not tell at that moment is left
out, and ``ringcast:part_answered`` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ringcast.scheduler.messages import SchedulerStatistics

from ..async_llm import AsyncLLM
from ..engine_client import ActorFigures
from ..errors import EngineError
from ..figures import Histogram, RequestFigures
from .traffic import Traffic

__all__ = ["CONTENT_TYPE_LATEST", "metrics_text"]

T = TypeVar("T")

_ANSWER_S = 2.0  # what a part of the engine gets to answer: a worker is busy for a step
_FINISH_REASONS = ("stop", "length", "abort", "error")
_STATES = ("starting", "ready", "stalled", "restarting", "draining", "dead")


async def metrics_text(llm: AsyncLLM, model: str, traffic: Traffic, state: str) -> bytes:
    """The whole page. ``model`` is the label model_name, ``state`` the server's."""
    statistics, actors = await asyncio.gather(_answer(llm.statistics()), _answer(llm.actors()))
    try:
        figures = llm.request_figures()
    except EngineError:  # it has not started, or is dead
        figures = RequestFigures()
    page = _Page(model, traffic, state, figures, statistics, actors)
    return generate_latest(page)


async def _answer(question: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await question
    except (EngineError, TimeoutError):
        return None


@dataclass(frozen=True)
class _Page:
    """A collector of one moment's metrics."""

    model: str
    traffic: Traffic
    state: str
    figures: RequestFigures
    statistics: SchedulerStatistics | None
    actors: list[ActorFigures] | None

    def collect(self) -> Iterator[Metric]:
        """Every metric family."""
        yield from self._requests()
        if self.statistics is not None:
            yield from self._scheduler(self.statistics)
        yield from self._server()
        if self.actors is not None:
            yield from _actors(self.actors)
        yield from ProcessCollector(registry=CollectorRegistry()).collect()

    def _requests(self) -> Iterator[Metric]:
        figures = self.figures
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of requests that ran.", figures.num_prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", figures.num_generated_tokens)
        yield self._counter(
            "ringcast:cached_prompt_tokens",
            "Prompt tokens of requests that ran, found in the prefix cache.",
            figures.num_cached_prompt_tokens,
        )
        success = CounterMetricFamily(
            "vllm:request_success", "Answers that ended.", labels=["model_name", "engine", "finished_reason"]
        )
        for reason in _FINISH_REASONS:
            success.add_metric([self.model, "0", reason], figures.num_finished[reason])
        yield success
        for name, text, histogram in (
            ("time_to_first_token_seconds", "From arrival to first token.", figures.time_to_first_token_s),
            ("inter_token_latency_seconds", "Between an answer's tokens.", figures.inter_token_latency_s),
            (
                "request_time_per_output_token_seconds",
                "An answer's mean time per token after its first.",
                figures.time_per_output_token_s,
            ),
            ("e2e_request_latency_seconds", "From arrival to the end.", figures.request_latency_s),
            ("request_queue_time_seconds", "From arrival to the first step.", figures.queue_time_s),
            ("request_prompt_tokens", "Prompt tokens of a request.", figures.prompt_tokens),
            ("request_generation_tokens", "Tokens of an answer.", figures.generated_tokens),
        ):
            yield self._histogram(f"vllm:{name}", text, histogram)

    def _scheduler(self, statistics: SchedulerStatistics) -> Iterator[Metric]:
        used = 1.0 - statistics.num_free_blocks / max(1, statistics.num_blocks)
        yield self._gauge("vllm:num_requests_running", "Requests that run.", statistics.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait to run.", statistics.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", used)
        yield self._gauge("ringcast:kv_blocks_free", "KV blocks that are free.", statistics.num_free_blocks)
        yield self._gauge("ringcast:kv_blocks", "KV blocks.", statistics.num_blocks)
        for name, text, value in (
            ("vllm:num_preemptions", "Requests that gave way.", statistics.num_preemptions),
            ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", statistics.num_looked_up_tokens),
            ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", statistics.num_cached_tokens),
            ("ringcast:steps", "Steps planned.", statistics.num_steps),
            ("ringcast:worker_losses", "Deaths of the worker and failed steps.", statistics.num_worker_losses),
        ):
            yield self._counter(name, text, value)

    def _server(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("ringcast:state", "1 for the state that the server is in.", labels=["state"])
        for name in _STATES:
            state.add_metric([name], float(name == self.state))
        yield state
        yield _gauge("ringcast:http_requests_in_flight", "POST requests being answered.", self.traffic.in_flight)
        refused = CounterMetricFamily("ringcast:http_requests_refused", "Refused at the door.", labels=["status"])
        for status, number in sorted(self.traffic.num_refused.items()):
            refused.add_metric([str(status)], number)
        yield refused
        answered = GaugeMetricFamily("ringcast:part_answered", "1 if its figures are on this page.", labels=["part"])
        answered.add_metric(["scheduler"], float(self.statistics is not None))
        answered.add_metric(["actors"], float(_have_answered(self.actors)))
        yield answered

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric([self.model, "0"], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric([self.model, "0"], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["model_name", "engine"])
        buckets, count = [], 0
        for bound, number in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
            count += number
            buckets.append((bound, count))
        family.add_metric([self.model, "0"], buckets, histogram.total)
        return family


def _have_answered(actors: Sequence[ActorFigures] | None) -> bool:
    return actors is not None and all(actor.has_answered for actor in actors)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _actors(actors: Sequence[ActorFigures]) -> Iterator[Metric]:
    up = GaugeMetricFamily("ringcast:actor_up", "1 while the actor serves.", labels=["actor"])
    stalled = GaugeMetricFamily(
        "ringcast:actor_stalled_seconds",
        "For how long a stalled actor has made no progress; 0 if it is not stalled.",
        labels=["actor"],
    )
    depth = GaugeMetricFamily("ringcast:mailbox_depth", "Messages that wait for the actor.", labels=["actor"])
    for actor in actors:
        up.add_metric([actor.name], float(actor.is_up))
        stalled.add_metric([actor.name], actor.stalled_s)
        if actor.has_answered:
            depth.add_metric([actor.name], actor.mailbox_depth)
    yield up
    yield stalled
    yield depth
    for name, text, field in (
        ("ringcast:actor_deaths", "Deaths of the actor; all but the last were followed by a restart.", "num_deaths"),
        ("ringcast:ring_messages", "Messages sent over the ring of the actor's process.", "messages_sent"),
        ("ringcast:ring_bytes", "Bytes sent over the ring of the actor's process.", "bytes_sent"),
        ("ringcast:ring_overflows", "Messages that were too large for the ring.", "overflows"),
        ("ringcast:ring_full_waits", "Times that the ring was full.", "full_waits"),
    ):
        family = CounterMetricFamily(name, text, labels=["actor"])
        for actor in actors:
            if actor.has_answered or field == "num_deaths":
                family.add_metric([actor.name], getattr(actor, field))
        yield family
