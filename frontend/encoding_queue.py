"""Tokenising off the event loop, all that waits in one go. `AsyncLLM` owns one; the work itself is `InputProcessor`'s.

While a thread is busy requests gather; the next thread takes them together, so that a crowd of short prompts costs one
change of threads and one call into the tokenizer, which works without the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .input_processor import EncodedPrompt, EncodeJob, InputProcessor

_BATCH = 64  # prompts that one thread takes together
_THREADS = 2  # so that a very long prompt does not hold up short ones


class EncodingQueue:
    """Belongs to one event loop. Jobs start in the order in which they came."""

    def __init__(self, processor: InputProcessor) -> None:
        self._processor = processor
        self._waiting: deque[tuple[EncodeJob, asyncio.Future[EncodedPrompt]]] = deque()
        self._runners: set[asyncio.Task[None]] = set()

    async def encode(self, job: EncodeJob) -> EncodedPrompt:
        """The prompt of ``job``, or its own error. One that is cancelled while it waits is not worked on."""
        result: asyncio.Future[EncodedPrompt] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, result))
        if len(self._runners) < _THREADS:
            runner = asyncio.create_task(self._run(), name="tokenise")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)  # if it is cancelled before it runs
        return await result

    async def _run(self) -> None:
        try:
            await self._work()
        finally:
            # In the same step as the last look at what waits: a runner that was counted a moment longer, as by a
            # done-callback, would let a job wait for nobody.
            runner = asyncio.current_task()
            assert runner is not None
            self._runners.discard(runner)

    async def _work(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            batch = [(job, result) for job, result in batch if not result.done()]
            try:
                prompts = await asyncio.to_thread(self._processor.encode_all, [job for job, _ in batch])
            except asyncio.CancelledError:  # the end of the loop
                for _, result in batch:
                    result.cancel()
                raise
            except Exception as error:  # a defect of ours: nobody may wait for ever
                for _, result in batch:
                    if not result.done():
                        result.set_exception(error)
                continue
            for (_, result), prompt in zip(batch, prompts, strict=True):
                if result.done():
                    continue
                if isinstance(prompt, Exception):
                    result.set_exception(prompt)
                else:
                    result.set_result(prompt)
