"""Connections and bodies as clients should not send them: limits of a head, half-closed clients, JSON that is none."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from frontend_fakes import FakeEngine
from server_fixture import ServerThread

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.server.json_body import MOST_CONTAINERS, MOST_VALUES, Shape
from ringcast.frontend.server.settings import ServerSettings
from ringcast.frontend.server.sse import event, json_text
from ringcast.frontend.tokenizer import Tokenizer

SETTINGS = ServerSettings(
    max_header_bytes=10_000, header_timeout_s=1.0, body_timeout_s=1.0, keep_alive_timeout_s=0.5, api_keys=("k",)
)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "x", "max_tokens": 3, "ignore_eos": true}'


@pytest.fixture(scope="module")
def kit(smollm2: Tokenizer) -> Iterator[tuple[ServerThread, FakeEngine]]:
    engine = FakeEngine()
    with ServerThread(AsyncLLM.from_parts(EngineArgs(), engine, smollm2), settings=SETTINGS) as server:
        yield server, engine


@pytest.fixture
def server(kit: tuple[ServerThread, FakeEngine]) -> Iterator[ServerThread]:
    server, engine = kit
    yield server
    engine.paused = False
    server.call(engine._wake.set)
    for _ in range(1000):
        if not server.app.state.traffic.in_flight:
            break
        time.sleep(0.005)
    assert engine.running == []


def _connect(server: ServerThread) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def _rest(client: socket.socket) -> bytes:
    data = b""
    while part := client.recv(65536):
        data += part
    return data


def _whole(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _post(server: ServerThread, body: bytes, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    sent = {"Authorization": "Bearer k", "Content-Type": "application/json", **headers}
    return httpx.post(f"{server.url}{path}", content=body, headers=sent, timeout=30)


@pytest.mark.parametrize("piece", [b"X-Long: " + b"a" * 200_000, b"X-A: b\r\n" * 2000], ids=["one", "many"])
def test_a_head_that_is_too_large_is_a_431(server: ServerThread, piece: bytes) -> None:
    """C14: 256 MiB of one header were taken without a key."""
    with _connect(server) as client:
        try:
            client.sendall(HEAD + piece)
            client.sendall(b"a" * 1_000_000)
        except OSError:
            pass  # it has been cut off
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"larger than 10000 bytes" in answer


def test_a_head_that_is_whole_and_too_large_is_a_431(server: ServerThread) -> None:
    """C14: in one piece, it is not served either."""
    with _connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: bbbbbbbb\r\n" * 800 + b"\r\n")
        assert _rest(client).startswith(b"HTTP/1.1 431 ")
    with _connect(server) as client:
        client.sendall(
            b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + b"X-A: bbbbbbb\r\n" * 300 + b"\r\n"
        )
        assert _rest(client).startswith(b"HTTP/1.1 200 ")


def test_a_head_that_comes_slowly_is_a_408(server: ServerThread) -> None:
    """C14: a byte a second held its connection for over 70 s."""
    began = time.monotonic()
    with _connect(server) as client:
        for byte in HEAD[:40]:
            try:
                client.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.05)
        assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began < 5
    with _connect(server) as idle:
        assert _rest(idle) == b"", "a connection without a request is closed"


def test_a_body_that_does_not_come_is_not_waited_for(
    kit: tuple[ServerThread, FakeEngine], server: ServerThread
) -> None:
    """C14: a slow body."""
    with _connect(server) as client:
        client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        answer = _rest(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"within 1 s" in answer
    # Who has sent its body may wait longer for the answer.
    kit[1].paused = True
    assert _post(server, BODY, **{"X-Request-Timeout": "1.5"}).status_code == 504


def test_an_idle_connection_stays_open_for_as_long_as_was_asked_for(server: ServerThread) -> None:
    """C1: behind proxies; the test's server closes it after half a second."""
    with _connect(server) as client:
        client.sendall(_whole(BODY))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.2)
        client.sendall(_whole(BODY))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        assert client.recv(65536) == b""
        assert 0.3 < time.monotonic() - began < 5
    assert ServerSettings().keep_alive_timeout_s > 60, "more than the proxies' own"


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_has_shut_down_its_sending_gets_its_answer(
    kit: tuple[ServerThread, FakeEngine], server: ServerThread, version: bytes
) -> None:
    """B15: and the connection ends with it."""
    server, engine = kit
    engine.paused = True
    with _connect(server) as client:
        client.sendall(_whole(BODY).replace(b"HTTP/1.1", b"HTTP/" + version))
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        engine.paused = False
        server.call(engine._wake.set)
        answer = _rest(client).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"finish_reason":"length"' in answer


def test_a_client_that_has_gone_is_not_taken_for_one_that_half_closed(
    kit: tuple[ServerThread, FakeEngine], server: ServerThread
) -> None:
    """B15: its request is aborted at once, as before."""
    server, engine = kit
    engine.paused = True
    client = _connect(server)
    client.sendall(_whole(BODY))
    for _ in range(1000):
        if engine.running:
            break
        time.sleep(0.005)
    assert engine.running
    client.close()
    for _ in range(200):
        if not engine.running:
            break
        time.sleep(0.01)
    assert engine.running == []


@pytest.mark.parametrize("encoding", ["gzip", "br", "x, y"])
def test_a_compressed_body_is_a_415(server: ServerThread, encoding: str) -> None:
    """C5: it was an error parsing the body."""
    answer = _post(server, b"\x1f\x8b", **{"Content-Encoding": encoding})
    assert answer.status_code == 415
    assert repr(encoding) in answer.json()["error"]["message"]
    assert _post(server, BODY, **{"Content-Encoding": "identity"}).status_code == 200


def test_the_access_log_escapes_what_came_from_the_client(
    server: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """C6: no forged lines, no terminal escapes."""
    caplog.set_level("INFO", "ringcast.server.access")
    httpx.get(f"{server.url}/a%0D%0A%1b%5b31m%C2%85%e2%80%a8b")
    for _ in range(1000):
        if caplog.messages:
            break
        time.sleep(0.005)
    assert caplog.messages[-1].startswith(r"GET /a\r\n\x1b[31m\x85\u2028b 401 ")


def test_events_are_one_line_for_every_client() -> None:
    """C3: some split lines as str.splitlines does."""
    text = "a\x85b\u2028c\u2029d\x0b\x0c\x1c\x1d\x1e\r\né"
    for data in (event({"text": text}).removeprefix(b"data: "), json_text(text)):
        assert len(data.decode().rstrip("\n").splitlines()) == 1
        decoded = json.loads(data)
        assert (decoded["text"] if isinstance(decoded, dict) else decoded) == text
        assert "é".encode() in data


def test_streams_tell_proxies_not_to_buffer(server: ServerThread) -> None:
    """C2: nginx."""
    answer = _post(server, b'{"prompt": "x", "stream": true, "max_tokens": 1}')
    assert answer.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x", "cache_salt": "\ud800"}, "cache_salt"),
        ("/v1/completions", {"prompt": "x\udfff"}, "prompt"),
        ("/v1/completions", {"prompt": ["x", "\ud800"]}, "prompt"),
        ("/v1/completions", {"prompt": "x", "model": "\ud800"}, "model"),
        ("/v1/completions", {"prompt": "x", "stop": ["\ud800"]}, "stop"),
        ("/v1/completions", {"prompt": "x", "user": "\ud800"}, "user"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {"\ud800": 1}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
    ],
)
def test_half_a_surrogate_pair_is_refused_in_every_field(
    server: ServerThread, path: str, body: dict[str, Any], param: str
) -> None:
    """B9: cache_salt was a 500 and a traceback."""
    answer = _post(server, json.dumps(body).encode(), path)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert "half of a surrogate pair" in error["message"]


def test_whole_surrogate_pairs_are_text(server: ServerThread) -> None:
    """B9: JSON's escapes beyond the first plane."""
    assert _post(server, b'{"prompt": "\\ud83c\\udf0a", "cache_salt": "\\ud83c\\udf0a"}').status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[]", "the body is a list: send an object"),
        (b'"x"', "the body is a text: send an object"),
        (b"5", "the body is a number: send an object"),
        (b"", "the body is empty"),
        (b'{"prompt": }', "the body is not JSON: Expecting value (line 1, column 12)"),
        (b'{"prompt": "\xff"}', "the body is not UTF-8: byte 12 is 0xff"),
        (b'{"prompt": "x", "user": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
        (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "a number with too many digits"),
        (b'{"prompt": [' + b"1," * 300_000 + b"1]}", "more than 262144 values"),
        (b'{"prompt": [' + b"[]," * 20_000 + b"[]]}", "16384 lists and objects"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_a_body_that_is_wrong_is_told_what_and_where(server: ServerThread, body: bytes, said: str) -> None:
    """B11, C9: a text that says it; and a body that would keep the decoder busy is not decoded."""
    answer = _post(server, body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize("items", [b"null", b"{}", b'"a",1'])
def test_a_list_with_very_many_wrong_items_has_one_error(server: ServerThread, items: bytes) -> None:
    """C9: each was described, for seconds, on the loop."""
    body = b'{"prompt": [' + b",".join([items] * 16_000) + b"]}"
    began = time.monotonic()
    answer = _post(server, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert time.monotonic() - began < 2


def test_the_shape_of_a_body_is_counted_wherever_it_is_cut() -> None:
    """C9: texts count once, whatever is in them."""
    text = json.dumps({"a": ['[{,:"\\', "\\\\", 'x\\"', 1, 2], "b": {"c": []}}).encode()
    for size in range(1, len(text)):
        shape = Shape()
        for at in range(0, len(text), size):
            shape.feed(text[at : at + size])
        assert (shape.num_containers, shape.num_values) == (4, 5 + 3 + 4), size
        assert not shape.may_have_half_pairs
    assert MOST_CONTAINERS < MOST_VALUES


@pytest.mark.parametrize(
    ("text", "longest", "may_have"),
    [
        ('["abc", "abcdefgh", "x"]', 8, False),
        ('["", "abcdefghijkl"', 12, False),
        ('["a", "abcdefghijkl', 12, False),
        (r'["\\ud800", "\\\\"]', 5, False),
        (r'["\\\ud800"]', 6, True),
        (r'["x\uD83c\udf0a"]', 13, True),
    ],
)
def test_the_longest_text_and_its_escapes_are_found_wherever_a_body_is_cut(
    text: str, longest: int, may_have: bool
) -> None:
    """B9, C9: an escaped backslash before ud800 is no escape of a surrogate."""
    data = text.encode()
    for size in range(1, len(data) + 1):
        shape = Shape()
        for at in range(0, len(data), size):
            shape.feed(data[at : at + size])
        assert max(shape.longest_text_bytes, shape._text_bytes) == longest, size
        assert shape.may_have_half_pairs == may_have, size


@pytest.mark.parametrize(
    "begin",
    [b'{"prompt": "', b'{"prompt": 1, "x": "', b'{"max_tokens": 0, "prompt": "'],
    ids=["no JSON", "wrong type", "refused"],
)
def test_a_refused_body_is_freed_at_once(server: ServerThread, begin: bytes) -> None:
    """B14: nine bodies of 33 MB stayed until the cycle collector ran."""
    body = begin + b"x" * 12_000_000 + (b"" if begin == b'{"prompt": "' else b'"}')
    process = psutil.Process()
    assert _post(server, body).status_code == 400
    gc.collect()
    gc.disable()
    try:
        before = process.memory_info().rss
        for _ in range(9):
            assert _post(server, body).status_code == 400
        assert process.memory_info().rss - before < 60_000_000
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("prompt", "offsets"),
    [
        ([10813, 905, 28], [0, 1, 7]),  # two bytes of a character, then other text
        ([905, 10813], [0, 6]),
    ],
)
def test_offsets_count_a_character_that_stays_broken(
    server: ServerThread, smollm2: Tokenizer, prompt: list[int], offsets: list[int]
) -> None:
    """B12: they were one too small behind it."""
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0}
    choice = _post(server, json.dumps(body).encode()).json()["choices"][0]
    assert choice["logprobs"]["text_offset"] == offsets
    assert choice["text"] == smollm2.decode(prompt)


def test_the_server_goes_on_beside_hostile_clients(server: ServerThread) -> None:
    """C14: connections that send nothing whole hold up nobody."""
    clients = [_connect(server) for _ in range(20)]
    for client in clients:
        client.sendall(HEAD[:20])
    threads = [threading.Thread(target=_post, args=(server, BODY)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert httpx.get(f"{server.url}/health").status_code == 200
    for client in clients:
        client.close()
