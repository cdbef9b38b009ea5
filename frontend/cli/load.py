"""Load on an OpenAI-compatible server, and what its answers took. Used by ``ringcast bench`` and by bench/serve.py.

Speaks HTTP by itself, a connection a request, so that the client costs little and every chunk is timed when its bytes
arrive. Knows nothing of ringcast's own server: any that streams /v1/completions will do.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from ..errors import FrontendError

_WORDS = [
    "river", "stone", "market", "winter", "letter", "garden", "engine", "window", "paper", "island", "summer",
    "doctor", "village", "silver", "bridge", "candle", "forest", "number", "teacher", "wagon", "harbour", "violin",
    "desert", "planet", "kitchen", "morning", "thunder", "mirror", "valley", "ticket",
]  # fmt: skip
_PERCENT = 100


class ServerUnusable(FrontendError):
    """The server's fault, or the address is wrong: it cannot be asked as it should be."""


@dataclass(frozen=True, kw_only=True)
class LoadTask:
    """What to ask. ``url`` ends in /v1. With ``ignores_eos`` all answers have ``max_tokens`` tokens (vLLM's extension,
    which llama.cpp knows as well)."""

    url: str
    model: str
    prompts: Sequence[str]
    max_tokens: int
    ignores_eos: bool = True
    api_key: str | None = None
    timeout_s: float = 600.0


@dataclass(slots=True)
class Answer:
    """One request: when its pieces arrived, in seconds of one clock. ``error`` is empty if it came to its end."""

    began_s: float
    pieces_s: list[float] = field(default_factory=list)  # when each chunk with text came
    num_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class LoadResult:
    """All answers of a run that took ``seconds`` from the first request to the last answer's end."""

    answers: Sequence[Answer]
    seconds: float

    @property
    def good(self) -> list[Answer]:
        """Those that came to their end with text."""
        return [answer for answer in self.answers if not answer.error and answer.pieces_s]

    @property
    def errors(self) -> list[str]:
        """Why the others did not."""
        return [answer.error for answer in self.answers if answer.error]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of good answers."""
        return sum(answer.num_tokens for answer in self.good) / self.seconds

    @property
    def requests_per_s(self) -> float:
        """Good answers."""
        return len(self.good) / self.seconds

    def first_token_s(self) -> list[float]:
        """TTFT: from the request to the first text."""
        return [answer.pieces_s[0] - answer.began_s for answer in self.good]

    def per_token_s(self) -> list[float]:
        """TPOT: an answer's mean time per token after its first."""
        return [
            (answer.pieces_s[-1] - answer.pieces_s[0]) / (answer.num_tokens - 1)
            for answer in self.good
            if answer.num_tokens > 1
        ]

    def between_s(self) -> list[float]:
        """ITL: between two pieces of text of an answer."""
        return [
            later - earlier
            for answer in self.good
            for earlier, later in zip(answer.pieces_s, answer.pieces_s[1:], strict=False)
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation; NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / _PERCENT
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def make_prompts(count: int, words: int, seed: int) -> list[str]:
    """Texts that differ from their first words on, so that no cache of prefixes helps."""
    draw = random.Random(seed)
    return [f"{seed}-{number} " + " ".join(draw.choices(_WORDS, k=words)) for number in range(count)]


async def run_load(task: LoadTask, *, concurrency: int | None = None, rate: float | None = None) -> LoadResult:
    """Ask all prompts: ``concurrency`` at a time; or at random moments, ``rate`` a second on average; or at once."""
    answers: list[Answer] = []
    began_s = time.perf_counter()
    if concurrency is not None:
        left = iter(task.prompts)
        await asyncio.gather(*(_ask_in_turn(task, left, answers) for _ in range(concurrency)))
    else:
        draw = random.Random(0)
        asking = []
        due_s = began_s
        for prompt in task.prompts:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            asking.append(asyncio.ensure_future(ask(task, prompt)))
            due_s += draw.expovariate(rate) if rate is not None else 0.0
        answers += await asyncio.gather(*asking)
    return LoadResult(answers, time.perf_counter() - began_s)


async def _ask_in_turn(task: LoadTask, prompts: Iterator[str], answers: list[Answer]) -> None:
    for prompt in prompts:
        answers.append(await ask(task, prompt))


async def ask(task: LoadTask, prompt: str) -> Answer:
    """One request, to its end; what went wrong is in the answer."""
    body = {
        "model": task.model,
        "prompt": prompt,
        "max_tokens": task.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if task.ignores_eos else {}),
    }
    answer = Answer(time.perf_counter())
    try:
        async with asyncio.timeout(task.timeout_s):
            await _exchange(task, "POST", "/completions", json.dumps(body).encode(), _Stream(answer))
    except TimeoutError:
        answer.error = f"no end within {task.timeout_s:g} s"
    except OSError as error:
        answer.error = f"no connection: {error.strerror or error}"
    return answer


async def only_model(url: str, api_key: str | None = None) -> str:
    """The first model that the server lists. `ServerUnusable` in one line if it cannot be asked."""
    task = LoadTask(url=url, model="", prompts=(), max_tokens=1, api_key=api_key)
    reader = _Whole()
    try:
        async with asyncio.timeout(10):
            await _exchange(task, "GET", "/models", b"", reader)
        model: str = json.loads(reader.body)["data"][0]["id"]
    except (OSError, TimeoutError, ValueError, LookupError, TypeError) as error:
        told = reader.body.decode(errors="replace")[:200] or str(error) or type(error).__name__
        raise ServerUnusable(f"{url}/models does not list models ({told}): give the URL of a running server") from error
    return model


async def _exchange(task: LoadTask, method: str, path: str, body: bytes, protocol: _Reader) -> None:
    address = urlsplit(task.url)
    if address.scheme not in ("http", "https") or address.hostname is None:
        raise ServerUnusable(f"{task.url!r} is no URL of a server: give one like http://127.0.0.1:8000/v1")
    key = f"Authorization: Bearer {task.api_key}\r\n" if task.api_key else ""
    head = (
        f"{method} {address.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {address.netloc}\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    is_secure = address.scheme == "https"
    port = address.port or (443 if is_secure else 80)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: protocol, address.hostname, port, ssl=is_secure or None)
    try:
        transport.write(head.encode() + body)
        await protocol.done.wait()
    finally:
        transport.abort()


class _Reader(asyncio.Protocol):
    """Parses one HTTP response; subclasses take its body."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.failed(f"the answer is not HTTP: {error}")

    def on_message_complete(self) -> None:
        self.ended()
        self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.is_set():
            self.failed("the connection broke off")

    def failed(self, why: str) -> None:
        self.done.set()

    def ended(self) -> None:
        """The whole body is there."""


class _Whole(_Reader):
    def __init__(self) -> None:
        super().__init__()
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body


class _Stream(_Reader):
    """Fills an answer from server-sent events."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer
        self._rest = b""
        self._ended_well = False

    def on_body(self, body: bytes) -> None:
        now = time.perf_counter()
        *blocks, self._rest = (self._rest + body).split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: "):
                self._event(block[len(b"data: ") :], now)

    def failed(self, why: str) -> None:
        self._answer.error = self._answer.error or why
        super().failed(why)

    def ended(self) -> None:
        if self._parser.get_status_code() != 200:
            text = self._rest.decode(errors="replace")[:200]
            self._answer.error = f"HTTP {self._parser.get_status_code()}: {text}"
        elif not self._ended_well:
            self._answer.error = self._answer.error or "the stream ended without [DONE]"

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._ended_well = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self._answer.error = str(chunk["error"].get("message", chunk["error"]))
            return
        if chunk.get("usage"):
            self._answer.num_tokens = chunk["usage"]["completion_tokens"]
        if any(choice.get("text") for choice in chunk.get("choices") or ()):
            self._answer.pieces_s.append(now)
