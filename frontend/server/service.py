"""The two generating endpoints: from a checked request body to a response, whole or streamed.

Owned by the app; uses `AsyncLLM` for everything that is not HTTP. Whatever ends a response (its end, an
error, a client that goes away) releases every request it had admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi.responses import JSONResponse, Response

from ..async_llm import AsyncLLM
from ..errors import InvalidRequest
from ..input_processor import EncodedPrompt
from ..outputs import RequestOutput
from ..request_stream import RequestStream
from ..sampling_params import SamplingParams
from .chunks import ChunkWriter, Envelope, Usage, count, whole_choice
from .delivery import EventStream, Receive, answer_or_disconnect, event
from .errors import UnknownModel
from .protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest


@dataclass(frozen=True)
class Job:
    """One checked request: prompts with the same parameters, whose answers are numbered through."""

    chat: bool
    prompts: list[EncodedPrompt]
    params: SamplingParams
    envelope: Envelope
    include_usage: bool


class Service:
    """``model`` is the name under which the model is served."""

    def __init__(self, llm: AsyncLLM, model: str) -> None:
        self._llm = llm
        self._model = model

    async def completions(self, body: CompletionRequest, receive: Receive) -> Response:
        """POST /v1/completions."""
        self.check_model(body.model)
        body.check()
        params = body.sampling_params(self._llm.default_sampling_params())
        prompts = [await self._llm.encode(prompt) for prompt in body.prompts()]
        envelope = Envelope("text_completion", self._model, "cmpl")
        return await self._answer(Job(False, prompts, params, envelope, body.include_usage), body, receive)

    async def chat(self, body: ChatCompletionRequest, receive: Receive) -> Response:
        """POST /v1/chat/completions."""
        self.check_model(body.model)
        body.check()
        params = body.sampling_params(self._llm.default_sampling_params())
        prompt = await self._llm.encode_chat(
            body.plain_messages(),
            add_generation_prompt=body.add_generation_prompt is not False,
            variables=body.chat_template_kwargs,
        )
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        envelope = Envelope(kind, self._model, "chatcmpl")
        return await self._answer(Job(True, [prompt], params, envelope, body.include_usage), body, receive)

    def check_model(self, name: str | None) -> None:
        """`UnknownModel` if ``name`` is not the model served here; None is."""
        if name is not None and name != self._model:
            raise UnknownModel(f"the model {name!r} is not served here: use {self._model!r}")

    async def _answer(self, job: Job, body: GenerationRequest, receive: Receive) -> Response:
        limit = self._llm.info().max_model_len
        for prompt in job.prompts:
            self._llm.check(prompt, job.params)
            asked = body.answer_limit()
            if "max_tokens" in body.model_fields_set or "max_completion_tokens" in body.model_fields_set:
                _check_fits(prompt, asked, limit)
        if body.stream:
            return EventStream(self._events(job))
        return await answer_or_disconnect(receive, self._whole(job))

    async def _whole(self, job: Job) -> Response:
        async with self._admitted(job) as streams:
            outputs = await asyncio.gather(*(stream.final() for stream in streams))
        usage = Usage()
        choices = []
        for number, output in enumerate(outputs):
            count(usage, output)
            for answer in output.outputs:
                choices.append(whole_choice(answer, number * job.params.n + answer.index, chat=job.chat))
        return JSONResponse(job.envelope.body(choices, usage=usage.body()))

    async def _events(self, job: Job) -> AsyncGenerator[bytes, None]:
        usage = Usage()
        writer = ChunkWriter(job.envelope, chat=job.chat, usage=job.include_usage)
        async with self._admitted(job) as streams:
            usage.prompt_tokens = sum(len(prompt.token_ids) for prompt in job.prompts)
            async for number, output in _merged(streams):
                for answer in output.outputs:
                    usage.completion_tokens += len(answer.token_ids)
                    for chunk in writer.chunks(answer, number * job.params.n + answer.index):
                        yield event(chunk)
        if job.include_usage:
            yield event(writer.usage_chunk(usage))

    @asynccontextmanager
    async def _admitted(self, job: Job) -> AsyncIterator[list[RequestStream]]:
        """All prompts of a job in the engine; what has not finished is aborted at the end."""
        streams: list[RequestStream] = []
        try:
            for number, prompt in enumerate(job.prompts):
                request_id = f"{job.envelope.id}-{number}" if number else job.envelope.id
                streams.append(await self._llm.add_request(prompt, job.params, request_id))
            yield streams
        finally:
            for stream in streams:
                stream.abort()


def _check_fits(prompt: EncodedPrompt, max_tokens: int | None, limit: int) -> None:
    length = len(prompt.token_ids)
    if max_tokens is not None and length + max_tokens > limit:
        raise InvalidRequest(
            f"max_tokens is {max_tokens} and the prompt has {length} tokens, but the context holds {limit}: "
            f"ask for {limit - length} or less",
            "max_tokens",
        )


async def _merged(streams: Sequence[RequestStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """The results of several streams as they come, with the stream's number. The first error ends them all."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    results: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue()

    async def feed(number: int, stream: RequestStream) -> None:
        try:
            async for output in stream:
                results.put_nowait((number, output))
            results.put_nowait(None)
        except Exception as error:
            results.put_nowait(error)

    feeders = [asyncio.create_task(feed(number, stream)) for number, stream in enumerate(streams)]
    try:
        left = len(streams)
        while left:
            result = await results.get()
            if isinstance(result, Exception):
                raise result
            if result is None:
                left -= 1
            else:
                yield result
    finally:
        for feeder in feeders:
            feeder.cancel()
