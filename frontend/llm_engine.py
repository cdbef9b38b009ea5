"""`LLMEngine`: vLLM's synchronous engine, driven step by step, for scripts with a loop of their own.

The engine computes ahead in its own processes; a step takes what it has for each request. What is not taken yet merges,
so a slow loop costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from .async_llm import AsyncLLM
from .errors import InvalidRequest
from .input_processor import Prompt
from .outputs import RequestOutput
from .request_stream import RequestStream
from .sampling_params import SamplingParams
from .sync_engine import SyncEngine


@dataclass(slots=True)
class _Live:
    """A request that has not finished, and the wait for its next result while there is one."""

    stream: RequestStream
    next: asyncio.Task[RequestOutput] | None = None


class LLMEngine(SyncEngine):
    """Add requests at any time, and take results step by step.

    >>> engine = LLMEngine.from_engine_args(EngineArgs(model="smollm2"))
    >>> engine.add_request("0", "The capital of France is", SamplingParams(temperature=0))
    >>> while engine.has_unfinished_requests():
    ...     for output in engine.step():
    ...         if output.finished:
    ...             print(output.request_id, output.outputs[0].text)
    """

    def _open(self, llm: AsyncLLM) -> None:
        self._live: dict[str, _Live] = {}
        super()._open(llm)

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> None:
        """Admit a request: text, token ids, or a mapping as for `LLM.generate`. It runs from now on.

        ``params`` None takes the model's defaults; its ``output_kind`` says what `step` gives. ``priority``: lowest
        first, with the engine's ``scheduling_policy="priority"``. `InvalidRequest` for what the engine cannot do, and
        for the id of a request that has not finished; then nothing is added.
        """
        if not isinstance(request_id, str):
            raise InvalidRequest(f"request_id must be a string, not {type(request_id).__name__}", "request_id")
        if request_id in self._live:
            raise InvalidRequest(
                f"request {request_id!r} has not finished yet: give each request an id of its own", "request_id"
            )
        stream = self._thread.run(self._llm.add_request(prompt, params, request_id, priority=priority))
        self._live[request_id] = _Live(stream)

    def step(self) -> list[RequestOutput]:
        """Wait until a request has news; one result for each that has, in the order in which they were added.

        Empty, at once, if none is unfinished. A request that fails in the engine ends: its `EngineError` is raised, and
        what others had to tell comes with the next step. KeyboardInterrupt only ends the waiting.
        """
        return self._thread.run(self._step())

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has results to come."""
        return bool(self._live)

    def get_num_unfinished_requests(self) -> int:
        """How many requests have results to come."""
        return len(self._live)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Give requests up: no more results come of them. Ids of what is unknown or has finished are fine."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        self._thread.run(self._abort(ids))

    async def _step(self) -> list[RequestOutput]:
        if not self._live:
            return []
        for live in self._live.values():
            if live.next is None:
                live.next = asyncio.ensure_future(anext(live.stream))
                live.next.add_done_callback(_look_at)
        await asyncio.wait(
            [live.next for live in self._live.values() if live.next is not None], return_when=asyncio.FIRST_COMPLETED
        )
        ready = [(name, live.next) for name, live in self._live.items() if live.next is not None and live.next.done()]
        for name, task in ready:
            if task.exception() is not None:
                del self._live[name]
                task.result()  # raises it
        outputs = []
        for name, task in ready:
            outputs.append(task.result())
            self._live[name].next = None
            if outputs[-1].finished:
                del self._live[name]
        return outputs

    async def _abort(self, request_ids: list[str]) -> None:
        for live in [self._live.pop(name) for name in request_ids if name in self._live]:
            if live.next is not None:
                live.next.cancel()
                await asyncio.wait([live.next])
            live.stream.abort()


def _look_at(task: asyncio.Task[RequestOutput]) -> None:
    """What nobody steps for any more, since the engine is closed, shall not be reported as an error overlooked."""
    if not task.cancelled():
        task.exception()
