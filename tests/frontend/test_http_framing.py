"""What stands around a body: chunks, trailers, HTTP/1.0, and bytes that are no HTTP; how long an error may be."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest
from frontend_fakes import FakeEngine
from server_fixture import ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.server.settings import ServerSettings
from ringcast.frontend.tokenizer import Tokenizer

_SETTINGS = ServerSettings(max_header_bytes=20_000, body_timeout_s=20.0)
_CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.fixture(scope="module")
def server(smollm2: Tokenizer) -> Iterator[ServerThread]:
    with ServerThread(AsyncLLM.from_parts(EngineArgs(), FakeEngine(), smollm2), settings=_SETTINGS) as server:
        yield server


def _connect(server: ServerThread) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def _answer(client: socket.socket) -> bytes:
    data = b""
    try:
        while part := client.recv(65536):
            data += part
    except ConnectionResetError:  # what we sent behind the refusal was not read
        pass
    return data


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"2\r\n{}\r\n0\r\n", b"X-Trailer: many\r\n" * 4000),
        (b"2\r\n{}\r\n0\r\nX-Trailer: ", b"one" * 20_000),
        (b"2;", b"extension" * 8000),
    ],
    ids=["trailers", "one trailer", "chunk extension"],
)
def test_endless_framing_is_refused_and_not_kept(server: ServerThread, begin: bytes, more: bytes) -> None:
    """C14: 31 MB of trailers took 413 MB of the server."""
    before = psutil.Process().memory_info().rss
    with _connect(server) as client:
        client.sendall(_CHUNKED + begin)
        with pytest.raises(OSError):
            for _ in range(500):
                client.sendall(more)
                time.sleep(0.001)
        _answer(client)
    assert psutil.Process().memory_info().rss - before < 20e6


def test_a_refusal_of_framing_says_what(server: ServerThread) -> None:
    with _connect(server) as client:
        client.sendall(_CHUNKED + b"2\r\n{}\r\n0\r\n")
        time.sleep(0.1)
        client.sendall(b"X-Trailer: many\r\n" * 1500)
        answer = _answer(client)
    assert answer.startswith(b"HTTP/1.1 431")
    assert b"chunk extensions or trailers" in answer


def test_short_trailers_and_extensions_do_no_harm(server: ServerThread) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-Trailer: x\r\n\r\n"
    with _connect(server) as client:
        client.sendall(_CHUNKED.replace(b"Host: x", b"Host: x\r\nConnection: close") + chunks)
        assert _answer(client).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_no_chunks(server: ServerThread, stream: bool) -> None:
    """RFC 9112, 6.1: an HTTP/1.0 client does not know them; its answer ends with the connection."""
    body = json.dumps({"prompt": "x", "max_tokens": 3, "ignore_eos": True, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with _connect(server) as client:
        client.sendall(head + body)
        head, _, answer = _answer(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    if not stream:
        assert json.loads(answer)["usage"]["completion_tokens"] == 3
        return
    events = answer.decode().split("\n\n")
    assert all(event.startswith("data: ") for event in events[:-1])
    assert events[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n"])
def test_what_is_no_http_gets_an_error_in_the_usual_shape(server: ServerThread, data: bytes) -> None:
    with _connect(server) as client:
        client.sendall(data)
        head, _, body = _answer(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "invalid_http"


@pytest.mark.parametrize(
    "fields",
    [{"model": "x" * 900_000}, {"logit_bias": {"1": "x" * 900_000}}, {"x" * 900_000: 1}, {"suffix": "x" * 900_000}],
    ids=["model", "value", "key", "unsupported"],
)
def test_an_error_does_not_send_a_long_value_back(server: ServerThread, fields: dict[str, object]) -> None:
    """Errors were as large as the wrong value, a name twice as large."""
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": "x", **fields})
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 2000
    assert len(answer.json()["error"]["message"]) > 1000


def test_a_body_of_very_many_texts_is_refused(server: ServerThread) -> None:
    """C9: decoding 260,000 texts, and looking through them for half a surrogate pair, kept the loop for 450 ms."""
    body = json.dumps({"prompt": ["x\U0001f600"] * 70_000}).encode()
    answer = httpx.post(server.url + "/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "body_too_complex"


def test_half_a_pair_is_found_in_a_large_body(server: ServerThread) -> None:
    """B9: there another thread looks for it."""
    body = b'{"max_tokens": 1, "prompt": ["' + b'x", "' * 20_000 + b'\\ud800"]}'
    answer = httpx.post(server.url + "/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert "prompt.20000: the text holds half of a surrogate pair" in answer.json()["error"]["message"]
