"""The load client of `ringcast bench` and bench/serve.py, against our server over a fake engine. Nothing is timed."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from frontend_fakes import FakeEngine
from server_fixture import ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.cli.load import (
    Answer,
    LoadResult,
    LoadTask,
    ServerUnusable,
    make_prompts,
    only_model,
    percentile,
    run_load,
)
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.server.settings import ServerSettings
from ringcast.frontend.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
KEY = "secret"


@pytest.fixture(scope="module")
def server(smollm2: Tokenizer) -> Iterator[ServerThread]:
    llm = AsyncLLM.from_parts(EngineArgs(model="smollm2"), FakeEngine(max_model_len=512), smollm2)
    with ServerThread(llm, settings=ServerSettings(api_keys=(KEY,))) as server:
        yield server


def _task(server: ServerThread, **more: object) -> LoadTask:
    given = {"url": f"{server.url}/v1", "model": "smollm2", "prompts": make_prompts(6, 4, 1), "max_tokens": 9}
    return LoadTask(**{**given, "api_key": KEY, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [{"concurrency": 2}, {"rate": 200.0}, {}])
def test_every_answer_is_counted_and_timed(server: ServerThread, how: dict[str, float]) -> None:
    result = asyncio.run(run_load(_task(server), **how))  # type: ignore[arg-type]
    assert result.errors == []
    assert [answer.num_tokens for answer in result.good] == [9] * 6
    for answer in result.good:
        assert 1 <= len(answer.pieces_s) <= 9
        assert answer.began_s < answer.pieces_s[0]
        assert answer.pieces_s == sorted(answer.pieces_s)
    assert result.tokens_per_s == pytest.approx(54 / result.seconds)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"api_key": None}, "HTTP 401: .*needs an API key"),
        ({"model": "other"}, "HTTP 404: .*'other' is not served"),
        ({"max_tokens": 100_000}, "HTTP 400: .*max_tokens is 100000"),
        ({"url": "http://127.0.0.1:9/v1"}, "no connection"),
        ({"timeout_s": 0.0}, "no end within 0 s"),
    ],
)
def test_what_goes_wrong_is_said_and_counted(server: ServerThread, wrong: dict[str, object], said: str) -> None:
    result = asyncio.run(run_load(_task(server, **wrong), concurrency=3))
    assert result.good == []
    assert result.tokens_per_s == 0
    assert len(result.errors) == 6
    for error in result.errors:
        assert re.search(said, error)


def test_the_served_model_is_found_by_itself(server: ServerThread) -> None:
    assert asyncio.run(only_model(f"{server.url}/v1", KEY)) == "smollm2"
    with pytest.raises(ServerUnusable, match="needs an API key"):
        asyncio.run(only_model(f"{server.url}/v1"))
    for url in ("http://127.0.0.1:9/v1", "127.0.0.1:8000"):
        with pytest.raises(ServerUnusable):
            asyncio.run(only_model(url))


def test_figures_are_those_of_the_definitions() -> None:
    first = Answer(10.0, [10.5, 10.7, 11.1], 4)
    second = Answer(10.0, [11.0], 1)
    result = LoadResult([first, second, Answer(10.0, [], 0, "broke")], 2.0)
    assert result.first_token_s() == [0.5, 1.0]
    assert result.per_token_s() == pytest.approx([0.2])
    assert result.between_s() == pytest.approx([0.2, 0.4])
    assert (result.tokens_per_s, result.requests_per_s, result.errors) == (2.5, 1.0, ["broke"])
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile(list(range(101)), 99) == 99
    assert math.isnan(percentile([], 50))


def test_prompts_differ_from_the_start() -> None:
    prompts = make_prompts(50, 8, 3) + make_prompts(50, 8, 4)
    assert len({prompt.split()[0] for prompt in prompts}) == 100


def test_the_bench_compares_servers_in_one_report(server: ServerThread, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.serve", f"ours={server.url}/v1", f"again={server.url}/v1"]
    command += ["--concurrency", "2", "--rates", "100", "--requests", "4", "--max-tokens", "5", "--repetitions", "2"]
    command += ["--api-key", KEY, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "serve.json").read_text())
    assert [table["title"] for table in report["tables"]] == ["Concurrency 2", "100 requests a second"]
    for table in report["tables"]:
        assert [row["server"] for row in table["rows"]] == ["ours", "again"]
        for row in table["rows"]:
            assert row["failed"] == "0 of 8"
            assert len(row["TTFT p99"]["values"]) == 2
            assert row["tokens/s"]["median"] == pytest.approx(5 * row["requests/s"]["median"])
    assert (tmp_path / "serve.md").read_text() in done.stdout
