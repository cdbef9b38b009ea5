"""``ringcast bench``: load on a running server, once. bench/serve.py repeats it, and sets servers side by side."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import typer

from .errors import FAILED
from .load import LoadResult, LoadTask, make_prompts, only_model, percentile, run_load
from .streams import tell


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What was given on the command line. With a ``rate`` (requests a second) ``concurrency`` does not count."""

    url: str
    model: str | None  # None: the only one that the server has
    concurrency: int
    rate: float | None
    requests: int
    prompt_words: int
    max_tokens: int
    seed: int
    api_key: str | None


def bench(options: BenchOptions, *, as_json: bool) -> None:
    """Print figures to stdout; exit code 1 if a request failed."""
    result = asyncio.run(_run(options))
    figures = _figures(result)
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:16} {value:12,.2f}")
    if result.errors:
        tell(f"{len(result.errors)} requests failed: {result.errors[0]}")
        raise typer.Exit(FAILED)


async def _run(options: BenchOptions) -> LoadResult:
    url = options.url.rstrip("/")
    url = url if url.endswith("/v1") else f"{url}/v1"
    model = options.model or await only_model(url, options.api_key)
    prompts = make_prompts(options.requests, options.prompt_words, options.seed)
    task = LoadTask(url=url, model=model, prompts=prompts, max_tokens=options.max_tokens, api_key=options.api_key)
    if options.rate is not None:
        return await run_load(task, rate=options.rate)
    return await run_load(task, concurrency=options.concurrency)


def _figures(result: LoadResult) -> dict[str, float]:
    figures = {
        "requests": float(len(result.answers)),
        "failed": float(len(result.errors)),
        "seconds": result.seconds,
        "tokens/s": result.tokens_per_s,
        "requests/s": result.requests_per_s,
    }
    if not result.good:
        return figures
    for name, times in (
        ("TTFT", result.first_token_s()),
        ("TPOT", result.per_token_s()),
        ("ITL", result.between_s()),
    ):
        for percent in (50, 99):
            if times:
                figures[f"{name} p{percent}, ms"] = percentile(times, percent) * 1e3
    return figures
