"""Who may come in, how large, how many, until when: the server's gate, its drain, its figures, and slow clients."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chunk_checker import sse_payloads
from frontend_fakes import FakeEngine
from prometheus_client.parser import text_string_to_metric_families
from server_fixture import ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.engine_client import Health
from ringcast.frontend.server import run
from ringcast.frontend.server.settings import ServerSettings, SettingsError
from ringcast.frontend.tokenizer import Tokenizer

KEY = {"Authorization": "Bearer secret"}
SETTINGS = ServerSettings(
    api_keys=("secret", "second"),
    allowed_origins=("https://page.example",),
    max_body_bytes=10_000,
    max_concurrent_requests=3,
    request_timeout_s=30.0,
)


class Kit:
    """A server with every limit, its engine, and its AsyncLLM."""

    def __init__(self, server: ServerThread, engine: FakeEngine, llm: AsyncLLM) -> None:
        self.server = server
        self.engine = engine
        self.llm = llm

    def post(self, body: Any, **headers: str) -> httpx.Response:
        """A completion with the key."""
        url = f"{self.server.url}/v1/completions"
        return httpx.post(url, json=body, headers={**KEY, **headers}, timeout=10)

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Sample name -> values of the labels, without the model's -> value."""
        values: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.server.url}/metrics").text):
            for sample in family.samples:
                labels = tuple(v for k, v in sample.labels.items() if k not in ("model_name", "engine"))
                values.setdefault(sample.name, {})[labels] = sample.value
        return values


@pytest.fixture(scope="module")
def shared(smollm2: Tokenizer) -> Iterator[Kit]:
    engine = FakeEngine()
    llm = AsyncLLM.from_parts(EngineArgs(model="smollm2"), engine, smollm2)
    with ServerThread(llm, settings=SETTINGS) as server:
        yield Kit(server, engine, llm)


@pytest.fixture
def kit(shared: Kit) -> Iterator[Kit]:
    shared.engine.paused = False
    shared.engine.traces.clear()
    yield shared
    wait_until(lambda: shared.server.app.state.traffic.in_flight == 0)
    assert shared.engine.running == []


def wait_until(condition: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_without_a_key_there_is_health_and_nothing_else(kit: Kit) -> None:
    url = kit.server.url
    for path in ("/health", "/health/ready", "/health/live", "/metrics"):
        assert httpx.get(f"{url}{path}").status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": "Bearer é"}):
        raw = {name: value.encode() for name, value in headers.items()}
        answers = [
            httpx.get(f"{url}/v1/models", headers=raw),
            httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, headers=raw),
        ]
        for answer in answers:
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
    for key in ("secret", "second"):
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": f"bearer {key}"}).status_code == 200
    assert kit.post({"prompt": "x", "max_tokens": 1}).status_code == 200


def test_browsers_are_told_which_pages_may_ask(kit: Kit) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    url = f"{kit.server.url}/v1/completions"
    ours = httpx.options(url, headers={"Origin": "https://page.example", **asked})
    assert ours.headers["access-control-allow-origin"] == "https://page.example"
    assert httpx.options(url, headers={"Origin": "https://other.example", **asked}).status_code == 400
    refused = httpx.post(url, json={"prompt": "x"}, headers={"Origin": "https://page.example"})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://page.example")


def test_bodies_are_bounded_announced_or_not(kit: Kit) -> None:
    large = json.dumps({"prompt": "x" * 10_000}).encode()
    url = f"{kit.server.url}/v1/completions"
    chunks = (large[at : at + 1000] for at in range(0, len(large), 1000))
    headers = {**KEY, "content-type": "application/json"}
    for content in (large, chunks):
        answer = httpx.post(url, content=content, headers=headers)
        assert answer.status_code == 413
        assert "larger than 10000 bytes" in answer.json()["error"]["message"]
    small = iter([json.dumps({"prompt": "x", "max_tokens": 1}).encode()])
    assert httpx.post(url, content=small, headers=headers).status_code == 200


def test_one_too_many_is_told_when_to_come_again(kit: Kit) -> None:
    kit.engine.paused = True
    running = [threading.Thread(target=kit.post, args=({"prompt": "x", "max_tokens": 2},)) for _ in range(3)]
    for thread in running:
        thread.start()
    wait_until(lambda: len(kit.engine.running) == 3)
    for queue_time_s, retry_after in ((0.0, "1"), (3.2, "4")):
        kit.llm.request_figures().recent_queue_time_s = queue_time_s
        answer = kit.post({"prompt": "x"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, retry_after)
        assert answer.json()["error"]["code"] == "too_many_requests"
    assert httpx.get(f"{kit.server.url}/health/ready").status_code == 200, "looking is free"
    kit.engine.paused = False
    kit.server.call(kit.engine._wake.set)
    for thread in running:
        thread.join()
    assert kit.post({"prompt": "x", "max_tokens": 1}).status_code == 200
    assert kit.metrics()["ringcast:http_requests_refused_total"][("429",)] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_before_the_first_token_is_a_504_and_an_abort(kit: Kit, stream: bool) -> None:
    kit.engine.paused = True
    answer = kit.post({"prompt": "x", "stream": stream}, **{"X-Request-Timeout": "0.1"})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_passed"
    assert kit.engine.running == []


def test_a_deadline_in_mid_stream_is_an_error_event(kit: Kit) -> None:
    kit.engine.paused = True

    def step() -> None:
        wait_until(lambda: bool(kit.engine.running))
        kit.server.call(kit.engine.step)

    threading.Thread(target=step).start()
    answer = kit.post({"prompt": "x", "stream": True}, **{"X-Request-Timeout": "0.5"})
    assert answer.status_code == 200
    *chunks, error = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert chunks[0]["choices"][0]["text"]
    assert error["error"]["code"] == "deadline_passed"


def test_a_deadline_must_be_seconds(kit: Kit) -> None:
    for wrong in ("soon", "0", "-1", "nan", "inf"):
        answer = kit.post({"prompt": "x"}, **{"X-Request-Timeout": wrong})
        assert answer.status_code == 400
        assert "X-Request-Timeout" in answer.json()["error"]["message"]


def test_every_answer_has_its_requests_id(kit: Kit) -> None:
    url = kit.server.url
    assert kit.post({"prompt": "x", "max_tokens": 1}, **{"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    stream = kit.post({"prompt": "x", "max_tokens": 1, "stream": True}, **{"X-Request-Id": "mine-2"})
    assert stream.headers["x-request-id"] == "mine-2"
    drawn = [httpx.get(f"{url}{path}").headers["x-request-id"] for path in ("/health", "/v1/models", "/nothing")]
    assert len(set(drawn)) == 3
    wrong = httpx.get(f"{url}/health", headers={"X-Request-Id": "x" * 200}).headers["x-request-id"]
    assert len(wrong) == 32


def test_the_access_log_names_the_request(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ringcast.server.access")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    kit.post({"prompt": "x", "max_tokens": 1}, traceparent=trace, **{"X-Request-Id": "mine-3"})
    wait_until(lambda: caplog.messages)
    line = caplog.messages[-1]
    assert line.startswith("POST /v1/completions 200 ")
    assert line.endswith(f" s, request id mine-3, trace {trace}")


def test_a_trace_goes_on_into_the_engine(kit: Kit) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for traceparent in (trace, "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "nonsense"):
        assert kit.post({"prompt": "x", "max_tokens": 1}, traceparent=traceparent).status_code == 200
    assert kit.engine.traces == [trace, None, None]


def test_metrics_count_what_happened(kit: Kit) -> None:
    before = kit.metrics()
    assert kit.post({"prompt": [5, 6, 7], "max_tokens": 4, "n": 2}).status_code == 200
    kit.engine.paused = True
    kit.post({"prompt": [5], "max_tokens": 4}, **{"X-Request-Timeout": "0.05"})
    after = kit.metrics()

    def grown(name: str, *labels: str) -> float:
        return after[name][labels] - before[name][labels]

    assert grown("vllm:prompt_tokens_total") == 3
    assert grown("vllm:generation_tokens_total") == 8
    assert grown("vllm:request_success_total", "length") == 2
    assert grown("vllm:request_success_total", "abort") == 1
    assert grown("vllm:time_to_first_token_seconds_count") == 1
    assert grown("vllm:inter_token_latency_seconds_count") == 6
    assert grown("vllm:request_time_per_output_token_seconds_count") == 2
    assert grown("vllm:e2e_request_latency_seconds_count") == 1
    assert grown("vllm:request_generation_tokens_sum") == 8
    assert grown("vllm:request_generation_tokens_bucket", "5.0") == 2
    assert grown("vllm:request_generation_tokens_bucket", "2.0") == 0
    assert (after["vllm:num_requests_running"][()], after["vllm:num_requests_waiting"][()]) == (0, 0)
    assert after["vllm:kv_cache_usage_perc"][()] == 0
    assert after["ringcast:actor_deaths_total"][("fake",)] == 2
    assert after["ringcast:actor_up"][("fake",)] == 1
    assert after["ringcast:http_requests_in_flight"][()] == 0
    assert (after["ringcast:state"][("ready",)], after["ringcast:state"][("dead",)]) == (1, 0)
    assert after["ringcast:part_answered"] == {("scheduler",): 1, ("actors",): 1}
    assert after["process_open_fds"][()] > 3
    kit.engine.state = Health("restarting", "the engine core died")
    during = kit.metrics()
    kit.engine.state = Health("ready")
    assert during["ringcast:state"][("restarting",)] == 1
    assert during["ringcast:actor_up"][("fake",)] == 0


def test_a_drain_lets_running_requests_finish_and_takes_no_others(smollm2: Tokenizer) -> None:
    engine = FakeEngine(paused=True)
    with ServerThread(AsyncLLM.from_parts(EngineArgs(), engine, smollm2)) as server:
        url, body = server.url, {"prompt": "x", "max_tokens": 3}
        answers: list[httpx.Response] = []
        running = threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=body)))
        running.start()
        wait_until(lambda: bool(engine.running))
        assert server.loop is not None
        drain = asyncio.run_coroutine_threadsafe(server.app.state.drain(10), server.loop)
        wait_until(lambda: server.app.state.traffic.is_draining)
        refused = httpx.post(f"{url}/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_stopping")
        assert int(refused.headers["retry-after"]) > 0
        ready = httpx.get(f"{url}/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert httpx.get(f"{url}/health/live").status_code == 200
        assert 'state="draining"} 1.0' in httpx.get(f"{url}/metrics").text
        assert not drain.done()
        engine.paused = False
        server.call(engine._wake.set)
        drain.result(10)
        running.join()
        assert answers[0].json()["choices"][0]["finish_reason"] == "length"
        assert not engine.closed


def test_what_a_drain_does_not_wait_for_is_told(smollm2: Tokenizer) -> None:
    engine = FakeEngine(paused=True)
    with ServerThread(AsyncLLM.from_parts(EngineArgs(), engine, smollm2)) as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "stream": True}, timeout=10))

        running = threading.Thread(target=ask)
        running.start()
        wait_until(lambda: bool(engine.running))
        server.call(engine.step)
        assert server.loop is not None
        asyncio.run_coroutine_threadsafe(server.app.state.drain(0.2), server.loop).result(10)
        running.join()
        last = [json.loads(line[6:]) for line in answers[0].text.splitlines() if line][-1]
        assert "closed while the request ran" in last["error"]["message"]


class SlowClient:
    """Asks for a stream and reads nothing of it until told to."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(20)
        self.socket.connect((host, int(port)))
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.0\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        self.socket.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)

    def text(self) -> str:
        """Read all that there is; the answer's text."""
        data = b""
        while part := self.socket.recv(65536):
            data += part
        lines = [line for line in data.decode().splitlines() if line.startswith("data: ")]
        return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in sse_payloads(lines) if chunk != "[DONE]")


def with_small_buffers(llm: AsyncLLM) -> ServerThread:
    """A server whose answers do not vanish in the kernel's buffers."""
    server = ServerThread(llm)
    server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    return server


LONG = {"prompt": [1000, 2000, 3000], "max_tokens": 60_000, "stream": True, "ignore_eos": True}


def test_a_client_that_does_not_read_stalls_nobody_and_still_gets_all_of_it(smollm2: Tokenizer) -> None:
    engine = FakeEngine(max_model_len=100_000, tokens_per_step=200)
    with with_small_buffers(AsyncLLM.from_parts(EngineArgs(), engine, smollm2)) as server:
        slow = SlowClient(server.url, LONG)
        wait_until(lambda: len(engine.added) == 1 and not engine.running)  # the engine waits for no client
        quick = httpx.post(f"{server.url}/v1/completions", json={"prompt": [5], "max_tokens": 10}, timeout=10)
        assert quick.json()["usage"]["completion_tokens"] == 10
        wait_until(lambda: server.app.state.traffic.in_flight == 1)  # the slow one
        transports = [connection.transport for connection in server._server.server_state.connections]
        assert sum(server.call(transport.get_write_buffer_size) for transport in transports) < 1 << 20
        assert slow.text() == smollm2.decode([1000, 2000, 3000] * 20_000)
        slow.socket.close()


def test_a_client_that_never_reads_is_cut_off(smollm2: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_UNREAD_MS", 300)
    engine = FakeEngine(max_model_len=100_000, tokens_per_step=200)
    with with_small_buffers(AsyncLLM.from_parts(EngineArgs(), engine, smollm2)) as server:
        slow = SlowClient(server.url, LONG)
        wait_until(lambda: server.app.state.traffic.in_flight == 1)
        wait_until(lambda: server.app.state.traffic.in_flight == 0 and not engine.running, 20)
        assert len(server._server.server_state.connections) == 0
        slow.socket.close()


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingsError, match="max_body_bytes=0: give a whole number above 0"):
        ServerSettings(max_body_bytes=0)
    with pytest.raises(SettingsError, match="allow_credentials needs allowed_origins"):
        ServerSettings(allowed_origins=("*",), allow_credentials=True)
    with pytest.raises(SettingsError, match="api_keys"):
        ServerSettings(api_keys=("",))
