"""What the scheduler costs a step, with a worker that answers at once: ``python -m bench.scheduler [--quick]``.

Measures planning and taking results (no actors, no model), with 1 to 256 requests running, and what the messages of
such a step cost to encode. Writes a Markdown page and JSON.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringcast.channels.codec import Codec
from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.messages import (
    AddRequest,
    KVCacheConfig,
    SamplingRule,
    StepOutputs,
    StepPlan,
    StepResult,
    StopRule,
)
from ringcast.scheduler.scheduler import Scheduler

from .report import Cell, Figure, Report, Table, Target, add_out, describe_machine

METHOD: Final = (
    "One process, CPU time of its thread, so that neighbours on the machine count little. Every request decodes one "
    "token a step; prompts of 12 to 27 tokens, so that requests fill their KV blocks at different steps.",
    "A step is schedule() and update(); the stub worker's answer is made outside the clock. A repetition's figures are "
    "means over its steps (blocks, hashes and the garbage collector included) and, beside it, the median step.",
    "Cells are medians over the repetitions, in brackets their quartiles.",
)
RUNNING: Final = (1, 64, 256)
FIXED_US, EACH_US = 60.0, 1.2  # the target: so much a step, and so much more for each running request
VOCAB_SIZE: Final = 49152


@dataclass(frozen=True, slots=True)
class Case:
    """A state of the scheduler to measure."""

    label: str
    running: int
    waiting: int = 0
    plans: int = 1
    caching: bool = True


@dataclass(frozen=True, slots=True)
class Laps:
    """Microseconds a step."""

    schedule_mean: float
    update_mean: float
    median: float


def measure(case: Case, steps: int) -> Laps:
    """Run one fresh scheduler for so many steps."""
    scheduler = _scheduler(case)
    in_flight: list[StepPlan] = []
    schedules, updates = [], []
    clock = time.thread_time_ns
    for step in range(steps + 20):
        start = clock()
        while len(in_flight) < case.plans:
            plan = scheduler.schedule()
            assert plan is not None
            in_flight.append(plan)
        planned = clock()
        result = _answer(in_flight.pop(0))
        answered = clock()
        scheduler.update(result)
        if step >= 20:  # the first ones let requests enter
            schedules.append((planned - start) / 1000)
            updates.append((clock() - answered) / 1000)
    both = [a + b for a, b in zip(schedules, updates, strict=True)]
    return Laps(statistics.fmean(schedules), statistics.fmean(updates), statistics.median(both))


def messages_us(running: int) -> tuple[float, float, float]:
    """What it costs to encode a plan, to decode its result, and to encode the outputs for one frontend."""
    scheduler = _scheduler(Case("", running))
    codec = Codec()
    for _ in range(20):
        plan = scheduler.schedule()
        assert plan is not None
        result = _answer(plan)
        outputs: dict[int, StepOutputs] = scheduler.update(result)
    encoded = codec.encode(result)
    return (
        _per_call_us(lambda: codec.encode(plan)),
        _per_call_us(lambda: codec.decode(encoded)),
        _per_call_us(lambda: codec.encode(outputs[1])),
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = _parse(arguments)
    repetitions, steps = (3, 200) if options.quick else (9, 1000)
    machine = describe_machine(("ringcast", "msgpack"), {"repetitions": repetitions, "steps": steps})
    report = Report("scheduler", METHOD, machine)
    cases = [
        *(Case(f"{n} running", n) for n in RUNNING),
        *(Case(f"{n} running, without prefix cache", n, caching=False) for n in RUNNING[-1:]),
        *(Case(f"{n} running, two plans in flight", n, plans=2) for n in RUNNING[-1:]),
        *(Case(f"{n} running, 20,000 waiting", n, waiting=20_000) for n in RUNNING[-1:]),
    ]
    laps: dict[Case, list[Laps]] = {case: [] for case in cases}
    for number in range(repetitions):
        for case in cases:
            gc.collect()
            laps[case].append(measure(case, steps))
        print(f"repetition {number + 1} of {repetitions}", file=sys.stderr)
    rows: list[tuple[Cell, ...]] = []
    for case in cases:
        schedule = _figure([lap.schedule_mean for lap in laps[case]])
        update = _figure([lap.update_mean for lap in laps[case]])
        step = _figure([lap.schedule_mean + lap.update_mean for lap in laps[case]])
        median = _figure([lap.median for lap in laps[case]])
        rows.append((case.label, schedule, update, step, median, step.scaled(1 / case.running, "µs")))
        limit = FIXED_US + EACH_US * case.running
        report.targets.append(Target(f"a step with {case.label}", step, limit))
    columns = ("state", "schedule", "update", "step", "median step", "step per running request")
    report.tables.append(Table("Cost of a step", columns, tuple(rows)))
    report.tables.append(_messages_table(repetitions))
    machine["load_average_at_end"] = os.getloadavg()[0]
    page, data = report.write(options.out)
    print(page.read_text())
    print(f"written: {page}, {data}", file=sys.stderr)


def _messages_table(repetitions: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for running in RUNNING:
        columns = zip(*(messages_us(running) for _ in range(repetitions)), strict=True)
        rows.append((f"{running} running", *(_figure(list(column)) for column in columns)))
    return Table("Messages of a step", ("state", "encode plan", "decode result", "encode outputs"), tuple(rows))


def _scheduler(case: Case) -> Scheduler:
    limits = KVCacheConfig(40_000, 16, RUNNING[-1], 16_384, 2048)
    config = SchedulerConfig(enable_prefix_caching=case.caching, max_plans_in_flight=case.plans)
    scheduler = Scheduler(limits, VOCAB_SIZE, config)
    stop = StopRule(1500, [2], [])
    for number in range(case.running):
        prompt = [(number * 7 + i) % 5000 + 3 for i in range(12 + number % 16)]
        scheduler.add(AddRequest(f"cmpl-{number:032d}-0", 1, prompt, SamplingRule(), stop, []))
    if case.waiting:
        scheduler.schedule()  # the running ones have entered: the others find no room
        scheduler.worker_lost("")
        scheduler.worker_ready(limits.num_blocks)
    for number in range(case.waiting):
        scheduler.add(AddRequest(f"wait-{number:032d}-0", 1, [5] * 12, SamplingRule(), stop, []))
    return scheduler


def _answer(plan: StepPlan) -> StepResult:
    rows = [row for row, draws in zip(plan.rows, plan.sample, strict=True) if draws]
    return StepResult(plan.step_id, rows, [(row * 31 + plan.step_id) % 40_000 + 5 for row in rows])


def _figure(values: list[float]) -> Figure:
    return Figure(tuple(values), "µs")


def _per_call_us(call: Callable[[], object], calls: int = 300) -> float:
    start = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - start) / 1000 / calls


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduler", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of a minute")
    add_out(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
