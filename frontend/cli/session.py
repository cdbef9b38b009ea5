"""One engine for one command, and printing an answer while it comes. Used by ``generate`` and ``chat``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TextIO

from ..async_llm import AsyncLLM
from ..engine_args import EngineArgs
from ..engine_client import RingFigures
from ..errors import FrontendError, InvalidRequest
from ..input_processor import Message
from ..loop_thread import LoopThread
from ..model_source import resolve_model
from ..outputs import RequestMetrics, RequestOutput
from ..progress import download_progress
from ..sampling_params import SamplingParams
from .streams import result_stream

_MOST_UNDER_WAY = 512


class Session:
    """``with Session(args) as session:`` the engine is ready. Ctrl-C during `say` aborts the answer and raises."""

    def __init__(self, args: EngineArgs) -> None:
        self._args = args

    def __enter__(self) -> Session:
        started = time.monotonic()
        with download_progress() as progress:
            resolve_model(self._args.model, progress)  # here, so that Ctrl-C reaches a download
        self._thread = LoopThread("ringcast engine")
        self._llm = AsyncLLM(self._args)
        try:
            self._thread.run(self._llm.start())
        except BaseException:
            self._thread.close(self._llm.close())
            raise
        self.start_s = time.monotonic() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.close(self._llm.close())

    def model_defaults(self) -> dict[str, float | int]:
        """The sampling defaults of the model itself."""
        return self._llm.tokenizer.generation.sampling_defaults()

    def say(self, prompt: str | Sequence[Message], params: SamplingParams, out: TextIO | None = None) -> Answer:
        """Print the answer to ``out`` (None: stdout) as it comes."""
        return self._thread.run(self._say(prompt, params, out or result_stream()))

    def all_of(
        self,
        prompts: Sequence[str | Sequence[Message]],
        params: SamplingParams,
        on_result: Callable[[int, RequestOutput | FrontendError], None],
        on_done: Callable[[], None],
    ) -> None:
        """Run all, a few hundred at the same time. ``on_result`` gets each one's index and result, or why it was
        refused, in the order of the prompts; ``on_done`` is called whenever one has ended."""
        self._thread.run(self._all_of(prompts, params, on_result, on_done))

    async def _all_of(
        self,
        prompts: Sequence[str | Sequence[Message]],
        params: SamplingParams,
        on_result: Callable[[int, RequestOutput | FrontendError], None],
        on_done: Callable[[], None],
    ) -> None:
        places = asyncio.Semaphore(_MOST_UNDER_WAY)
        results: dict[int, RequestOutput | FrontendError] = {}
        num_told = 0

        async def run(index: int) -> None:
            nonlocal num_told
            try:
                results[index] = await self._one_of(prompts[index], params)
            finally:
                places.release()
            on_done()
            while num_told in results:
                on_result(num_told, results.pop(num_told))
                num_told += 1

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(prompts)):
                    await places.acquire()
                    group.create_task(run(index))
        except ExceptionGroup as errors:  # the first one ended the others
            raise errors.exceptions[0] from None

    async def _one_of(self, prompt: str | Sequence[Message], params: SamplingParams) -> RequestOutput | FrontendError:
        try:
            encoded = await (self._llm.encode(prompt) if isinstance(prompt, str) else self._llm.encode_chat(prompt))
            async with await self._llm.add_request(encoded, params) as stream:
                return await stream.final()
        except InvalidRequest as error:
            return error

    def ring_figures(self) -> RingFigures:
        """What went over the rings so far."""
        return self._thread.run(self._llm.ring_figures())

    async def _say(self, prompt: str | Sequence[Message], params: SamplingParams, out: TextIO) -> Answer:
        encoded = await (self._llm.encode(prompt) if isinstance(prompt, str) else self._llm.encode_chat(prompt))
        answer = Answer()
        async with await self._llm.add_request(encoded, params) as stream:
            async for output in stream:
                delta = output.outputs[0]
                answer.text += delta.text
                answer.num_tokens += len(delta.token_ids)
                answer.metrics = output.metrics
                answer.seed = delta.seed
                out.write(delta.text)
                out.flush()
        out.write("\n")
        out.flush()
        return answer


class Answer:
    """A printed answer and what it took."""

    def __init__(self) -> None:
        self.text = ""
        self.num_tokens = 0
        self.seed: int | None = None
        self.metrics = RequestMetrics(0.0)

    def figures(self, rings: RingFigures, start_s: float) -> str:
        """The line that ends a command. Rates count from the request's arrival to its end."""
        metrics = self.metrics
        first, finished = metrics.first_token_time, metrics.finished_time
        assert first is not None
        assert finished is not None
        rate = self.num_tokens / max(finished - metrics.arrival_time, 1e-9)
        return (
            f"{self.num_tokens} tokens, {rate:.1f} tokens/s, first token after {first - metrics.arrival_time:.3f} s "
            f"(engine ready after {start_s:.1f} s), {rings.messages} ring messages, {rings.overflows} overflows"
        )
