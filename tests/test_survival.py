"""`ringcast serve` under kill -9: of the worker, of the engine core, of the server; and how it looks from outside.

Each kill falls into streaming answers. They pause and go on, token for token; /health/ready tells the truth meanwhile;
and nothing is left behind at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from shared_names import shared_names_of

pytestmark = pytest.mark.timeout(180)


def free_port() -> int:
    """Not one of those that the system gives to connections: it stays free until the server listens, seconds later."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def health(port: int) -> int:
    """The HTTP status of /health/ready; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        time.sleep(0.02)


def is_running(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def in_shm(processes: list[psutil.Process]) -> list[str]:
    return shared_names_of(process.pid for process in processes)


def title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()).strip()
    return "gone"


class Server:
    """A `ringcast serve` in a process of its own."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.log = log
        command = [sys.executable, "-m", "ringcast", "serve", "--port", str(self.port), "--max-model-len", "1024"]
        command += ["--drain-timeout", "60"]
        with log.open("w") as output:
            self.popen = subprocess.Popen(command, stdout=output, stderr=output)
        self.process = psutil.Process(self.popen.pid)
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self.client = openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0)

    def wait_ready(self, timeout_s: float = 60) -> None:
        def ready_or_gone() -> bool:
            assert self.popen.poll() is None, f"the server ended: {self.log.read_text()}"
            return health(self.port) == 200

        wait_until(ready_or_gone, timeout_s, "the server is ready")

    def children(self) -> dict[str, psutil.Process]:
        """The living child processes by their titles."""
        return {title(p): p for p in self.process.children(recursive=True) if is_running(p)}

    def child(self, word: str) -> psutil.Process:
        """The child process with that word in its title that is no spare."""
        found = [p for name, p in self.children().items() if word in name and "spare" not in name]
        assert len(found) == 1, f"{word}: {list(self.children())}"
        return found[0]

    def wait_spare(self) -> None:
        """The worker has a spare (again), so all processes are there."""
        wait_until(lambda: any("(spare)" in name for name in self.children()), 30, "there is a spare that is prepared")

    def stream(self, max_tokens: int) -> Any:
        return self.client.completions.create(
            model="smollm2",
            prompt="Once upon a time",
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )

    def answer(self) -> str:
        chunks = self.client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=24,
            temperature=0,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@contextlib.contextmanager
def serving(log: Path) -> Iterator[Server]:
    """A server that is ready; at the end it stops in order and nothing of it is left."""
    server = Server(log)
    everybody: list[psutil.Process] = []
    try:
        server.wait_ready()
        yield server
        everybody = server.process.children(recursive=True) if is_running(server.process) else []
    finally:
        server.popen.terminate()
        try:
            server.popen.wait(15)
        finally:
            server.popen.kill()
            server.popen.wait()
    wait_until(lambda: not any(is_running(p) for p in everybody), 2, "every child is gone")
    assert in_shm([server.process, *everybody]) == []


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests after which it still serves."""
    with serving(tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "log") as server:
        yield server


class HealthWatch:
    """``with HealthWatch(port) as watch:`` asks all the time; ``changes`` are the answers without repetitions."""

    def __init__(self, port: int) -> None:
        self.changes: list[int] = []
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        wait_until(lambda: self.changes, 5, "an answer")
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stop.wait(0.005):
            status = health(self._port)
            if self.changes[-1:] != [status]:
                self.changes.append(status)


async def many_streams(server: Server, at_chunk: int, disturb: Callable[[], None]) -> list[str]:
    """The texts of 32 streams that run together; ``disturb`` is called when so many chunks have come."""
    num_chunks = 0

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        nonlocal num_chunks
        text, reason = "", None
        chunks = await client.completions.create(
            model="smollm2",
            prompt=f"Story number {number}: once upon a time " * (1 + number % 3),
            max_tokens=8 + number // 2,
            temperature=0.8 if number % 2 else 0,
            seed=number,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in chunks:
            num_chunks += 1
            if num_chunks == at_chunk:
                disturb()
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason
        assert reason == "length"
        return text

    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        return await asyncio.gather(*(one(client, number) for number in range(32)))


def interrupted_stream(server: Server, kill: Any, max_tokens: int = 900) -> tuple[str, Exception | None]:
    """Read a long stream, call ``kill`` after its first chunks; the text and the error that ended it."""
    text = ""
    try:
        for number, chunk in enumerate(server.stream(max_tokens)):
            text += chunk.choices[0].text if chunk.choices else ""
            if number == 5:
                kill()
    except (openai.APIError, OSError) as error:
        return text, error
    except Exception as error:  # httpx errors of a connection cut off
        return text, error
    return text, None


def test_serve_is_four_processes_with_one_listening_socket_and_nothing_in_shm(shared_server: Server) -> None:
    server = shared_server
    server.wait_spare()
    assert sorted(server.children()) == ["ringcast: engine-core", "ringcast: worker-0", "ringcast: worker-0 (spare)"]
    assert "ringcast: serve smollm2" in title(server.process)
    processes = [server.process, *server.children().values()]
    listening = [c for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    assert [c.laddr.port for c in listening] == [server.port]
    assert in_shm(processes) == []
    assert "Paris" in server.answer()


def test_kills_of_core_and_worker_are_a_pause_for_32_streams_and_health_tells_the_truth(shared_server: Server) -> None:
    server = shared_server
    undisturbed = asyncio.run(many_streams(server, 0, lambda: None))
    server.wait_spare()
    num_fds = server.process.num_fds()
    for victims in (["engine-core"], ["worker"], ["engine-core", "worker"]):
        processes = {name: server.child(name) for name in ("engine-core", "worker")}

        def kill(names: list[str] = victims, processes: dict[str, psutil.Process] = processes) -> None:
            for name in names:
                processes[name].kill()

        with HealthWatch(server.port) as watch:
            assert asyncio.run(many_streams(server, 200, kill)) == undisturbed, victims
            wait_until(lambda watch=watch: watch.changes[-1] == 200, 30, "ready again")
        # Until the death is noticed it may say 200. From then on never, until all is back, and then it stays so.
        assert watch.changes == [200, 503, 200], victims
        for name, process in processes.items():
            assert (server.child(name).pid != process.pid) == (name in victims), name
        server.wait_spare()
        assert len(server.children()) == 3
    wait_until(lambda: server.process.num_fds() <= num_fds, 5, f"descriptors are back to {num_fds}")
    assert "Paris" in server.answer()


def test_health_is_never_200_while_a_part_is_gone_and_a_request_meanwhile_waits(shared_server: Server) -> None:
    with HealthWatch(shared_server.port) as watch:
        shared_server.child("worker").kill()
        wait_until(lambda: watch.changes[-1] == 503, 5, "the death is noticed")
        assert "Paris" in shared_server.answer()
        wait_until(lambda: watch.changes[-1] == 200, 30, "ready again")
        time.sleep(0.2)
    assert watch.changes == [200, 503, 200]


def figures(server: Server) -> dict[str, float]:
    """The server's metrics without labels but for those of the model; the sum over other labels."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"http://127.0.0.1:{server.port}/metrics").text):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


def is_idle(server: Server) -> bool:
    """Nobody runs, waits or is answered, and every KV block is free."""
    now = figures(server)
    busy = [now[f"vllm:num_requests_{kind}"] for kind in ("running", "waiting")]
    busy.append(now["ringcast:http_requests_in_flight"])
    return not any(busy) and now["ringcast:kv_blocks_free"] == now["ringcast:kv_blocks"]


async def wave(server: Server, num_clients: int, draw: random.Random) -> tuple[dict[int, str], dict[int, str]]:
    """So many streams at once, of which a third leave at random: what those who stay got, and those who leave.

    Of who stays every tenth reads slowly.
    """
    stayed: dict[int, str] = {}
    left: dict[int, str] = {}
    leaving = set(draw.sample(range(num_clients), num_clients // 3))
    leave_at = {number: draw.choice([None, *range(8)]) for number in leaving}  # None: before anything comes

    async def one(http: httpx.AsyncClient, number: int) -> None:
        body = {
            "prompt": f"Number {number} of many, and " + "once more " * (number % 9),
            "max_tokens": 8 + number % 5,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        texts = left if number in leaving else stayed
        if number in leaving and leave_at[number] is None:
            texts[number] = ""
            with contextlib.suppress(httpx.ReadTimeout):
                await http.post("/completions", json=body, timeout=httpx.Timeout(60, read=0.02 + draw.random() / 4))
            return
        text, is_done, num_chunks = "", False, 0
        async with http.stream("POST", "/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    is_done = True
                elif line:
                    chunk = json.loads(line.removeprefix("data: "))
                    assert "error" not in chunk, chunk
                    text += chunk["choices"][0]["text"]
                    num_chunks += 1
                if number in leaving and num_chunks > leave_at[number]:
                    break
                if number not in leaving and number % 10 == 0:
                    await asyncio.sleep(0.05)
        assert is_done or number in leaving
        texts[number] = text

    timeout = httpx.Timeout(300)  # for the first token of the last in the queue, and between two chunks
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.base_url, timeout=timeout, limits=limits) as http:
        await asyncio.gather(*(one(http, number) for number in range(num_clients)))
    assert len(stayed) + len(left) == num_clients
    return stayed, left


@pytest.mark.timeout(900)
def test_clients_that_leave_at_random_cost_the_others_nothing_and_leave_nothing(shared_server: Server) -> None:
    """`make chaos-server` does it with 500 clients at a time."""
    server, num_clients = shared_server, int(os.environ.get("RINGCAST_CHAOS_CLIENTS", "60"))
    seed = time.time_ns()
    print("seed", seed)
    draw = random.Random(seed)
    processes = [server.process, server.child("engine-core")]
    server.wait_spare()
    texts: dict[int, str] = {}

    def open_fds() -> int:
        return sum(process.num_fds() for process in processes)

    num_fds = open_fds()
    memory: list[list[int]] = []  # after each wave
    before = figures(server)
    for _ in range(3):
        stayed, left = asyncio.run(wave(server, num_clients, draw))
        for number, text in stayed.items():
            assert texts.setdefault(number, text) == text, "company changes no token"
        assert all(texts[number].startswith(text) for number, text in left.items() if number in texts)
        wait_until(lambda: is_idle(server), 10, "the server is idle")
        wait_until(lambda: open_fds() <= num_fds, 5, f"descriptors are back to {num_fds}")
        memory.append([process.memory_info().rss for process in processes])
    grown = [now - then for then, now in zip(memory[-2], memory[-1], strict=True)]
    print("memory of server and core after each wave", memory)
    assert all(size < 4 << 20 for size in grown), memory
    now = figures(server)
    assert now["vllm:request_success_total"] - before["vllm:request_success_total"] >= 2 * num_clients
    assert (now["ringcast:actor_up"], now["ringcast:part_answered"]) == (3, 2)
    assert now["ringcast:actor_deaths_total"] == before["ringcast:actor_deaths_total"]


def test_kill_of_the_server_under_load_leaves_nothing(server: Server) -> None:
    server.wait_spare()
    children = server.process.children(recursive=True)
    assert len(children) == 3
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        asyncio.run(many_streams(server, 100, server.process.kill))
    wait_until(lambda: not any(is_running(p) for p in [server.process, *children]), 1, "everything is gone")


def test_sigterm_lets_running_requests_finish_and_answers_new_ones_with_503(server: Server) -> None:
    children = server.process.children(recursive=True)
    undisturbed, error = interrupted_stream(server, lambda: None, 60)
    assert error is None
    refusals: list[openai.APIStatusError] = []

    def stop() -> None:
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: health(server.port) == 503, 5, "draining")
        with pytest.raises(openai.APIStatusError) as refused:
            server.answer()
        refusals.append(refused.value)

    text, error = interrupted_stream(server, stop, 60)
    assert (text, error) == (undisturbed, None)
    assert [refusal.status_code for refusal in refusals] == [503]
    assert "is stopping" in str(refusals[0])
    assert int(refusals[0].response.headers["retry-after"]) > 0
    assert server.popen.wait(10) == 0
    wait_until(lambda: not any(is_running(p) for p in children), 1, "its children are gone")


def test_a_second_signal_ends_a_drain_at_once(server: Server) -> None:
    children = server.process.children(recursive=True)

    def stop() -> None:
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: health(server.port) == 503, 5, "draining")
        server.process.send_signal(signal.SIGINT)
        assert server.popen.wait(2) == 130

    text, error = interrupted_stream(server, stop)
    assert text
    assert error is not None
    wait_until(lambda: not any(is_running(p) for p in children), 1, "its children are gone")


def test_a_second_signal_ends_a_server_that_still_starts(tmp_path: Path) -> None:
    server = Server(tmp_path / "log")
    wait_until(lambda: len(server.process.children()) > 0, 30, "a child has been started")
    children = server.process.children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGTERM)
    server.popen.wait(10)
    wait_until(lambda: not any(is_running(p) for p in children), 2, "its children are gone")
