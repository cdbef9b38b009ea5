"""One-way latency over message size, both sides awake where the transport allows it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from ..report import Curve, Table, Target, size_text
from . import OURS, Bench, Series

SIZES: Final = (64, 256, 1024, 4096, 16384, 65536)
SHOWN: Final = (64, 1024, 16384)


def measure(bench: Bench) -> list[Curve]:
    """The table, and a curve for each transport."""
    series = Series()
    with ExitStack() as stack:
        pairs = [(t, stack.enter_context(t.pair(bench.cores))) for t in bench.transports]
        for repetition in range(bench.plan.repetitions):
            bench.say(f"latency: repetition {repetition + 1} of {bench.plan.repetitions}")
            for size in SIZES:
                for transport, pair in pairs:
                    count = bench.plan.slept_count if transport.sleeps else bench.plan.polled_count
                    laps = pair.call(("ping", size, count), ("echo", size, count))
                    series.add_laps((transport.label, size), laps)

    ours = series.figure(((OURS.label, 64), "p50"), "µs", 1e-3)
    rows = []
    for transport in bench.transports:
        figures = {size: series.figure(((transport.label, size), "p50"), "µs", 1e-3) for size in SIZES}
        rows.append(
            (
                transport.label,
                *(figures[size] for size in SHOWN),
                series.figure(((transport.label, 64), "p99"), "µs", 1e-3),
                figures[64].ratio_to(ours),
            )
        )
    columns = ("transport", *(size_text(size) for size in SHOWN), "p99 of 64 B", "64 B against ringcast")
    note = (
        "Half a round trip, p50 of each repetition. ringcast and iceoryx2 readers poll and stay awake; the others' "
        "readers have no way but to sleep in the kernel."
    )
    bench.report.tables.append(Table("One-way latency", columns, tuple(rows), note))
    large = series.figure(((OURS.label, 16384), "p50"), "µs", 1e-3)
    bench.report.targets += [
        Target("one way, 64 B, both awake, µs", ours, 0.35),
        Target("one way, 16 KiB, both awake, µs", large, 1.5),
    ]
    return [
        Curve(
            transport.label,
            tuple((size, series.figure(((transport.label, size), "p50"), "µs", 1e-3)) for size in SIZES),
        )
        for transport in bench.transports
    ]
