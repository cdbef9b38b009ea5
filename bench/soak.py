"""Many tiny requests, then nothing to do: ``python -m bench.soak [--requests 20000] [--idle-s 60]``.

Reports how resident memory of each process of the engine moves with the number of requests, and what the engine takes
of the processors when it is idle. Exit status 1 if one of them misses its target.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from ringcast import LLM, SamplingParams

from .report import Cell, Figure, Report, Table, Target, add_out, describe_machine

METHOD: Final = (
    "The public `LLM` with its worker, the worker's spare and the engine core in processes of their own. Waves of 500 "
    "requests: prompts of 1 to 20 random tokens, 1 to 4 new tokens, every second one seeded, none asked for again. "
    "512 KV blocks, which the first waves fill: memory for blocks is taken when they are first written.",
    "Resident memory is read between waves; its slope is the least-squares line through the second half of the waves: "
    "what comes in the first half (pools, rings and buffers for ever larger steps fill up) is given apart.",
    "Idle: nothing is asked for; processor time of all processes of the engine together, this one included, in slices "
    "of a tenth of the time.",
)
WAVE: Final = 500
VOCABULARY: Final = 4096  # of the prompts: every model has as many tokens
SLOPE_LIMIT_KIB: Final = 64.0  # for each 1,000 requests, i.e. 64 bytes a request
IDLE_LIMIT_PERCENT: Final = 0.5
MIB: Final = 1 << 20


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = _parse(arguments)
    facts = {key: value for key, value in vars(options).items() if key != "out"}
    report = Report("soak", METHOD, describe_machine(("ringcast", "torch"), facts))
    with LLM(options.model, max_model_len=1024, num_kv_blocks=512) as llm:
        start = time.monotonic()
        memory = [_memory()]
        for wave in range(-(-options.requests // WAVE)):
            llm.generate(*_wave(wave), use_tqdm=False)
            memory.append(_memory())
            print(f"{(wave + 1) * WAVE} requests: {_words(memory[-1])}", file=sys.stderr)
        seconds = time.monotonic() - start
        statistics = llm.statistics()
        idle = _idle_percent(options.idle_s)
    _fill(report, memory, idle)
    report.tables.append(
        Table(
            "Accounts",
            ("what", "value"),
            (
                ("requests that ended, failed", f"{statistics.num_finished}, {statistics.num_failed}"),
                ("requests per second", f"{statistics.num_finished / seconds:.0f}"),
                ("free blocks", f"{statistics.num_free_blocks} of {statistics.num_blocks}"),
            ),
        )
    )
    report.machine["load_average_at_end"] = os.getloadavg()[0]
    page, data = report.write(options.out)
    print(page.read_text())
    print(f"written: {page}, {data}", file=sys.stderr)
    if statistics.num_failed or statistics.num_free_blocks != statistics.num_blocks:
        sys.exit("requests failed, or blocks were lost")
    if not all(target.reached for target in report.targets):
        sys.exit("a target was missed")


def _wave(number: int) -> tuple[list[list[int]], list[SamplingParams]]:
    prompts, params = [], []
    for index in range(number * WAVE, (number + 1) * WAVE):
        prompts.append([(index * 7919 + 31 * i * i) % VOCABULARY for i in range(1 + index % 20)])
        temperature = 0.8 * (index % 2)
        params.append(SamplingParams(temperature=temperature, seed=index, max_tokens=1 + index % 4, ignore_eos=True))
    return prompts, params


def _fill(report: Report, memory: list[dict[str, int]], idle: Figure) -> None:
    rows: list[tuple[Cell, ...]] = []
    first = len(memory) // 2
    for name in memory[-1]:
        sizes = [at[name] for at in memory if name in at]
        late = sizes[-(len(memory) - first) :]
        slope_kib = _slope(late) * 1000 / WAVE / 1024
        columns = (sizes[0], late[0], sizes[-1])
        rows.append((name, *(f"{size / MIB:.1f} MiB" for size in columns), f"{slope_kib:+.1f} KiB"))
        if "spare" not in name:
            slope = Figure((slope_kib,), "KiB")
            report.targets.append(Target(f"{name}: more memory after 1,000 requests", slope, SLOPE_LIMIT_KIB))
    columns = ("process", "at the start", "after a half", "at the end", "slope for 1,000 requests")
    report.tables.append(Table("Resident memory", columns, tuple(rows)))
    report.tables.append(Table("Idle", ("what", "value"), (("processor time of all processes", idle),)))
    report.targets.append(Target("idle: processor time of the whole engine", idle, IDLE_LIMIT_PERCENT))


def _processes() -> dict[str, psutil.Process]:
    """Everybody in the engine, by the title that process tables show; this process is the app."""
    found = {"app": psutil.Process()}
    for child in psutil.Process().children():
        found[" ".join(child.cmdline()).strip()] = child
    return found


def _memory() -> dict[str, int]:
    return {name: process.memory_info().rss for name, process in _processes().items()}


def _words(memory: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in memory.items())


def _slope(values: list[int]) -> float:
    """Of the least-squares line through values at equal distances, a step."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    spread = sum((i - middle) ** 2 for i in range(len(values)))
    return sum((i - middle) * (value - mean) for i, value in enumerate(values)) / spread if spread else 0.0


def _idle_percent(seconds: float) -> Figure:
    """Percent of one processor that all processes take together, slice by slice."""
    time.sleep(2.0)  # what the last wave left to do is done
    processes = _processes().values()
    shares = []
    for _ in range(10):
        before, start = sum(_cpu_s(p) for p in processes), time.monotonic()
        time.sleep(seconds / 10)
        shares.append(100 * (sum(_cpu_s(p) for p in processes) - before) / (time.monotonic() - start))
    return Figure(tuple(shares), "%")


def _cpu_s(process: psutil.Process) -> float:
    """Processor time so far, from the kernel's scheduler, to the nanosecond; psutil counts in steps of 10 ms."""
    total = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="a built-in name, a path, or a hub id")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds of idleness that are measured")
    add_out(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
