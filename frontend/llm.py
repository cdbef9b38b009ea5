"""`LLM`: the engine for synchronous programs, scripts and notebooks, with vLLM's names. Prompts in, results out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard, TypeVar

from .async_llm import AsyncLLM
from .engine_args import EngineArgs
from .errors import InvalidRequest
from .input_processor import EncodedPrompt, Message, Prompt
from .outputs import RequestOutput
from .progress import request_progress
from .request_stream import RequestStream
from .sampling_params import RequestOutputKind, SamplingParams
from .sync_engine import SyncEngine

T = TypeVar("T")
Params = SamplingParams | Sequence[SamplingParams] | None
Encoder = Callable[[], Awaitable[EncodedPrompt]]


class LLM(SyncEngine):
    """An engine that is ready when the constructor returns. Close it, or use ``with``, or let the program end.

    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        num_threads: int | None = None,
        enable_prefix_caching: bool = True,
        scheduling_policy: str = "fcfs",
        max_logprobs: int = 20,
        quantization: str = "none",
        stall_after: float = 10.0,
        restart_stalled: float | None = None,
    ) -> None:
        """The arguments are those of `EngineArgs`; errors are those of `AsyncLLM.start`."""
        args = EngineArgs(
            model=model,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            num_kv_blocks=num_kv_blocks,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            num_threads=num_threads,
            enable_prefix_caching=enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            max_logprobs=max_logprobs,
            quantization=quantization,
            stall_after=stall_after,
            restart_stalled=restart_stalled,
        )
        super().__init__(args)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        add_special_tokens: bool = True,
    ) -> list[RequestOutput]:
        """Results in the order of the prompts; all run at the same time.

        A prompt is a text, a list of token ids, or a mapping with ``prompt`` or ``prompt_token_ids`` (and
        ``cache_salt``); a list holds several (an empty one gives an empty result). ``sampling_params`` are for all, or
        one per prompt; None takes the model's defaults; ``priority`` likewise (lower goes first; needs the engine's
        ``scheduling_policy="priority"``). ``use_tqdm`` shows a bar where stderr is a terminal. Texts get the model's
        special tokens, unless ``add_special_tokens`` is False. The first error aborts the rest: `InvalidRequest`
        before anything runs, `EngineError` later. KeyboardInterrupt aborts all.
        """
        batch: list[Prompt] = [prompts] if _is_single_prompt(prompts) else _as_list("prompts", prompts, "a prompt")
        encoders = [partial(self._llm.encode, prompt, add_special_tokens=add_special_tokens) for prompt in batch]
        return self._run(encoders, sampling_params, priority, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Like `generate`, for one conversation or a list of them: the model's template makes the prompts.

        ``continue_final_message``, with ``add_generation_prompt`` False: answers go on where the last message ends.
        """
        single = not messages or isinstance(messages[0], Mapping)
        batch: Sequence[Any] = [messages] if single else messages
        encoders = [
            partial(
                self._llm.encode_chat,
                chat,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=chat_template_kwargs,
            )
            for chat in batch
        ]
        return self._run(encoders, sampling_params, priority, use_tqdm)

    def _run(
        self, encoders: Sequence[Encoder], params: Params, priority: int | Sequence[int] | None, show: bool
    ) -> list[RequestOutput]:
        if params is None:
            params = self._llm.default_sampling_params()
        each = _one_each("sampling_params", params, SamplingParams, len(encoders))
        final = {id(item): replace(item, output_kind=RequestOutputKind.FINAL_ONLY) for item in each}
        each = [final[id(item)] for item in each]
        priorities = _one_each("priority", priority or 0, int, len(encoders))
        with request_progress(len(encoders), show) as advance:
            return self._thread.run(_run_batch(self._llm, encoders, each, priorities, advance))


def _one_each(name: str, value: T | Sequence[T], kind: type[T], count: int) -> list[T]:
    """``value`` for each of ``count`` prompts, or a list of as many."""
    items = [value] * count if isinstance(value, kind) else _as_list(name, value, f"a {kind.__name__}")
    for item in items:
        if not isinstance(item, kind):
            raise InvalidRequest(f"{name} holds a {type(item).__name__}: each must be a {kind.__name__}", name)
    if len(items) != count:
        raise InvalidRequest(f"{name} has {len(items)} entries for {count} prompts: give one, or one per prompt", name)
    return items


def _as_list(name: str, value: Any, one: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{name} is a {type(value).__name__}: give {one}, or a list of them", name)
    return list(value)


async def _run_batch(
    llm: AsyncLLM,
    encoders: Sequence[Encoder],
    params: list[SamplingParams],
    priorities: list[int],
    advance: Callable[[], None],
) -> list[RequestOutput]:
    """Check everything, then run everything; abort what is left when something fails."""
    prompts = await asyncio.gather(*(encode() for encode in encoders))
    encoded = {id(item): item for item in params}  # most often one for all
    rules = dict(zip(encoded, await asyncio.gather(*map(llm.encode_params, encoded.values())), strict=True))
    batch = list(zip(prompts, [rules[id(item)] for item in params], priorities, strict=True))
    for prompt, each, priority in batch:
        llm.check(prompt, each, priority)
    streams: list[RequestStream] = []
    try:
        for prompt, each, priority in batch:
            streams.append(await llm.add_request(prompt, each, priority=priority))
        return await asyncio.gather(*(_finish(stream, advance) for stream in streams))
    finally:
        for stream in streams:
            stream.abort()


async def _finish(stream: RequestStream, advance: Callable[[], None]) -> RequestOutput:
    output = await stream.final()
    advance()
    return output


def _is_single_prompt(prompts: object) -> TypeGuard[Prompt]:
    """A text, a mapping, or a list of token ids."""
    if isinstance(prompts, str | Mapping):
        return True
    return isinstance(prompts, list | tuple) and len(prompts) > 0 and isinstance(prompts[0], int)
