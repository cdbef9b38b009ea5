"""kill -9 of the real worker under load, again and again: ``python -m bench.recovery [--streams 32] [--kills 10]``.

Runs greedy and seeded streams undisturbed, then the same ones while their worker is killed at random moments. Reports
how long streams pause, where that time goes, and whether every output is the one of the undisturbed run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import ringcast.actors as rt
from ringcast.frontend.model_source import resolve_model
from ringcast.gpu.worker import Worker
from ringcast.gpu.worker_config import WorkerConfig
from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.engine_core import EngineCore
from ringcast.scheduler.messages import (
    AddRequest,
    EngineInfo,
    FrontendInterface,
    SamplingRule,
    SchedulerStatistics,
    StepOutputs,
    StopRule,
)

from .report import Cell, Figure, Report, Table, Target, add_out, describe_machine

METHOD: Final = (
    "The real worker and engine core in processes of their own; this process is the frontend and notes when each token "
    "arrives. Every second stream is greedy, the others are seeded; every prompt is of other random token ids.",
    "A kill comes at a random moment, but after every stream has gone on since the one before. The pause of a stream "
    "is the time from the kill to its first token from the worker's successor; streams that have ended do not count.",
    "The worker is started again after 50 ms each time; the delay does not grow. Unless the options say otherwise a "
    "spare takes over: a process that has imported torch already. After a death another one is made beside the load.",
)
FIRST_WITHIN_S: Final = 2.0
ALL_WITHIN_S: Final = 4.0
PROMPT_TOKENS: Final = 24
RESTART: Final = rt.Restart("permanent", max_restarts=1000, backoff_s=0.05, max_backoff_s=0.05)
WORKER: Final = "worker"
CORE: Final = "engine-core"


@dataclass(slots=True)
class Stream:
    """What one request was told, and when."""

    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    ended: str | None = None  # its finish reason, or the error

    def first_after(self, moment_s: float) -> float | None:
        """When its first token since then came."""
        return next((time_s for time_s in self.times_s if time_s >= moment_s), None)


@dataclass(slots=True)
class Streams:
    """All streams of a run by their names, and the news that one of them has changed."""

    by_name: dict[str, Stream] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_none(self, is_left: Callable[[Stream], bool]) -> None:
        """Return when it holds for no stream."""
        while any(map(is_left, self.by_name.values())):
            self.news.clear()
            await self.news.wait()


class Listener(FrontendInterface):
    """The frontend: keeps every stream's tokens and their times."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    @rt.call
    async def deliver(self, outputs: StepOutputs) -> None:
        now = time.monotonic()
        self._streams.news.set()
        for output in outputs.each():
            stream = self._streams.by_name[output.request_id]
            stream.token_ids += output.token_ids
            stream.times_s += [now] * len(output.token_ids)
            if output.finish_reason is not None:
                stream.ended = output.error or output.finish_reason


@dataclass(frozen=True, slots=True)
class Pause:
    """One kill; seconds since it."""

    noticed_s: float  # the supervisor's word that the worker is dead
    ready_s: float  # its successor has loaded the model
    first_s: float  # the first stream goes on
    all_s: float  # the last one does
    num_streams: int


@dataclass(slots=True)
class Engine:
    """A running engine, its streams, and what was measured of them."""

    system: rt.System
    worker: Worker
    core: EngineCore
    info: EngineInfo
    streams: Streams

    async def start_streams(self, count: int, tokens: int) -> None:
        """Add the same requests every time."""
        self.streams.by_name = {f"stream {number}": Stream() for number in range(count)}
        await self.core.add([self._request(number, tokens) for number in range(count)])

    async def all_after(self, moment_s: float) -> None:
        """Return when every stream has a token that came later, or has ended."""
        await self.streams.until_none(lambda s: s.ended is None and s.first_after(moment_s) is None)

    async def outputs(self) -> dict[str, list[int]]:
        """Wait for the ends of all streams."""
        await self.streams.until_none(lambda s: s.ended is None)
        for name, stream in self.streams.by_name.items():
            if stream.ended != "length":
                sys.exit(f"{name} ended early: {stream.ended}")
        return {name: stream.token_ids for name, stream in self.streams.by_name.items()}

    async def kill(self) -> Pause | None:
        """Kill the worker and wait until all streams have gone on; None when none was running any more."""
        running = [stream for stream in self.streams.by_name.values() if stream.ended is None]
        if not running:
            return None
        watch = self.system.watch(self.worker)
        await anext(watch)  # what it is now: ready
        killed = time.monotonic()
        os.kill(self.system.pids()[WORKER], signal.SIGKILL)
        noticed = ready = 0.0
        async for event in watch:
            if isinstance(event, rt.Died):
                noticed = time.monotonic()
            elif isinstance(event, rt.Ready):
                ready = time.monotonic()
                break
        # What the dead one had sent was there before its death was told.
        await self.all_after(noticed)
        resumed = [at for stream in running if (at := stream.first_after(noticed)) is not None]
        if not resumed:
            return None
        return Pause(noticed - killed, ready - killed, min(resumed) - killed, max(resumed) - killed, len(resumed))

    def rss_mib(self) -> dict[str, float]:
        """Resident memory of worker and core."""
        pids = self.system.pids()
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        pages = {name: int(Path(f"/proc/{pids[name]}/statm").read_text().split()[1]) for name in (WORKER, CORE)}
        return {name: count * page_bytes / (1 << 20) for name, count in pages.items()}

    def _request(self, number: int, tokens: int) -> AddRequest:
        draw = random.Random(number)
        prompt = [draw.randrange(self.info.vocab_size) for _ in range(PROMPT_TOKENS)]
        sampling = SamplingRule(temperature=number % 2 * 0.8, top_p=0.95, seed=number)
        return AddRequest(f"stream {number}", self.info.client, prompt, sampling, StopRule(tokens, [], []), [])


async def measure(options: argparse.Namespace, report: Report) -> None:
    """Both runs."""
    worker_config = WorkerConfig(str(resolve_model(options.model).path), dtype=options.dtype)
    config = SchedulerConfig(
        max_num_seqs=options.streams,
        max_num_batched_tokens=options.budget,
        max_model_len=1024,
        max_plans_in_flight=options.plans_in_flight,
    )
    where = rt.process(spare=not options.no_spare)
    streams = Streams()
    async with rt.System() as system:
        listener = await system.spawn(rt.spec(Listener, streams), name="frontend")
        worker = await system.spawn(rt.spec(Worker, worker_config), name=WORKER, where=where, restart=RESTART)
        core = await system.spawn(rt.spec(EngineCore, config, worker), name=CORE, where=rt.process())
        engine = Engine(system, worker, core, await core.attach(listener), streams)
        await engine.start_streams(options.streams, options.tokens)
        started = time.monotonic()
        undisturbed = await engine.outputs()
        report.machine["undisturbed_run_s"] = round(time.monotonic() - started, 2)
        rss_before = engine.rss_mib()
        pauses: list[Pause] = []
        num_equal = wave = 0
        while len(pauses) < options.kills:
            wave += 1
            await engine.start_streams(options.streams, options.tokens)
            await engine.all_after(0.0)
            while len(pauses) < options.kills:
                await asyncio.sleep(random.uniform(0.0, options.every_s))
                pause = await engine.kill()
                if pause is None:
                    break
                pauses.append(pause)
                print(f"kill {len(pauses)} of {options.kills}: {pause}", file=sys.stderr)
            outputs = await engine.outputs()
            num_equal += sum(outputs[name] == undisturbed[name] for name in undisturbed)
        await _fill_in(report, engine, pauses, (num_equal, wave * options.streams), rss_before)


async def _fill_in(
    report: Report, engine: Engine, pauses: list[Pause], equal: tuple[int, int], rss_before: dict[str, float]
) -> None:
    columns = ("kill", "streams", "noticed", "worker ready", "first stream", "all streams")
    rows: list[tuple[Cell, ...]] = [
        (str(number), str(p.num_streams), *(f"{s:.2f} s" for s in (p.noticed_s, p.ready_s, p.first_s, p.all_s)))
        for number, p in enumerate(pauses, 1)
    ]
    summary = [
        Figure(tuple(getattr(p, name) for p in pauses), "s") for name in ("noticed_s", "ready_s", "first_s", "all_s")
    ]
    rows.append(("median", "", *summary))
    report.tables.append(Table("From the kill to", columns, tuple(rows)))
    worst_first, worst_all = (Figure((max(values),), "s") for values in (summary[2].values, summary[3].values))
    report.targets.append(Target("first stream goes on, worst of all kills", worst_first, FIRST_WITHIN_S))
    report.targets.append(Target("all streams go on, worst of all kills", worst_all, ALL_WITHIN_S))
    report.targets.append(Target("outputs equal to the undisturbed run", _share(*equal), 1.0, at_least=True))
    now: SchedulerStatistics = await engine.core.statistics()
    rss = engine.rss_mib()
    report.tables.append(
        Table(
            "Afterwards",
            ("what", "value"),
            (
                ("outputs equal", f"{equal[0]} of {equal[1]}"),
                ("free blocks", f"{now.num_free_blocks} of {now.num_blocks}"),
                ("losses of the worker that the core counted", str(now.num_worker_losses)),
                ("requests that failed", str(now.num_failed)),
                *((f"resident memory of the {n}", f"{rss_before[n]:.0f} → {rss[n]:.0f} MiB") for n in rss),
            ),
        )
    )


def _share(part: int, whole: int) -> Figure:
    return Figure((part / whole,), "")


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report; exit status 1 if an output differs."""
    options = _parse(arguments)
    random.seed(options.seed)
    facts = {key: value for key, value in vars(options).items() if key != "out"}
    report = Report("recovery", METHOD, describe_machine(("ringcast", "torch"), facts))
    asyncio.run(measure(options, report))
    report.machine["load_average_at_end"] = os.getloadavg()[0]
    page, data = report.write(options.out)
    print(page.read_text())
    print(f"written: {page}, {data}", file=sys.stderr)
    if not report.targets[-1].reached:
        sys.exit("outputs differ from the undisturbed run")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="a built-in name, a path, or a hub id")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--every-s", type=float, default=2.0, help="longest wait until the next kill, in seconds")
    parser.add_argument("--budget", type=int, default=512, help="tokens of a step")
    parser.add_argument("--no-spare", action="store_true", help="without a process that waits to take over")
    parser.add_argument("--plans-in-flight", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1000), help="of the moments of the kills")
    add_out(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
