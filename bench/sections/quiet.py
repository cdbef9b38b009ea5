"""What the kernel sees: system calls while messages flow between awake ends, and wake-ups while nothing happens.

Switches and CPU time come from /proc (no tracing); system calls from strace, whose cost falls on system calls only.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ..counting import SystemCalls, thread_times
from ..report import Cell, Figure, Table, Target
from ..workers import Pair
from . import OURS, Bench

LOOP_RING: Final = "bench.transports.loops:LoopRing"
PEERS_SHARE: Final = 0.002  # of the messages: most peers make system calls in each, and strace slows those down
SETTLE_S: Final = 2.0  # at most: some readers spin for a second before they sleep


def measure(bench: Bench) -> None:
    """Two tables."""
    _measure_steady(bench)
    _measure_idle(bench)


def _measure_steady(bench: Bench) -> None:
    bench.say("system calls in steady state")
    tracer = shutil.which("strace")
    if tracer is None:
        bench.report.remarks.append("system calls were not counted: strace is not installed; switches were")
    rows: list[tuple[Cell, ...]] = []
    for transport in bench.transports:
        count = bench.plan.counted if transport is OURS else max(100, int(bench.plan.counted * PEERS_SHARE))
        for what, near, far in (
            ("ping-pong", ("bounce", 64, count), ("echo", 64, count)),
            ("stream", ("stream", 64, count, 1), ("drain", count)),
        ):
            with transport.pair(bench.cores) as pair:
                switches = pair.call_counted(near, far)
            calls = _traced(transport.python, transport.duplex, bench, tracer, near, far) if tracer else None
            rows.append(
                (
                    f"{transport.label}, {what} of {count:,}",
                    " + ".join(str(side["voluntary"]) for side in switches),
                    " + ".join(str(side) for side in calls) if calls else "not counted",
                )
            )
            if calls and transport is OURS:
                total = Figure((float(sum(side.total for side in calls)),), "")
                bench.report.targets.append(Target(f"system calls for {count:,} messages, {what}", total, 0))
    note = "Writer's side + reader's side. A ping-pong has a tenth more messages than it says."
    columns = ("transport", "voluntary switches (/proc)", "system calls (strace)")
    bench.report.tables.append(Table("Steady state", columns, tuple(rows), note))


def _traced(
    python: str, duplex: str, bench: Bench, tracer: str, near: tuple[object, ...], far: tuple[object, ...]
) -> list[SystemCalls]:
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / side for side in ("near", "far")]
        tracers = [[tracer, "-f", "-qq", "-o", str(log)] for log in logs]
        with Pair(duplex, bench.cores, python, tracers) as pair:
            for _ in range(5):  # warm: the allocator has what it needs, and both sides know who else is awake
                pair.call(near, far)
            pair.call_counted(near, far)
        return [SystemCalls.from_log(log) for log in logs]


def _measure_idle(bench: Bench) -> None:
    seconds = bench.plan.idle_s
    bench.say(f"idle for {seconds:.0f} s")
    modes = [("ringcast, thread", OURS.duplex, OURS.python), ("ringcast, uvloop", LOOP_RING, OURS.python)]
    modes += [(t.label, t.duplex, t.python) for t in bench.transports if t is not OURS]
    rows: list[tuple[Cell, ...]] = []
    with ExitStack() as stack:
        pairs = [(label, stack.enter_context(Pair(path, bench.cores, python))) for label, path, python in modes]
        for _, pair in pairs:
            # Both have talked, and now the far side waits for one more.
            pair.call(("ping_asleep", 64, 20), ("echo_asleep", 64, 20))
            pair.far.post("echo_asleep", 64, 1)
        time.sleep(min(SETTLE_S, seconds))
        before = [thread_times(pair.far.pid) for _, pair in pairs]
        time.sleep(seconds)
        after = [thread_times(pair.far.pid) for _, pair in pairs]
        for (label, pair), one, other in zip(pairs, before, after, strict=True):
            pair.near.post("ping_asleep", 64, 1)
            pair.near.answer()
            pair.far.answer()
            wakes, cpu_s = other.switches - one.switches, other.cpu_s - one.cpu_s
            share = Figure((100 * cpu_s / seconds,), "%")
            rows.append((label, str(wakes), Figure((cpu_s * 1e3,), "ms"), share))
            if label.startswith("ringcast"):
                bench.report.targets += [
                    Target(f"wake-ups while idle, {label}", Figure((float(wakes),), ""), 0),
                    Target(f"CPU while idle, {label}, %", share, 0.1),
                ]
    note = f"A reader that waits for {seconds:g} s, all its threads: times it was scheduled, and CPU. From /proc."
    bench.report.tables.append(Table("Idle", ("reader", "wake-ups", "CPU time", "CPU"), tuple(rows), note))
