"""`AsyncLLM`: the engine for asyncio programs. Prompts in, streams of results out; belongs to one event loop.

The server and the synchronous `LLM` are built on it. It ties tokenizer, engine and live requests together;
what each of them does is elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ringcast.actors.errors import NotInSystem
from ringcast.actors.forks import FORKED_TEXT, tell_of_forks
from ringcast.scheduler.messages import EngineInfo, SchedulerStatistics

from .builtin_models import Progress
from .detokenizer import TextDecoder
from .engine_args import EngineArgs
from .engine_client import ActorFigures, EngineClient, Health, RingFigures
from .errors import EngineError, EngineNotReady, InvalidRequest
from .figures import RequestFigures
from .input_processor import ChatPrompt, EncodedParams, EncodedPrompt, EncodeJob, Message, ParamsJob, Prompt
from .outputs import RequestOutput
from .parameter_checks import unicode_text
from .request_state import RequestState
from .request_stream import RequestStream
from .sampling_params import SamplingParams
from .startup import Parts, Running, find_parts, start_parts
from .tokenizer import Tokenizer


class AsyncLLM:
    """An LLM engine on the running event loop; starts at ``start``, ``async with``, or its first request.

    >>> async with AsyncLLM(EngineArgs(model="smollm2")) as llm:
    ...     async for output in llm.generate("The capital of France is", SamplingParams(temperature=0)):
    ...         print(output.outputs[0].text)
    """

    def __init__(self, args: EngineArgs, *, progress: Progress | None = None) -> None:
        """Cheap: nothing is started or loaded. ``progress`` is told of downloads."""
        if not isinstance(args, EngineArgs):
            raise TypeError(f"AsyncLLM was given {args!r}: its settings are an EngineArgs, as EngineArgs({args!r})")
        self.args = args
        self._find_parts: Callable[[], Awaitable[Parts]] = lambda: find_parts(args, progress)
        self._start_lock = asyncio.Lock()
        self._starting: asyncio.Task[Running] | None = None
        self._engine: EngineClient | None = None  # set while it starts, too
        self._ready: Running | None = None
        self._failure = ""
        self._closed = False
        self._serial = itertools.count(1)
        self._left_behind: tuple[object, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that started it
        tell_of_forks(self)

    def was_forked(self) -> None:
        """See `ringcast.actors.forks`: the engine is the parent's, and nothing of it is ended here."""
        if not self._closed and (self._engine is not None or self._ready is not None):
            self._left_behind = (self._engine, self._ready, self._starting)
            self._engine, self._ready, self._starting = None, None, None
            self._closed = True
            self._failure = FORKED_TEXT

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> AsyncLLM:
        """vLLM's way to make one."""
        return cls(args)

    @classmethod
    def from_parts(cls, args: EngineArgs, engine: EngineClient, tokenizer: Tokenizer) -> AsyncLLM:
        """With an engine of one's own, not started yet: for tests, and for engines elsewhere."""

        async def parts() -> Parts:
            return Parts(engine, lambda: tokenizer, args.admission_limits())

        llm = cls(args)
        llm._find_parts = parts
        return llm

    async def start(self) -> None:
        """Find the model, start the engine, load the tokenizer; returns when ready. Nothing happens if it is.

        `ModelNotFound`, `ModelUnusable`, `EngineStartFailed` and the layers' configuration errors say why
        not, and nothing is left running. Cancelling it gives the start up; it can be started again.
        """
        await self._check_loop()
        async with self._start_lock:
            if self._ready is not None:
                return
            if self._closed:
                raise EngineNotReady(f"{self._failure}: make a new one")
            self._failure = ""
            self._loop = asyncio.get_running_loop()
            self._starting = starting = asyncio.create_task(self._start(), name="start")
            try:
                await asyncio.wait([starting])
            except asyncio.CancelledError:
                starting.cancel()
                await asyncio.wait([starting])
                raise
            if starting.cancelled():  # by `close`
                raise EngineNotReady("the engine was closed while it started")
            try:
                self._ready = starting.result()
            finally:
                if self._ready is None:
                    self._loop = None  # it may be tried again, on any loop

    async def close(self) -> None:
        """Stop the engine; live requests end with an error. Safe in any state, and twice.

        `EngineNotReady` on another event loop than the one that started it. If that one is closed, the engine's
        processes are killed first.
        """
        await self._check_loop()
        self._closed = True
        self._failure = self._failure or "the engine was closed"
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        ready, self._ready = self._ready, None
        engine, self._engine = self._engine, None
        if ready is not None:
            ready.table.fail_all(EngineNotReady("the engine was closed while the request ran"))
        if engine is not None:
            await engine.close()
        self._loop = None

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def health(self) -> Health:
        """The truth, now, in any state."""
        if self._engine is not None:
            health = self._engine.health()
            if health.state == "ready" and self._ready is None:
                return Health("starting", "the tokenizer is loading")
            return health
        if self._failure:
            return Health("dead", self._failure)
        return Health("starting", "the engine has not started yet")

    async def wait_dead(self) -> str:
        """Return when the engine is dead for good, and why. Restarts do not count."""
        return await self._running().engine.wait_dead()

    async def generate(
        self,
        prompt: Prompt | EncodedPrompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Results of one prompt as they come, by ``sampling_params.output_kind``. Leaving aborts the request.

        ``priority``: the lowest goes first; refused unless the engine's ``scheduling_policy`` is "priority".
        """
        async with await self.add_request(prompt, sampling_params, request_id, priority=priority) as stream:
            async for output in stream:
                yield output

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Like `generate`, for a chat: the model's template makes the prompt."""
        prompt = await self.encode_chat(messages)
        async with await self.add_request(prompt, sampling_params, request_id, priority=priority) as stream:
            async for output in stream:
                yield output

    async def add_request(
        self,
        prompt: Prompt | EncodedPrompt,
        sampling_params: SamplingParams | EncodedParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> RequestStream:
        """Admit a request; its stream of results. Errors of admission come from here, not from the stream.

        Many requests with the same parameters are cheaper with those of `encode_params`.
        """
        given: object = sampling_params
        if not isinstance(given, SamplingParams | EncodedParams | None):
            kind = type(given).__name__
            raise InvalidRequest(f"sampling_params is a {kind}: give a SamplingParams, or None", "sampling_params")
        if request_id is not None:
            unicode_text("request_id", request_id)
        encoded = prompt if isinstance(prompt, EncodedPrompt) else await self.encode(prompt)
        ready = await self._started()
        if not isinstance(sampling_params, EncodedParams):
            sampling_params = await self.encode_params(sampling_params)
        params = sampling_params.params
        info = ready.engine.info()
        encoded = ready.input.check(encoded, params, info, priority)
        serial = next(self._serial)
        request_id = f"request-{serial}" if request_id is None else request_id
        engine_ids = tuple(f"{request_id}#{serial}.{index}" for index in range(params.n))
        requests = ready.input.requests(encoded, sampling_params, info, engine_ids, priority)
        seeds = [request.sampling.seed for request in requests]
        state = RequestState(request_id, encoded, params, seeds, ready.decoder)
        ready.table.enter(state, engine_ids)
        try:
            await ready.engine.add(requests)
        except BaseException:
            ready.table.release(state)
            raise
        return RequestStream(state, ready.table.release)

    async def encode(self, prompt: Prompt, *, add_special_tokens: bool = True) -> EncodedPrompt:
        """Tokenise, off the event loop. ``add_special_tokens``: a text gets those that the model puts around it."""
        (encoded,) = await self.encode_all([prompt], add_special_tokens=add_special_tokens)
        return encoded

    async def encode_all(self, prompts: Sequence[Prompt], *, add_special_tokens: bool = True) -> list[EncodedPrompt]:
        """`encode` for the prompts of one request. They are worked on in pieces; requests take turns."""
        ready = await self._started()
        limit = ready.engine.info().max_model_len
        return await ready.encoding.encode_all([EncodeJob(prompt, add_special_tokens, limit) for prompt in prompts])

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> EncodedPrompt:
        """Render and tokenise a chat, off the event loop. ``continue_final_message``: it stays open at its end."""
        ready = await self._started()
        chat = ChatPrompt(messages, add_generation_prompt, variables, continue_final_message)
        return await ready.encoding.encode(EncodeJob(chat, add_special_tokens, ready.engine.info().max_model_len))

    async def encode_params(self, params: SamplingParams | None = None) -> EncodedParams:
        """Check parameters against the model and tokenise their words, off the event loop if that can take long.

        None takes the model's defaults. `InvalidRequest` names field, value and limit.
        """
        ready = await self._started()
        job = ParamsJob(ready.input.default_params() if params is None else params, ready.engine.info())
        if job.is_cheap():
            return ready.input.encode_params(job.params, job.info)
        return await ready.encoding.encode_params(job)

    def check(self, prompt: EncodedPrompt, params: EncodedParams, priority: int = 0) -> EncodedPrompt:
        """Refuse what `add_request` would refuse, without adding it. The prompt as it would run: truncated."""
        ready = self._running()
        return ready.input.check(prompt, params.params, ready.engine.info(), priority)

    async def abort(self, request_id: str) -> None:
        """Abort a running request by its id: its stream ends with an error. Unknown ids are fine."""
        state = self._running().table.find(request_id)
        if state is not None:
            state.fail(EngineError(f"request {request_id} was aborted"))
            self._running().table.release(state)

    def default_sampling_params(self) -> SamplingParams:
        """The model's own defaults where it has some, else vLLM's."""
        return self._running().input.default_params()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. `EngineNotReady` before the start."""
        return self._running().tokenizer

    @property
    def decoder(self) -> TextDecoder:
        """What turns the model's tokens into bytes and text. `EngineNotReady` before the start."""
        return self._running().decoder

    def info(self) -> EngineInfo:
        """The engine's limits. `EngineNotReady` while it takes no requests."""
        return self._running().engine.info()

    async def statistics(self) -> SchedulerStatistics:
        """The scheduler's accounts."""
        return await self._running().engine.statistics()

    async def ring_figures(self) -> RingFigures:
        """What went over the rings of all processes."""
        return await self._running().engine.ring_figures()

    async def actors(self) -> list[ActorFigures]:
        """The engine's actors: up or down, deaths, what went over their rings."""
        return await self._running().engine.actors()

    def request_figures(self) -> RequestFigures:
        """Counts and latencies of the requests since the start. Live: they go on changing."""
        return self._running().table.figures

    async def _check_loop(self) -> None:
        """It belongs to the loop that started it: its tasks are there."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return
        if not self._loop.is_closed():
            raise EngineNotReady("this AsyncLLM was started on another event loop: use it and close it there")
        engine, self._engine, self._ready, self._starting = self._engine, None, None, None
        self._loop, self._closed = None, True
        self._failure = (
            "this AsyncLLM was not closed before its event loop was: its processes have been killed. "
            "Close it on the loop that started it"
        )
        if engine is not None:
            with contextlib.suppress(NotInSystem):  # its system says the same, having killed them
                await engine.close()
            raise EngineNotReady(self._failure)

    async def _started(self) -> Running:
        await self.start()
        return self._running()

    def _running(self) -> Running:
        if self._ready is None:
            health = self.health()
            raise EngineNotReady(f"the engine takes no requests now ({health.state}): {health.detail}")
        return self._ready

    async def _start(self) -> Running:
        try:
            parts = await self._find_parts()
            self._engine = parts.engine
            return await start_parts(parts)
        except BaseException as error:
            self._engine = None
            self._failure = str(error) or f"the start was given up ({type(error).__name__})"
            raise
