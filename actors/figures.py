"""`System.statistics` as flat metrics with names, units and labels, for Prometheus and OpenTelemetry. No dependency.

For OpenTelemetry: report each `Metric` under its name with its unit and labels; a counter is an observable counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from .statistics import MailboxStatistics, NodeStatistics


@dataclass(frozen=True, slots=True)
class Histogram:
    """Times: how many were at most so long, for each bound; their number and sum."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]  # cumulative: one a bound, times above the last one are in ``count`` only
    count: int
    sum_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One value. ``labels``: the process, by its actor's name; for mailboxes the actor, too."""

    labels: dict[str, str]
    value: float | Histogram


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of all processes. Counters count from the start of the process, so a restart begins at 0."""

    name: str  # without Prometheus's suffix for the unit and for counters
    kind: Literal["counter", "gauge", "histogram"]
    unit: str  # "bytes", "seconds", or "" for plain numbers
    description: str
    samples: tuple[Sample, ...]


_Kind = Literal["counter", "gauge"]

# The field of NodeStatistics -> name, kind, unit, description; likewise for MailboxStatistics below.
_OF_PROCESSES: Final[dict[str, tuple[str, _Kind, str, str]]] = {
    "messages_sent": ("messages_sent", "counter", "", "Records in the process's ring."),
    "bytes_sent": ("sent", "counter", "bytes", "Payloads of those records, overflowing ones included."),
    "overflows": ("overflows", "counter", "", "Messages too large for the ring."),
    "full_waits": ("full_waits", "counter", "", "Times that the ring was full."),
    "wakes_sent": ("wakes_sent", "counter", "", "Doorbells that cost a system call."),
    "wakes_suppressed": ("wakes_suppressed", "counter", "", "Doorbells that cost none: the reader was awake."),
    "late_replies": ("late_replies", "counter", "", "Replies that came after their call had ended."),
    "dropped_casts": ("dropped_casts", "counter", "", "Casts whose actor was gone when they could have left."),
    "undecodable": ("undecodable_messages", "counter", "", "Messages that no registered type fits."),
}
_OF_MAILBOXES: Final[dict[str, tuple[str, _Kind, str, str]]] = {
    "depth": ("mailbox_depth", "gauge", "", "Messages that wait now."),
    "peak_depth": ("mailbox_peak_depth", "gauge", "", "The most that ever waited."),
    "oldest_age_s": ("mailbox_oldest_age", "gauge", "seconds", "How long the first of them has waited."),
    "handled": ("handled_messages", "counter", "", "Messages whose handler ended, whatever way."),
    "failed": ("failed_messages", "counter", "", "Of those, whose handler raised."),
    "expired": ("expired_messages", "counter", "", "Messages whose deadline passed in the mailbox."),
}
_HISTOGRAMS: Final = {  # field of the buckets -> field of the sum, name, description
    "queue_time_histogram": ("queue_time_s", "queue_time", "Time from arrival to handler."),
    "handling_time_histogram": ("handling_time_s", "handling_time", "Time in handlers."),
}
_LAST_BUCKET: Final = 26  # its bound is 67 seconds; longer times are told apart by the sum only


def metrics(figures: Mapping[str, NodeStatistics]) -> list[Metric]:
    """The figures that `System.statistics` returned, a metric for each."""
    made = [
        Metric(
            f"ringcast_{name}",
            kind,
            unit,
            description,
            tuple(Sample({"process": process}, getattr(node, field)) for process, node in figures.items()),
        )
        for field, (name, kind, unit, description) in _OF_PROCESSES.items()
    ]
    for field, (name, kind, unit, description) in _OF_MAILBOXES.items():
        samples = tuple(Sample(labels, getattr(mailbox, field)) for labels, mailbox in _mailboxes(figures))
        made.append(Metric(f"ringcast_{name}", kind, unit, description, samples))
    for field, (sum_field, name, description) in _HISTOGRAMS.items():
        samples = tuple(
            Sample(labels, _histogram(getattr(mailbox, field), getattr(mailbox, sum_field)))
            for labels, mailbox in _mailboxes(figures)
        )
        made.append(Metric(f"ringcast_{name}", "histogram", "seconds", description, samples))
    return made


def prometheus_text(figures: Mapping[str, NodeStatistics]) -> str:
    """The same in Prometheus's text format (version 0.0.4), as a metrics endpoint serves it."""
    return "".join(f"{line}\n" for metric in metrics(figures) for line in _lines(metric))


def _mailboxes(figures: Mapping[str, NodeStatistics]) -> Iterator[tuple[dict[str, str], MailboxStatistics]]:
    for process, node in figures.items():
        for actor, mailbox in node.mailboxes.items():
            yield {"process": process, "actor": actor}, mailbox


def _histogram(buckets: list[int], sum_s: float) -> Histogram:
    counts, total = [], 0
    for count in buckets[: _LAST_BUCKET + 1]:
        total += count
        counts.append(total)
    bounds_s = tuple(2**bucket / 1e6 for bucket in range(len(counts)))
    return Histogram(bounds_s, tuple(counts), sum(buckets), sum_s)


def _lines(metric: Metric) -> Iterator[str]:
    name = f"{metric.name}_{metric.unit}" if metric.unit else metric.name
    if metric.kind == "counter":
        name += "_total"
    yield f"# HELP {name} {metric.description}"
    yield f"# TYPE {name} {metric.kind}"
    for sample in metric.samples:
        value = sample.value
        if not isinstance(value, Histogram):
            yield f"{name}{_labels(sample.labels)} {value!r}"
            continue
        for bound, count in zip(value.bounds_s, value.counts, strict=True):
            yield f"{name}_bucket{_labels({**sample.labels, 'le': f'{bound:g}'})} {count}"
        yield f"{name}_bucket{_labels({**sample.labels, 'le': '+Inf'})} {value.count}"
        yield f"{name}_sum{_labels(sample.labels)} {value.sum_s!r}"
        yield f"{name}_count{_labels(sample.labels)} {value.count}"


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
