"""Messages a second one way: 64 B in batches and one by one, and 16 KiB in bytes a second."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from ..report import Cell, Table, Target
from . import OURS, Bench, Series

BATCH: Final = 64
PEERS_SHARE: Final = 0.03  # of the messages that we send: they take about as long


def measure(bench: Bench) -> None:
    """From the first send until the reader has copied the last message out."""
    series = Series()
    runs = (("batched", 64, BATCH), ("single", 64, 1), ("large", 16384, 1))
    with ExitStack() as stack:
        pairs = [(t, stack.enter_context(t.pair(bench.cores))) for t in bench.transports]
        for repetition in range(bench.plan.repetitions):
            bench.say(f"throughput: repetition {repetition + 1} of {bench.plan.repetitions}")
            for name, size, batch in runs:
                for transport, pair in pairs:
                    if name == "batched" and transport is not OURS:
                        continue
                    share = 1.0 if transport is OURS else PEERS_SHARE if size == 64 else PEERS_SHARE * 5
                    count = max(1, int(bench.plan.stream_bytes * share) // size // BATCH) * BATCH
                    seconds = pair.call(("stream", size, count, batch), ("drain", count))
                    series.add((transport.label, name), count / seconds)

    rows: list[tuple[Cell, ...]] = []
    for transport in bench.transports:
        label = transport.label
        single, large = series.figure((label, "single"), "M/s", 1e-6), series.figure((label, "large"), "GB/s", 16384e-9)
        batched: Cell = series.figure((label, "batched"), "M/s", 1e-6) if transport is OURS else "has no batches"
        rows.append(
            (label, batched, single, large, series.figure((OURS.label, "large"), "GB/s", 16384e-9).ratio_to(large))
        )
    columns = (
        "transport",
        f"64 B, batches of {BATCH}",
        "64 B, one send each",
        "16 KiB, copied out",
        "ringcast at 16 KiB",
    )
    note = (
        "Until the reader has every message as bytes of its own. The last column: how many times as fast ringcast is."
    )
    bench.report.tables.append(Table("Throughput one way", columns, tuple(rows), note))
    bench.report.targets += [
        Target("64 B in batches, M/s", series.figure((OURS.label, "batched"), "M/s", 1e-6), 15, at_least=True),
        Target("64 B, one send each, M/s", series.figure((OURS.label, "single"), "M/s", 1e-6), 6, at_least=True),
        Target("16 KiB copied out, GB/s", series.figure((OURS.label, "large"), "GB/s", 16384e-9), 8, at_least=True),
    ]
