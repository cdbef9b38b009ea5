"""What the front end costs: tokens a second that one API process forwards over HTTP, from an engine that computes
nothing: ``python -m bench.frontend_cost [--quick]``.

The server is the real one, in a process of its own; the client counts in another.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.cli.load import LoadResult, LoadTask, make_prompts, run_load
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.model_source import resolve_model
from ringcast.frontend.server.app import create_app
from ringcast.frontend.server.run import address_of, listen, run_server
from ringcast.frontend.server.settings import ServerSettings
from ringcast.frontend.tokenizer import load_tokenizer

from .report import ROOT, Figure, Report, Table, Target, add_out, describe_machine
from .stub_engine import StubEngine

METHOD: Final = (
    "The server of `ringcast serve` over a stub that hands one token of each stream a step to the front end, in its "
    "process: detokenising, JSON, HTTP and the socket are all in the figure, scheduler, rings and model are not.",
    "The client is one process, with as many connections as streams; it times every chunk and parses its JSON.",
    "Processor time: of the server's process for a token, which a busy machine disturbs less than rates.",
    "Offered: tokens a second that the stub makes, if it gets the time. Pieces: chunks a token; below 1 where a client "
    "got several tokens in one, which happens when it is late.",
)
STREAMS: Final = 64
TARGET: Final = 40_000.0  # issue E
TEXT: Final = "The quick brown fox jumps over the lazy dog, and then the dog sleeps again in the warm afternoon sun."


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = _parse(arguments)
    if options.serve_at:
        _serve(options.serve_at)
        return
    machine = describe_machine(("ringcast", "uvicorn", "httptools", "uvloop"), {"streams": options.streams})
    report = Report("frontend_cost", METHOD, machine)
    spent: dict[float, Figure] = {}
    found: dict[float, list[LoadResult]] = {}
    for rate in options.offered:
        found[rate], spent[rate] = _measure(rate, options)
    machine["load_average_at_end"] = os.getloadavg()[0]
    rates = {rate: Figure(tuple(r.tokens_per_s for r in results), "") for rate, results in found.items()}
    rows = tuple((f"{rate:,.0f}", rates[rate], spent[rate], _pieces(results)) for rate, results in found.items())
    report.tables.append(Table(f"{options.streams} streams", ("offered", "tokens/s", "processor time", "pieces"), rows))
    best = max(rates.values(), key=lambda figure: figure.median)
    report.targets.append(Target("tokens/s forwarded by one API process", best, TARGET, at_least=True))
    page, data = report.write(options.out)
    print(page.read_text())
    print(f"written: {page}, {data}", file=sys.stderr)


def _pieces(results: list[LoadResult]) -> Figure:
    return Figure(tuple(sum(len(a.pieces_s) for a in r.good) / sum(a.num_tokens for a in r.good) for r in results), "")


def _measure(rate: float, options: argparse.Namespace) -> tuple[list[LoadResult], Figure]:
    """Results, and the processor time of the server's process for a token."""
    command = [sys.executable, "-m", "bench.frontend_cost", "--serve-at", str(rate)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the server did not start: exit code {server.wait(10)}")
        tokens = max(2, int(rate * options.seconds / options.streams))
        results, spent = [], []
        for repetition in range(options.repetitions + 1):
            prompts = make_prompts(options.streams, 8, repetition)
            task = LoadTask(url=f"{url}/v1", model="stub", prompts=prompts, max_tokens=tokens)
            before_s = _processor_s(server.pid)
            result = asyncio.run(run_load(task))
            spent.append((_processor_s(server.pid) - before_s) / (tokens * options.streams) * 1e6)
            if result.errors:
                raise RuntimeError(f"{len(result.errors)} streams failed: {result.errors[0]}")
            results.append(result)
        return results[1:], Figure(tuple(spent[1:]), "µs")
    finally:
        server.terminate()
        server.wait(10)


def _processor_s(pid: int) -> float:
    """User and system time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(rate: float) -> None:
    """The server's process: prints its address and serves until it is ended."""
    tokenizer = load_tokenizer(resolve_model("smollm2"))
    engine = StubEngine(rate, tokenizer.encode(TEXT))
    llm = AsyncLLM.from_parts(EngineArgs(model="smollm2"), engine, tokenizer)
    listener = listen("127.0.0.1", 0)
    failure = run_server(
        listener,
        lambda failed: create_app(
            llm, model="stub", on_started=lambda: print(address_of(listener), flush=True), on_failed=failed
        ),
        drain_timeout_s=1.0,
        on_stopper=lambda stop: None,
        settings=ServerSettings(),
    )
    if failure is not None:
        raise failure


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.frontend_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two repetitions instead of five")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--offered", type=float, nargs="+", default=[20_000.0, 40_000.0, 60_000.0, 120_000.0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of a repetition, at the offered rate")
    parser.add_argument("--serve-at", type=float, help=argparse.SUPPRESS)
    add_out(parser)
    options = parser.parse_args(arguments)
    options.repetitions = options.repetitions or (2 if options.quick else 5)
    return options


if __name__ == "__main__":
    main()
