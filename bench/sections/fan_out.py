"""What a writer pays for several readers: awake ones, sleeping ones, and messages too large for the ring."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from ..report import Cell, Figure, Table, Target, size_text
from ..workers import Pair
from . import OURS, Bench, Series

READERS: Final = (1, 2, 4, 8)
PER_BATCH: Final = 32
LARGE_BYTES: Final = 24 << 20
LARGE_READERS: Final = 4
WAKES_OF: Final = 4  # messages sent to sleepers, whose first must be the only one that wakes
OVERFLOW: Final = "bench.transports.overflow:OverflowFanOut"


def measure(bench: Bench) -> None:
    """Three tables."""
    _measure_awake(bench)
    _measure_asleep(bench)
    _measure_large(bench)


def _measure_awake(bench: Bench) -> None:
    series, batches = Series(), bench.plan.fan_batches
    modes = [
        (OURS, "broadcast_each", "ringcast, a flush each"),
        (OURS, "broadcast", f"ringcast, a flush every {PER_BATCH}"),
    ]
    modes += [(t, "broadcast", t.label) for t in bench.transports if t is not OURS and t.fan_out is not None]
    with ExitStack() as stack:
        pairs = {t.label: stack.enter_context(Pair(t.fan_out, bench.cores, t.python)) for t, _, _ in modes if t.fan_out}
        for repetition in range(bench.plan.repetitions):
            bench.say(f"fan-out: repetition {repetition + 1} of {bench.plan.repetitions}")
            for readers in READERS:
                for transport, method, label in modes:
                    pair = pairs[transport.label]
                    pair.call(("open", readers, 64), ("open", readers, 64))
                    laps = pair.call((method, 64, batches, PER_BATCH), ("collect", batches, PER_BATCH))
                    series.add((label, readers), laps["p50"])

    def figure(label: str, readers: int) -> Figure:
        return series.figure((label, readers), "ns")

    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (label, *(figure(label, readers) for readers in READERS), figure(label, 8).ratio_to(figure(label, 1)))
        for _, _, label in modes
    )
    columns = ("transport", *(f"{n} reader{'s' * (n > 1)}" for n in READERS), "8 against 1")
    note = (
        f"The writer's time for a message of 64 B, in runs of {PER_BATCH}; the readers, polled in turn by one process, "
        "catch up in between."
    )
    bench.report.tables.append(Table("Fan-out to awake readers", columns, rows, note))
    for _, _, label in modes[:2]:
        bench.report.targets.append(
            Target(f"8 readers against 1, {label}", figure(label, 8).ratio_to(figure(label, 1)), 1.3)
        )


def _measure_asleep(bench: Bench) -> None:
    assert OURS.fan_out is not None
    with Pair(OURS.fan_out, bench.cores) as pair:
        pair.near.post("count_wakes", 8, WAKES_OF)
        writes = pair.near.answer()
    rows: list[tuple[Cell, ...]] = [(str(asleep), str(writes[asleep])) for asleep in (0, *READERS)]
    note = f"Eventfd writes, as the eventfds counted them, for {WAKES_OF} messages with a flush each to 8 readers."
    bench.report.tables.append(Table("Sleeping readers", ("asleep, of 8", "eventfd writes"), tuple(rows), note))
    per_reader = Figure(tuple(count / asleep for asleep, count in enumerate(writes) if asleep), "")
    bench.report.targets.append(Target("eventfd writes for each sleeping reader", per_reader, 1))


def _measure_large(bench: Bench) -> None:
    series, copies = Series(), bench.plan.copies
    modes = [("ringcast", OVERFLOW, OURS.python)]
    modes += [(t.label, t.fan_out, t.python) for t in bench.transports if t is not OURS and t.fan_out is not None]
    with ExitStack() as stack:
        pairs = [(label, stack.enter_context(Pair(path, bench.cores, python))) for label, path, python in modes]
        for _, pair in pairs:
            pair.call(("open", LARGE_READERS, LARGE_BYTES), ("open", LARGE_READERS, LARGE_BYTES))
        for repetition in range(bench.plan.repetitions):
            bench.say(f"large messages: repetition {repetition + 1} of {bench.plan.repetitions}")
            for label, pair in pairs:
                laps = pair.call(("broadcast", LARGE_BYTES, copies, 1), ("collect", copies, 1))
                series.add(label, laps["p50"])
                if label == "ringcast":
                    pair.near.post("copy_fresh", LARGE_BYTES, copies)
                    series.add("memcpy", pair.near.answer()["p50"])

    floor = series.figure("memcpy", "ms", 1e-6)
    rows = [
        (label, series.figure(label, "ms", 1e-6), series.figure(label, "ms", 1e-6).ratio_to(floor))
        for label, _, _ in modes
    ]
    rows.append(("memcpy into fresh 4 KiB pages", floor, floor.ratio_to(floor)))
    note = "The writer's time until its call returns. pyzmq's returns before its I/O thread has moved the bytes."
    title = f"{size_text(LARGE_BYTES)} to {LARGE_READERS} readers"
    bench.report.tables.append(Table(title, ("transport", "writer's time", "against memcpy"), tuple(rows), note))
    ours = series.figure("ringcast", "ms", 1e-6).ratio_to(floor)
    bench.report.targets.append(Target(f"{title}, against memcpy", ours, 1.0))
