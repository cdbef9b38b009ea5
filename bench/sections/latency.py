"""One-way latency over message size, both sides awake where the transport allows it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from ..report import Cell, Curve, Table, Target, size_text
from ..workers import Pair
from . import OURS, Bench, Series

SIZES: Final = (64, 256, 1024, 4096, 16384, 65536)
SHOWN: Final = (64, 1024, 16384)
FLOOR: Final = "a shared word, no bytes"


def measure(bench: Bench) -> list[Curve]:
    """The table, and a curve for each transport."""
    series = Series()
    with ExitStack() as stack:
        pairs = [(t, stack.enter_context(t.pair(bench.cores))) for t in bench.transports]
        word = stack.enter_context(Pair("bench.transports.word:WordEndpoint", bench.cores))
        for repetition in range(bench.plan.repetitions):
            bench.say(f"latency: repetition {repetition + 1} of {bench.plan.repetitions}")
            count = bench.plan.polled_count
            series.add_laps(FLOOR, word.call(("ping", 0, count), ("echo", 0, count)))
            for size in SIZES:
                for transport, pair in pairs:
                    count = bench.plan.slept_count if transport.sleeps else bench.plan.polled_count
                    laps = pair.call(("ping", size, count), ("echo", size, count))
                    series.add_laps((transport.label, size), laps)

    ours = series.figure(((OURS.label, 64), "p50"), "µs", 1e-3)
    rows: list[tuple[Cell, ...]] = []
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
    floor, none = series.figure((FLOOR, "p50"), "µs", 1e-3), [""] * (len(SHOWN) - 1)
    rows.append((FLOOR, floor, *none, series.figure((FLOOR, "p99"), "µs", 1e-3), floor.ratio_to(ours)))
    columns = ("transport", *(size_text(size) for size in SHOWN), "p99 of 64 B", "64 B against ringcast")
    note = (
        "Half a round trip, p50 of each repetition. ringcast and iceoryx2 readers poll and stay awake; the others' "
        "readers have no way but to sleep in the kernel. The last row is the floor: one cache line to the other core "
        "and the calls from Python for it; it moves with the machine as all rows above it do."
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
