"""What hostile requests cost others: a server, one hostile request after the other, and a probe beside each.

    python tests/frontend/hostile_load.py [--model FOLDER] [--seconds 3]

For each it prints what the client got, how long that took, the probe's slowest answers of /health and of a short
completion, how much slower the latter was than alone, and what the server's memory grew by. The load average is
printed, too: on a busy machine the figures are the machine's. The short version with generous bounds is in the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Hostile:
    """A request, sent ``times`` at the same time."""

    name: str
    body: Callable[[], bytes]
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


def _body(**fields: object) -> Callable[[], bytes]:
    return lambda: json.dumps({"prompt": "x", "max_tokens": 1, **fields}).encode()


_WORDS = [f"word {number}" for number in range(128)]
HOSTILE = [
    Hostile("C4: 200,000 prompts in 1 MB", _body(prompt=["x"] * 200_000)),
    Hostile("C4: 1,024 prompts, the most", _body(prompt=["hello world"] * 1024)),
    Hostile("C4: 300,000 token ids", _body(prompt=[5] * 300_000)),
    Hostile("C9: 128 bad words of 30 KB", _body(bad_words=[f"{n} " + "x y" * 10_000 for n in range(128)])),
    Hostile("C9: 128 bad words of 200 KB", _body(bad_words=[f"{n} " + "x y" * 66_000 for n in range(128)])),
    Hostile("C9: 1,000 prompts, 128 bad words", _body(prompt=["hello world"] * 1000, bad_words=_WORDS)),
    Hostile("C9: a 15 MB prompt, deadline 0.5 s", _body(prompt="word " * 3_000_000), 1, {"X-Request-Timeout": "0.5"}),
    Hostile("C9: prompts of 250,000 characters", _body(prompt="word " * 50_000), 4),
    Hostile("C9: 262,000 wrong items", _body(prompt=["x"] * 200_000 + [None] * 60_000)),
    Hostile("C9: 5,000,000 empty lists", lambda: b'{"prompt":[' + b"[]," * 5_000_000 + b"[]]}"),
    Hostile("B14: nine bodies of 33 MB, no JSON", lambda: b'{"prompt": "' + b"x" * 33_000_000, 9),
    Hostile("B14: nine bodies of 33 MB, refused", _body(prompt="x" * 33_000_000), 9),
]


@dataclass
class Found:
    """What one hostile request did."""

    name: str
    status: list[int]
    took_s: float
    health_s: float  # the slowest answer
    completion_s: float
    added_s: float  # to the completion, beside its slowest alone
    grown_mb: float


class Probe:
    """Asks for /health and for a completion of one token, over and over, on connections of their own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.health_s: list[float] = []
        self.completion_s: list[float] = []
        self._threads = [threading.Thread(target=self._ask, args=(kind,)) for kind in ("health", "completion")]

    def __enter__(self) -> Probe:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, kind: str) -> None:
        spent = self.health_s if kind == "health" else self.completion_s
        with httpx.Client(base_url=self._url, timeout=120) as client:
            while not self._stop.is_set():
                began = time.perf_counter()
                if kind == "health":
                    client.get("/health")
                else:
                    client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 1})
                spent.append(time.perf_counter() - began)
                time.sleep(0.005)


def measured(url: str, pid: int, hostile: Hostile, alone_s: float) -> Found:
    """Send it beside a probe."""
    server = psutil.Process(pid)
    before = server.memory_info().rss
    with tempfile.NamedTemporaryFile() as file:
        file.write(hostile.body())
        file.flush()
        clients = [_client(url, file.name, hostile.headers) for _ in range(hostile.times)]
        for client in clients:  # their start is none of the server's business
            assert client.stdout is not None
            assert client.stdout.readline() == "prepared\n"
    with Probe(url) as probe:
        time.sleep(0.3)
        del probe.health_s[:], probe.completion_s[:]
        began = time.perf_counter()
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        status = [int(client.communicate()[0]) for client in clients]
        took_s = time.perf_counter() - began
        time.sleep(0.3)
    grown = server.memory_info().rss - before
    slowest = max(probe.completion_s)
    return Found(hostile.name, status, took_s, max(probe.health_s), slowest, max(0.0, slowest - alone_s), grown / 1e6)


def _client(url: str, body_path: str, headers: dict[str, str]) -> subprocess.Popen[str]:
    """In a process of its own, which sends when it is told to: its work must not hold up the probe."""
    script = (
        "import sys, http.client, json\n"
        "host, path, headers = sys.argv[1:]\n"
        "c = http.client.HTTPConnection(host, timeout=120)\n"
        "body = open(path, 'rb').read()\n"
        "print('prepared', flush=True); sys.stdin.readline()\n"
        "c.request('POST', '/v1/completions', body, json.loads(headers))\n"
        "r = c.getresponse(); r.read(); print(r.status)\n"
    )
    host = url.removeprefix("http://")
    command = [sys.executable, "-c", script, host, body_path, json.dumps({**JSON, **headers})]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def campaign(url: str, pid: int, hostile: list[Hostile], seconds: float) -> Iterator[Found]:
    """The probe alone for some seconds, then beside each."""
    with Probe(url) as alone:
        time.sleep(seconds)
    alone_s = max(alone.completion_s)
    median_s = statistics.median(alone.completion_s)
    yield Found("nothing", [], seconds, max(alone.health_s), alone_s, alone_s - median_s, 0.0)
    for item in hostile:
        yield measured(url, pid, item, alone_s)


def main() -> None:
    """Run all and print a table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--seconds", type=float, default=3.0, help="of the probe alone")
    given = options.parse_args()
    command = [sys.executable, "-m", "ringcast", "serve", "--port", "0", "-m", given.model]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = server.stderr.readline().split("; ")[1].split("/health")[0]
        server.stderr.readline()  # ready
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {Path(given.model).name}")
        print(f"{'hostile request':38} {'status':12} {'took':>7} {'health':>7} {'short':>7} {'added':>7} {'memory':>8}")
        try:
            for found in campaign(url, server.pid, HOSTILE, given.seconds):
                codes = ",".join(map(str, sorted(set(found.status)))) + f" x{len(found.status)}"
                spent = [found.took_s, found.health_s, found.completion_s, found.added_s]
                print(
                    f"{found.name:38} {codes:12}",
                    *(f"{1e3 * each:5.0f}ms" for each in spent),
                    f"{found.grown_mb:+6.0f}MB",
                    flush=True,
                )
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
