"""Messages a second one way: 64 B in batches and one by one, and 16 KiB in bytes a second."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from ..report import Cell, Figure, Table, Target
from . import OURS, Bench, Series

BATCH: Final = 64
LARGE_BYTES: Final = 16384
BUFFERED: Final = "ringcast, records in a buffer"
PEERS_SHARE: Final = 0.03  # of the messages that we send, of 64 B: that takes them about as long
PEERS_LARGE_SHARE: Final = 0.15


def measure(bench: Bench) -> None:
    """From the first send until the reader has copied the last message out."""
    series, volume = Series(), bench.plan.stream_bytes
    with ExitStack() as stack:
        pairs = [(t, stack.enter_context(t.pair(bench.cores))) for t in bench.transports]
        ours = pairs[0][1]
        for repetition in range(bench.plan.repetitions):
            bench.say(f"throughput: repetition {repetition + 1} of {bench.plan.repetitions}")
            count = _whole_batches(volume / 64)
            seconds = ours.call(("stream", 64, count, BATCH), ("drain", count))
            series.add((OURS.label, "batched"), count / seconds)
            seconds = ours.call(("stream_records", 64, count, BATCH), ("drain_records", 64, count, BATCH))
            series.add((BUFFERED, "batched"), count / seconds)
            for size, share in ((64, PEERS_SHARE), (LARGE_BYTES, PEERS_LARGE_SHARE)):
                for transport, pair in pairs:
                    count = _whole_batches(volume / size * (1 if transport is OURS else share))
                    seconds = pair.call(("stream", size, count, 1), ("drain", count))
                    series.add((transport.label, size), count / seconds)

    def rate(label: str, which: str | int) -> Figure:
        return series.figure((label, which), "M/s", 1e-6)

    def volume_rate(label: str) -> Figure:
        return series.figure((label, LARGE_BYTES), "GB/s", LARGE_BYTES * 1e-9)

    large = volume_rate(OURS.label)
    rows: list[tuple[Cell, ...]] = [
        (OURS.label, rate(OURS.label, "batched"), rate(OURS.label, 64), large, large.ratio_to(large)),
        (BUFFERED, rate(BUFFERED, "batched"), "", "", ""),
    ]
    for transport in bench.transports[1:]:
        theirs = volume_rate(transport.label)
        rows.append((transport.label, "has no batches", rate(transport.label, 64), theirs, large.ratio_to(theirs)))
    columns = ("transport", f"64 B, batches of {BATCH}", "64 B, one send each", "16 KiB", "16 KiB: ringcast against it")
    note = (
        "Until the reader has copied out every message, into bytes of its own or (second row) one after another into a "
        "buffer. The last column says how many times as fast ringcast is."
    )
    bench.report.tables.append(Table("Throughput one way", columns, tuple(rows), note))
    bench.report.targets += [
        Target("64 B in batches, M/s", rate(OURS.label, "batched"), 15, at_least=True),
        Target("64 B, one send each, M/s", rate(OURS.label, 64), 6, at_least=True),
        Target("16 KiB copied out, GB/s", large, 8, at_least=True),
    ]


def _whole_batches(count: float) -> int:
    return max(1, int(count) // BATCH) * BATCH
