"""Flat figures: all that is counted appears, once, under the documented name, and Prometheus's own parser reads it."""

from __future__ import annotations

import asyncio
from dataclasses import fields

import pytest
from actor_zoo import Blocking, Counter
from prometheus_client.parser import text_string_to_metric_families

import ringcast.actors as rt
from ringcast.actors.figures import _HISTOGRAMS, _OF_MAILBOXES, _OF_PROCESSES, Histogram

pytestmark = pytest.mark.usefixtures("leak_oracle")


def mailbox(**figures: object) -> rt.MailboxStatistics:
    given = {item.name: 0 for item in fields(rt.MailboxStatistics)}
    given |= {"queue_time_histogram": [0] * 48, "handling_time_histogram": [0] * 48}
    return rt.MailboxStatistics(**given | figures)  # type: ignore[arg-type]


def node(**figures: object) -> rt.NodeStatistics:
    return rt.NodeStatistics(**{item.name: 0 for item in fields(rt.NodeStatistics)} | {"mailboxes": {}} | figures)  # type: ignore[arg-type]


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> values of its labels, in their order -> value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_every_figure_has_a_metric() -> None:
    assert {*_OF_PROCESSES, "mailboxes"} == {item.name for item in fields(rt.NodeStatistics)}
    sums = {sum_field for sum_field, *_ in _HISTOGRAMS.values()}
    assert {*_OF_MAILBOXES, *_HISTOGRAMS, *sums} == {item.name for item in fields(rt.MailboxStatistics)}


def test_prometheus_reads_names_units_labels_and_values() -> None:
    buckets = [0] * 48
    buckets[0], buckets[3], buckets[40] = 2, 1, 1  # below 1 µs, 4 to 8 µs, days
    till = mailbox(depth=3, oldest_age_s=0.25, handled=4, handling_time_histogram=buckets, handling_time_s=7.5)
    read = parsed(rt.prometheus_text({'a "b"\\c\n': node(bytes_sent=10**12, mailboxes={"till": till}), "d": node()}))
    assert read["ringcast_sent_bytes_total"] == {('a "b"\\c\n',): 1e12, ("d",): 0}
    assert read["ringcast_mailbox_depth"] == {('a "b"\\c\n', "till"): 3}
    assert read["ringcast_mailbox_oldest_age_seconds"] == {('a "b"\\c\n', "till"): 0.25}
    assert read["ringcast_handled_messages_total"] == {('a "b"\\c\n', "till"): 4}
    times = {labels[2]: value for labels, value in read["ringcast_handling_time_seconds_bucket"].items()}
    assert (times["1e-06"], times["4e-06"], times["8e-06"], times["67.1089"], times["+Inf"]) == (2, 2, 3, 3, 4)
    assert list(read["ringcast_handling_time_seconds_sum"].values()) == [7.5]
    assert list(read["ringcast_handling_time_seconds_count"].values()) == [4]


def test_metrics_carry_their_units_apart_from_their_names() -> None:
    by_name = {metric.name: metric for metric in rt.metrics({"d": node(mailboxes={"m": mailbox()})})}
    assert len(by_name) == len(rt.metrics({}))
    assert (by_name["ringcast_sent"].kind, by_name["ringcast_sent"].unit) == ("counter", "bytes")
    queue_time = by_name["ringcast_queue_time"]
    assert (queue_time.kind, queue_time.unit) == ("histogram", "seconds")
    (sample,) = queue_time.samples
    assert sample.labels == {"process": "d", "actor": "m"}
    assert isinstance(sample.value, Histogram) and sample.value.count == 0


async def test_a_busy_or_dying_process_does_not_hold_the_figures_of_the_others_up() -> None:
    async with rt.System("shop") as system:
        till = await system.spawn(rt.spec(Counter, 0), name="till", where=rt.process())
        oven = await system.spawn(rt.spec(Blocking), name="oven", where=rt.process())
        await till.add(1)
        baking = asyncio.ensure_future(oven.sleep(0.8))
        await asyncio.sleep(0.1)
        figures = await system.statistics(timeout_s=0.2)
        assert set(figures) == {"shop", "till"}
        assert parsed(rt.prometheus_text(figures))["ringcast_handled_messages_total"][("till", "till")] == 1
        waiting = asyncio.ensure_future(system.statistics())
        await asyncio.sleep(0)
        with pytest.raises(rt.ActorDied):
            await till.die("kill")
        assert set(await waiting) in ({"shop", "oven"}, {"shop", "oven", "till"})  # it may have answered before
        await baking
