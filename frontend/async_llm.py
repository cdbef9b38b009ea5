"""`AsyncLLM`: the engine for asyncio programs. Prompts in, streams of results out; owned by one event loop.

The server and the synchronous `LLM` are built on it. It ties tokenizer, engine and live requests together; what each
does is elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from ringcast.scheduler.messages import EngineInfo, SchedulerStatistics, StepOutputs

from .detokenizer import TextDecoder
from .engine_args import EngineArgs
from .engine_client import EngineClient, Health, RingFigures
from .errors import EngineDead, EngineError, InvalidRequest
from .input_processor import EncodedPrompt, InputProcessor, Message, Prompt
from .outputs import RequestOutput
from .request_state import RequestState
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer


class RequestStream:
    """An admitted request: iterate for its results. Leaving early aborts it: ``async with``, or ``abort()``."""

    def __init__(self, state: RequestState, release: Any) -> None:
        self._state = state
        self._release = release
        self._ended = False

    @property
    def request_id(self) -> str:
        """The caller's id of the request, or the one it was given."""
        return self._state.request_id

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self._state.next()
        except BaseException:
            self.abort()
            raise
        self._ended = output.finished
        return output

    async def final(self) -> RequestOutput:
        """The last result."""
        async for output in self:
            if output.finished:
                return output
        raise EngineError(f"request {self.request_id} was aborted")

    def abort(self) -> None:
        """Give up what has not finished; nothing happens if all has."""
        self._ended = True
        self._release(self._state)

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class AsyncLLM:
    """An LLM engine on the running event loop. ``async with await AsyncLLM.from_engine_args(args) as llm: ...``

    >>> async for output in llm.generate("The capital of France is", SamplingParams(temperature=0)):
    ...     print(output.outputs[0].text)
    """

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, model: str) -> None:
        """From parts; `from_engine_args` makes them. The engine must have been started with ``self`` or be started
        by `start`."""
        self.model = model
        self.tokenizer = tokenizer
        self._engine = engine
        self._input = InputProcessor(tokenizer)
        self._decoder = TextDecoder(tokenizer)
        self._live: dict[str, tuple[RequestState, int]] = {}  # engine id -> (request, index of the answer)
        self._engine_ids: dict[str, list[str]] = {}  # request id -> engine ids
        self._serial = itertools.count(1)
