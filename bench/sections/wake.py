"""Waking somebody who sleeps: a thread, and a uvloop, each beside a bare eventfd in the same run."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from ..report import Figure, Table, Target
from ..workers import Pair
from . import Bench, Series

THREAD: Final = "ringcast, thread"
THREAD_FLOOR: Final = "bare eventfd, thread in read"
LOOP: Final = "ringcast, uvloop"
LOOP_FLOOR: Final = "bare eventfd, uvloop add_reader"
ROWS: Final = (
    (THREAD, "bench.transports.ring:RingEndpoint", THREAD_FLOOR),
    (THREAD_FLOOR, "bench.transports.eventfd:EventfdEndpoint", THREAD_FLOOR),
    ("bare eventfd, thread in poll", "bench.transports.eventfd:PolledEventfdEndpoint", THREAD_FLOOR),
    (LOOP, "bench.transports.loops:LoopRing", LOOP_FLOOR),
    (LOOP_FLOOR, "bench.transports.loops:LoopEventfd", LOOP_FLOOR),
)
ROUNDS: Final = 4  # a repetition of each is short, so that all see the same machine
# Runs of the same pair before each that counts, and every other round goes backwards. The idle loop
# of the kernel polls before it halts, for as long as has paid lately: who is measured behind a pair whose sleeps are of
# another length, or a peer whose threads spin, would pay half as much again for each wake-up until it has settled.
SETTLING: Final = 3


def measure(bench: Bench) -> None:
    """Round trips between two sleepers, halved."""
    series = Series()
    peers = [(t.label, t.duplex, THREAD_FLOOR, t.python) for t in bench.transports if t.sleeps]
    if any(t.package == "iceoryx2" for t in bench.transports):
        peers.append(
            ("iceoryx2 events", "bench.transports.iceoryx:IceoryxEvents", THREAD_FLOOR, bench.transports[0].python)
        )
    rows = [*((*row, bench.transports[0].python) for row in ROWS), *peers]
    rounds = bench.plan.repetitions * (ROUNDS if bench.plan.repetitions > 1 else 1)
    count = max(20, bench.plan.slept_count // ROUNDS)
    with ExitStack() as stack:
        pairs = [(label, stack.enter_context(Pair(path, bench.cores, python))) for label, path, _, python in rows]
        for turn in range(rounds):
            bench.say(f"wake-up: round {turn + 1} of {rounds}")
            for label, pair in pairs if turn % 2 == 0 else reversed(pairs):
                for _ in range(SETTLING):
                    pair.call(("ping_asleep", 64, count), ("echo_asleep", 64, count))
                series.add_laps(label, pair.call(("ping_asleep", 64, count), ("echo_asleep", 64, count)))

    def figure(label: str, which: str = "p50") -> Figure:
        return series.figure((label, which), "µs", 1e-3)

    table = tuple(
        (label, figure(label), figure(label, "p99"), figure(label).ratio_to(figure(floor)))
        for label, _, floor, _ in rows
    )
    note = (
        "Half a round trip of 64 B (bare eventfds and events carry none), both sides asleep at each message. The last "
        "column is against a bare eventfd of the same kind of sleeper."
    )
    bench.report.tables.append(
        Table("Waking a sleeper", ("transport", "p50", "p99", "against bare eventfd"), table, note)
    )
    bench.report.targets += [
        Target("waking a thread, against a bare eventfd", figure(THREAD).ratio_to(figure(THREAD_FLOOR)), 1.15),
        Target("waking a uvloop, against add_reader", figure(LOOP).ratio_to(figure(LOOP_FLOOR)), 1.15),
    ]
