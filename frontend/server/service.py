"""The two generating endpoints: from a checked request body to a response, whole or streamed.

Owned by the app; uses `AsyncLLM` for everything that is not HTTP. Whatever ends a response (its end, an
error, a client that goes away) releases every request it had admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fastapi.responses import JSONResponse, Response

from ..async_llm import AsyncLLM
from ..errors import InvalidRequest
from ..input_processor import EncodedParams, EncodedPrompt
from ..outputs import LogprobsOfToken, RequestOutput
from ..request_stream import RequestStream
from ..sampling_params import SamplingParams
from .chunks import Choice, ChunkWriter, Echo, Envelope, Style, Usage, count, without_tokens
from .delivery import EventStream, Receive, answer_or_disconnect
from .errors import UnknownModel
from .logprob_json import TokenNames, prompt_logprobs
from .protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest, plain_messages
from .sse import event

PromptLogprobs = Sequence[LogprobsOfToken | None]

_PIECE = 32  # answers that are written in one go


@dataclass(frozen=True)
class Job:
    """One checked request: prompts with the same parameters, whose answers are numbered through."""

    prompts: list[EncodedPrompt]
    encoded_params: EncodedParams
    priority: int
    envelope: Envelope
    style: Style
    include_usage: bool
    runs_usage: bool
    tells_prompt_logprobs: bool
    echoes: bool = False
    is_empty: bool = False  # answers have no tokens

    @property
    def params(self) -> SamplingParams:
        """The parameters as they were given."""
        return self.encoded_params.params


class Service:
    """``model`` is the name under which the model is served; ``most_prompts`` bounds a request's prompts times n."""

    def __init__(self, llm: AsyncLLM, model: str, most_prompts: int) -> None:
        self._llm = llm
        self._model = model
        self._most_prompts = most_prompts
        self.num_answering = 0  # HTTP requests that have requests in the engine

    async def completions(self, body: CompletionRequest, receive: Receive) -> Response:
        """POST /v1/completions."""
        return await answer_or_disconnect(receive, self._completions(body))

    async def chat(self, body: ChatCompletionRequest, receive: Receive) -> Response:
        """POST /v1/chat/completions."""
        return await answer_or_disconnect(receive, self._chat(body))

    async def _completions(self, body: CompletionRequest) -> Response:
        self._check_count(body.num_prompts(), body.n)
        params = await self._checked(body)
        add_special_tokens = body.add_special_tokens is not False
        encoded = await self._llm.encode_all(body.prompts(), add_special_tokens=add_special_tokens)
        prompts = [replace(prompt, cache_salt=body.cache_salt) for prompt in encoded]
        envelope = Envelope("text_completion", self._model, "cmpl")
        style = self._style(body, params.params, chat=False)
        job = self._job(body, prompts, params, envelope, style, echoes=bool(body.echo), is_empty=body.max_tokens == 0)
        return await self._answer(job, body)

    async def _chat(self, body: ChatCompletionRequest) -> Response:
        self._check_count(1, body.n)
        params = await self._checked(body)
        prompt = await self._llm.encode_chat(
            plain_messages(body.messages),
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=bool(body.continue_final_message),
            add_special_tokens=bool(body.add_special_tokens),
            variables=body.chat_template_kwargs,
        )
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        envelope = Envelope(kind, self._model, "chatcmpl")
        style = self._style(body, params.params, chat=True)
        job = self._job(body, [replace(prompt, cache_salt=body.cache_salt)], params, envelope, style)
        return await self._answer(job, body)

    def check_model(self, name: str | None) -> None:
        """`UnknownModel` if ``name`` is not the model served here; None is."""
        if name is not None and name != self._model:
            raise UnknownModel(f"the model {name!r} is not served here: use {self._model!r}")

    def _check_count(self, num_prompts: int, n: int | None) -> None:
        """Before anything is made for each of them."""
        if num_prompts * (n or 1) <= self._most_prompts:
            return
        text = f"{num_prompts} prompts" if num_prompts > 1 else "one prompt"
        raise InvalidRequest(
            f"the request has {text} with n={n or 1}: this server answers at most {self._most_prompts} prompts times n "
            "in one request; send several requests, or start it with a larger --max-prompts-per-request",
            "prompt" if num_prompts > 1 else "n",
        )

    async def _checked(self, body: GenerationRequest) -> EncodedParams:
        self.check_model(body.model)
        body.check()
        limit = self._llm.tokenizer.generation.defaults.get("max_tokens")
        params = body.sampling_params(replace(self._llm.default_sampling_params(), max_tokens=limit))
        try:
            return await self._llm.encode_params(params)
        except InvalidRequest as error:
            if isinstance(body, ChatCompletionRequest) and error.param == "logprobs":  # there it has another name
                raise InvalidRequest(f"top_{error}", "top_logprobs") from error
            raise

    def _style(self, body: GenerationRequest, params: SamplingParams, *, chat: bool) -> Style:
        wanted = body.wanted_logprobs()
        return Style(
            chat=chat,
            names=None
            if wanted is None
            else TokenNames(self._llm.decoder, as_ids=bool(body.return_tokens_as_token_ids)),
            top_logprobs=wanted or 0,
            skips_special=params.skip_special_tokens,
            token_ids=bool(body.return_token_ids),
        )

    def _job(
        self,
        body: GenerationRequest,
        prompts: list[EncodedPrompt],
        params: EncodedParams,
        envelope: Envelope,
        style: Style,
        *,
        echoes: bool = False,
        is_empty: bool = False,
    ) -> Job:
        """Check everything that the engine would refuse; the prompts as they will run."""
        priority = body.priority or 0
        limit = self._llm.info().max_model_len
        checked = []
        for prompt in prompts:
            prompt = self._llm.check(prompt, params, priority)
            if "max_tokens" in body.model_fields_set or "max_completion_tokens" in body.model_fields_set:
                _check_fits(prompt, body.answer_limit(), limit)
            checked.append(prompt)
        return Job(
            checked,
            params,
            priority,
            envelope,
            style,
            body.include_usage,
            body.runs_usage,
            body.prompt_logprobs is not None,
            echoes,
            is_empty,
        )

    async def _answer(self, job: Job, body: GenerationRequest) -> Response:
        return EventStream(self._events(job)) if body.stream else await self._whole(job)

    async def _whole(self, job: Job) -> Response:
        places = self._places(job)

        async def run(number: int) -> RequestOutput:
            async with places, await self._admit(job, number) as stream:
                return await stream.final()

        with self._answering():
            outputs = await _all_or_none([run(number) for number in range(len(job.prompts))])
        usage = Usage()
        choices = []
        more: dict[str, Any] = {}
        for number, (prompt, output) in enumerate(zip(job.prompts, outputs, strict=True)):
            if number % _PIECE == _PIECE - 1:
                await asyncio.sleep(0)  # other requests have their turn
            if job.is_empty:
                output = without_tokens(output)
            count(usage, output)
            about_prompt = self._about_prompt(job, output)
            echo = self._echo(job, prompt, output.prompt_logprobs) if job.echoes else None
            for answer in output.outputs:
                choice = Choice(job.style).whole(answer, number * job.params.n + answer.index, echo)
                choices.append(choice if job.style.chat else {**choice, **about_prompt})
            if job.style.chat:
                more = about_prompt
        return JSONResponse(job.envelope.body(choices, usage=usage.body(), **more))

    async def _events(self, job: Job) -> AsyncGenerator[bytes, None]:
        usage = Usage()
        lengths = [len(prompt.token_ids) for prompt in job.prompts for _ in range(job.params.n)]
        writer = ChunkWriter(
            job.envelope, job.style, usage=job.include_usage, prompt_lengths=lengths if job.runs_usage else ()
        )
        with self._answering():
            usage.prompt_tokens = sum(len(prompt.token_ids) for prompt in job.prompts)
            echoes: dict[int, Echo] = {}
            outputs = self._merged(job)
            if job.echoes and job.style.names is not None:
                outputs = _with_prompt_logprobs_first(job, outputs)
            async with aclosing(outputs):
                async for number, output in outputs:
                    prompt = job.prompts[number]
                    if job.is_empty:
                        output = without_tokens(output)
                    if job.echoes and number not in echoes:
                        echoes[number] = self._echo(job, prompt, output.prompt_logprobs)
                    prompt_token_ids = prompt.token_ids if job.style.token_ids else None
                    for answer in output.outputs:
                        usage.completion_tokens += len(answer.token_ids)
                        index = number * job.params.n + answer.index
                        for data in writer.events(answer, index, echoes.get(number), prompt_token_ids):
                            yield data
        if job.include_usage:
            yield event(writer.usage_chunk(usage))

    def _echo(self, job: Job, prompt: EncodedPrompt, told: PromptLogprobs | None) -> Echo:
        """The prompt as the model saw it: its text, unless it was given as ids or has been truncated."""
        text = prompt.text
        if text is None or prompt.is_truncated:
            text = self._llm.tokenizer.decode(prompt.token_ids, skip_special_tokens=job.params.skip_special_tokens)
        return Echo(text, prompt.token_ids, told if job.style.names is not None else None)

    def _about_prompt(self, job: Job, output: RequestOutput) -> dict[str, Any]:
        """vLLM's extensions, where they were asked for."""
        found: dict[str, Any] = {}
        if job.style.token_ids:
            found["prompt_token_ids"] = output.prompt_token_ids
        if job.tells_prompt_logprobs and output.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return found

    @contextmanager
    def _answering(self) -> Iterator[None]:
        self.num_answering += 1
        try:
            yield
        finally:
            self.num_answering -= 1

    def _places(self, job: Job) -> asyncio.Semaphore:
        """As many prompts as the engine can run are in it at a time: behind them other requests have their turn."""
        return asyncio.Semaphore(max(1, self._llm.info().max_num_seqs // job.params.n))

    async def _admit(self, job: Job, number: int) -> RequestStream:
        """The answers of one of the job's prompts. Whoever takes it must leave it."""
        request_id = f"{job.envelope.id}-{number}" if number else job.envelope.id
        return await self._llm.add_request(job.prompts[number], job.encoded_params, request_id, priority=job.priority)

    async def _merged(self, job: Job) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """The results of all prompts as they come, with the prompt's number. The first error ends them all.

        Bounded: results that are not taken merge in their streams.
        """
        if len(job.prompts) == 1:
            async with await self._admit(job, 0) as stream:
                async for output in stream:
                    yield 0, output
            return
        places = self._places(job)
        results: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue(len(job.prompts))

        async def feed(number: int) -> None:
            try:
                async with places, await self._admit(job, number) as stream:
                    async for output in stream:
                        await results.put((number, output))
                await results.put(None)
            except Exception as error:
                await results.put(error)

        feeders = [asyncio.create_task(feed(number)) for number in range(len(job.prompts))]
        try:
            left = len(feeders)
            while left:
                result = await results.get()
                if isinstance(result, Exception):
                    raise result
                if result is None:
                    left -= 1
                else:
                    yield result
        finally:
            await _cancel(feeders)


async def _all_or_none(work: list[Coroutine[Any, Any, RequestOutput]]) -> list[RequestOutput]:
    """All results; the first error, or a cancellation, ends the others before it goes on."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """End tasks and wait for it, so that their requests are aborted before we return."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _check_fits(prompt: EncodedPrompt, max_tokens: int | None, limit: int) -> None:
    length = len(prompt.token_ids)
    if max_tokens is not None and length + max_tokens > limit:
        raise InvalidRequest(
            f"max_tokens is {max_tokens} and the prompt has {length} tokens, but the context holds {limit}: "
            f"ask for {limit - length} or less",
            "max_tokens",
        )


async def _with_prompt_logprobs_first(
    job: Job, outputs: AsyncGenerator[tuple[int, RequestOutput], None]
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Hold what comes before an echo's log-probabilities: one of n answers computes them, others may be faster."""
    held: dict[int, list[RequestOutput]] = {}
    waiting = set(range(len(job.prompts)))
    async with aclosing(outputs):
        async for number, output in outputs:
            if number in waiting and output.prompt_logprobs is None:
                held.setdefault(number, []).append(output)
                continue
            waiting.discard(number)
            for earlier in held.pop(number, ()):
                yield number, replace(earlier, prompt_logprobs=output.prompt_logprobs)
            yield number, output
        for number, earlier_ones in held.items():
            for earlier in earlier_ones:
                yield number, earlier
