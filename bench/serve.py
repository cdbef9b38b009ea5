"""Load on OpenAI-compatible servers, side by side: ``python -m bench.serve ringcast=http://127.0.0.1:8000/v1 ...``.

Throughput, TTFT, TPOT and ITL at several concurrencies and rates. Ours, vLLM's, llama.cpp's: any server that streams
/v1/completions. Servers are started by you; within a repetition all of them get every load, one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Any, Final

from ringcast.frontend.cli.load import LoadResult, LoadTask, make_prompts, only_model, percentile, run_load

from .report import Figure, Report, Table, add_out, describe_machine

METHOD: Final = (
    "Clients: one process, a connection a request, streams of /v1/completions, temperature 0. Concurrency: so many "
    "requests are answered at any time. Rate: requests arrive at random (Poisson), answered or not.",
    "TTFT: from the request to the first text. TPOT: an answer's mean time per token after its first. ITL: between two "
    "pieces of text. Each cell: the median over the repetitions, in brackets their quartiles.",
    "Tokens are those that the server's usage counts; prompts differ from their first words on and are never repeated.",
)
Load = tuple[str, float]  # ("concurrency" or "rate", how much)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report."""
    options = _parse(arguments)
    machine = describe_machine(("ringcast",), {"max_tokens": options.max_tokens, "prompt_words": options.prompt_words})
    report = Report("serve", METHOD, machine)
    loads: list[Load] = [*(("concurrency", c) for c in options.concurrency), *(("rate", r) for r in options.rates)]
    found = asyncio.run(_measure(options, loads))
    machine["load_average_at_end"] = os.getloadavg()[0]
    for load in loads:
        report.tables.append(_table(load, {label: found[label, load] for label in options.servers}))
    for (label, load), results in found.items():
        errors = [error for result in results for error in result.errors]
        if errors:
            report.remarks.append(f"{label}, {_text(load)}: {len(errors)} requests failed, e.g. {errors[0]}")
    page, data = report.write(options.out)
    print(page.read_text())
    _say(f"written: {page}, {data}")
    if any(not result.good for results in found.values() for result in results):
        sys.exit("a server answered nothing: see the remarks")


async def _measure(options: argparse.Namespace, loads: list[Load]) -> dict[tuple[str, Load], list[LoadResult]]:
    """Results by server and load; a first repetition warms up and is not counted."""
    models = {label: options.model or await only_model(url, options.api_key) for label, url in options.servers.items()}
    found: dict[tuple[str, Load], list[LoadResult]] = {}
    seed = options.seed
    for repetition in range(options.repetitions + 1):
        _say(f"repetition {repetition} of {options.repetitions}")
        for load in loads:
            for label, url in options.servers.items():
                seed += 1
                task = LoadTask(
                    url=url,
                    model=models[label],
                    prompts=make_prompts(options.requests, options.prompt_words, seed),
                    max_tokens=options.max_tokens,
                    ignores_eos=not options.with_eos,
                    api_key=options.api_key,
                )
                kind, value = load
                if kind == "concurrency":
                    result = await run_load(task, concurrency=int(value))
                else:
                    result = await run_load(task, rate=value)
                if repetition:
                    found.setdefault((label, load), []).append(result)
    return found


def _table(load: Load, results: dict[str, list[LoadResult]]) -> Table:
    columns = ["server", "tokens/s", "requests/s"]
    columns += [f"{name} p{percent}" for name in ("TTFT", "TPOT", "ITL") for percent in (50, 99)]
    rows = tuple((label, *_cells(of_server), _failures(of_server)) for label, of_server in results.items())
    return Table(_text(load).capitalize(), (*columns, "failed"), rows)


def _cells(results: list[LoadResult]) -> list[Figure]:
    figures = [
        Figure(tuple(r.tokens_per_s for r in results), ""),
        Figure(tuple(r.requests_per_s for r in results), ""),
    ]
    for times in (LoadResult.first_token_s, LoadResult.per_token_s, LoadResult.between_s):
        for percent in (50, 99):
            figures.append(Figure(tuple(percentile(times(r), percent) * 1e3 for r in results), "ms"))
    return figures


def _failures(results: list[LoadResult]) -> str:
    return f"{sum(len(r.errors) for r in results)} of {sum(len(r.answers) for r in results)}"


def _text(load: Load) -> str:
    kind, value = load
    return f"concurrency {value:g}" if kind == "concurrency" else f"{value:g} requests a second"


def _server(text: str) -> tuple[str, str]:
    label, equals, url = text.partition("=")
    if not equals or not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r}: give LABEL=URL, the URL with /v1")
    return label, url.rstrip("/")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__)
    parser.add_argument("servers", type=_server, nargs="+", metavar="LABEL=URL", help="servers, their URLs with /v1")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 8, 32], help="requests at the same time")
    parser.add_argument("--rates", type=float, nargs="*", default=[], help="requests a second, at random moments")
    parser.add_argument("--requests", type=int, default=64, help="of a load in a repetition")
    parser.add_argument("--prompt-words", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--with-eos", action="store_true", help="answers may end earlier; without ignore_eos")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--model", help="its served name (default: the first that each server lists)")
    parser.add_argument("--api-key", default=os.environ.get("RINGCAST_API_KEY"))
    parser.add_argument("--seed", type=int, default=0, help="of the prompts: another meets no cache of earlier runs")
    add_out(parser)
    options = parser.parse_args(arguments)
    options.servers = dict(options.servers)
    loads: Any = [*options.concurrency, *options.rates]
    if not loads or min(loads) <= 0:
        parser.error("give --concurrency or --rates, all above 0")
    return options


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
