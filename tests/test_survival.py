"""`ringcast serve` under kill -9: of the worker, of the engine core, of the server; and how it looks from outside.

Each kill falls into a streaming answer. Clients get a clear error, the supervisor starts the dead again, and nothing is
left behind at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

pytestmark = pytest.mark.timeout(180)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def health(port: int) -> int:
    """The HTTP status of /health; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
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


class Server:
    """A `ringcast serve` in a process of its own."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.log = log
        command = [sys.executable, "-m", "ringcast", "serve", "--port", str(self.port), "--max-model-len", "1024"]
        with log.open("w") as output:
            self.popen = subprocess.Popen(command, stdout=output, stderr=output)
        self.process = psutil.Process(self.popen.pid)
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0)

    def wait_ready(self, timeout_s: float = 60) -> None:
        def ready_or_gone() -> bool:
            assert self.popen.poll() is None, f"the server ended: {self.log.read_text()}"
            return health(self.port) == 200

        wait_until(ready_or_gone, timeout_s, "the server is ready")

    def child(self, word: str) -> psutil.Process:
        """The child process with that word in its title."""
        found = [p for p in self.process.children() if is_running(p) and word in " ".join(p.cmdline())]
        assert len(found) == 1, f"{word}: {[p.cmdline() for p in self.process.children()]}"
        return found[0]

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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    before = set(os.listdir("/dev/shm"))
    server = Server(tmp_path / "log")
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
    assert set(os.listdir("/dev/shm")) == before


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


def test_serve_is_three_processes_with_one_listening_socket_and_nothing_in_shm(server: Server) -> None:
    processes = [server.process, *server.process.children(recursive=True)]
    titles = [" ".join(p.cmdline()) for p in processes]
    assert len(processes) == 3, titles
    assert all("ringcast" in title for title in titles)
    assert "engine-core" in titles[1] + titles[2]
    assert "worker" in titles[1] + titles[2]
    listening = [c for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    assert [c.laddr.port for c in listening] == [server.port]
    assert [name for name in os.listdir("/dev/shm") if "ringcast" in name] == []
    assert "Paris" in server.answer()


def test_kill_of_the_worker_is_a_pause_and_the_stream_goes_on_where_it_was(server: Server) -> None:
    undisturbed, error = interrupted_stream(server, lambda: None, 200)
    assert error is None
    process = server.child("worker")
    text, error = interrupted_stream(server, process.kill, 200)
    assert error is None
    assert text == undisturbed
    wait_until(lambda: not is_running(process), 2, "the old worker is gone")
    server.wait_ready()
    assert server.child("worker").pid != process.pid


@pytest.mark.parametrize("victim", ["engine-core"])
def test_kill_of_a_part_ends_streams_with_a_clear_error_and_the_part_comes_back(server: Server, victim: str) -> None:
    process = server.child(victim)
    killed_at = 0.0

    def kill() -> None:
        nonlocal killed_at
        killed_at = time.monotonic()
        process.kill()

    text, error = interrupted_stream(server, kill)
    assert time.monotonic() - killed_at < 2
    assert text
    assert isinstance(error, openai.APIError), error
    assert victim.replace("-", " ") in str(error).replace("-", " "), error
    assert "SIGKILL" in str(error), error
    wait_until(lambda: not is_running(process), 2, f"the old {victim} is gone")
    server.wait_ready()
    assert server.child(victim).pid != process.pid
    assert "Paris" in server.answer()


def test_kill_of_the_server_leaves_nothing(server: Server) -> None:
    children = server.process.children(recursive=True)
    _, error = interrupted_stream(server, server.process.kill)
    assert error is not None
    wait_until(lambda: not any(is_running(p) for p in children), 2, "its children are gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_in_order(server: Server, number: signal.Signals) -> None:
    children = server.process.children(recursive=True)
    assert "Paris" in server.answer()
    server.process.send_signal(number)
    assert server.popen.wait(10) == 0
    wait_until(lambda: not any(is_running(p) for p in children), 1, "its children are gone")


def test_a_second_signal_ends_a_server_that_still_starts(tmp_path: Path) -> None:
    server = Server(tmp_path / "log")
    wait_until(lambda: len(server.process.children()) > 0, 30, "a child has been started")
    children = server.process.children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGTERM)
    server.popen.wait(10)
    wait_until(lambda: not any(is_running(p) for p in children), 2, "its children are gone")


def test_health_is_never_200_while_the_worker_is_gone(server: Server) -> None:
    seen: list[int] = []
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            seen.append(health(server.port))

    process = server.child("worker")
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(process), 2, "the worker is gone")
    time.sleep(0.05)
    poller = threading.Thread(target=poll)
    poller.start()
    wait_until(lambda: 200 in seen, 30, "healthy again")
    stop.set()
    poller.join()
    assert seen[0] == 503
    assert seen[seen.index(200) :] == [200] * (len(seen) - seen.index(200))  # once healthy, it stays so
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/models") as answer:
        assert json.load(answer)["data"][0]["id"] == "smollm2"
