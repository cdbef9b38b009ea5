"""Tokenising off the event loop: texts, chats, parameters' words. `AsyncLLM` owns one; `InputProcessor` does the work.

A request's jobs go in pieces, and requests take turns: one with a thousand prompts does not delay another's only one.
What gathers while the threads are busy goes together, so that a crowd of short prompts costs one change of threads and
one call into the tokenizer, which works without the interpreter's lock. Long texts have a thread of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .errors import EngineNotReady, TokenizerFailed
from .input_processor import EncodedParams, EncodedPrompt, EncodeJob, InputProcessor, ParamsJob
from .threads import in_thread

Job = EncodeJob | ParamsJob
Result = EncodedPrompt | EncodedParams | Exception
Work = Callable[[Sequence[Job]], list[Result]]

_BATCH = 64  # jobs that one thread takes together,
_BATCH_SIZE = 1 << 16  # and about how many characters: some 20 ms
_LONG = 1 << 14  # characters; a longer text cannot be cut, and would hold up the short ones
_THREADS = 2  # for short texts


class EncodingQueue:
    """Belongs to one event loop. Within a request jobs start in their order."""

    def __init__(self, processor: InputProcessor) -> None:
        def work(jobs: Sequence[Job]) -> list[Result]:
            return _results(processor, jobs)

        self._short = _Lane(work, _THREADS, _BATCH)
        self._long = _Lane(work, 1, 1)

    async def encode(self, job: EncodeJob) -> EncodedPrompt:
        """The prompt of ``job``, or its own error."""
        (prompt,) = await self._run([job])
        return prompt  # type: ignore[no-any-return]

    async def encode_all(self, jobs: Sequence[EncodeJob]) -> list[EncodedPrompt]:
        """One request's prompts, in their order; the first error to be found ends the rest."""
        return await self._run(jobs)

    async def encode_params(self, job: ParamsJob) -> EncodedParams:
        """The parameters of ``job``, or what is wrong with them."""
        (params,) = await self._run([job])
        return params  # type: ignore[no-any-return]

    async def _run(self, jobs: Sequence[Job]) -> list[Any]:
        """Results of one request's jobs. When it is cancelled, what has not begun is not worked on."""
        if not jobs:
            return []
        request = _Request(jobs)
        is_long = [job.size() > _LONG for job in jobs]
        for lane, kind in ((self._short, False), (self._long, True)):
            if places := deque(place for place, long in enumerate(is_long) if long is kind):
                lane.add(request, places)
        return await request.all_done


class _Request:
    """The jobs of one request, and what has come of them."""

    __slots__ = ("_num_left", "_results", "all_done", "jobs")

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.all_done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._results: list[Result | None] = [None] * len(jobs)
        self._num_left = len(jobs)

    def finish(self, place: int, result: Result) -> None:
        """Keep one job's result; the last one, and an error, is told."""
        if self.all_done.done():
            return
        if isinstance(result, Exception):
            self.all_done.set_exception(result)
            return
        self._results[place] = result
        self._num_left -= 1
        if not self._num_left:
            self.all_done.set_result(self._results)


class _Lane:
    """Requests that take turns, one job each, for a number of threads, each of which takes a number of jobs."""

    def __init__(self, work: Work, num_threads: int, most_jobs: int) -> None:
        self._work = work
        self._num_threads = num_threads
        self._most_jobs = most_jobs
        self._waiting: deque[tuple[_Request, deque[int]]] = deque()  # with the places of jobs that have not begun
        self._runners: set[asyncio.Task[None]] = set()

    def add(self, request: _Request, places: deque[int]) -> None:
        """Work on the jobs at ``places``, when it is their turn."""
        self._waiting.append((request, places))
        num_batches = -(-len(places) // self._most_jobs)
        for _ in range(min(num_batches, self._num_threads - len(self._runners))):
            runner = asyncio.create_task(self._run(), name="tokenise")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)  # if it is cancelled before it runs

    async def _run(self) -> None:
        try:
            while batch := self._next_batch():
                await self._work_on(batch)
        finally:
            # In the same step as the last look at what waits: a runner that was counted a moment longer, as by a
            # done-callback, would let a job wait for nobody.
            runner = asyncio.current_task()
            assert runner is not None
            self._runners.discard(runner)

    def _next_batch(self) -> list[tuple[_Request, int]]:
        """Jobs of the requests whose turn it is. Those of requests that were given up or have failed are dropped."""
        batch: list[tuple[_Request, int]] = []
        size = 0
        while self._waiting and len(batch) < self._most_jobs and size < _BATCH_SIZE:
            request, places = self._waiting.popleft()
            if request.all_done.done():
                continue
            place = places.popleft()
            batch.append((request, place))
            size += request.jobs[place].size()
            if places:
                self._waiting.append((request, places))
        return batch

    async def _work_on(self, batch: list[tuple[_Request, int]]) -> None:
        try:
            results = await in_thread(self._work, [request.jobs[place] for request, place in batch])
        except asyncio.CancelledError:  # the end of the loop
            for request, _ in batch:
                request.all_done.cancel()
            raise
        except EngineNotReady as error:
            results = [error] * len(batch)
        for (request, place), result in zip(batch, results, strict=True):
            request.finish(place, result)


def _results(processor: InputProcessor, jobs: Sequence[Job]) -> list[Result]:
    """Each job's result or error. On a thread: whatever is raised, even a BaseException, is one job's fault alone."""
    prompts = [job for job in jobs if isinstance(job, EncodeJob)]
    try:
        encoded = iter(processor.encode_all(prompts) if prompts else ())
        return [
            next(encoded) if isinstance(job, EncodeJob) else processor.encode_params(job.params, job.info)
            for job in jobs
        ]
    except BaseException as error:
        if len(jobs) > 1:
            return [result for job in jobs for result in _results(processor, [job])]
        return [error if isinstance(error, Exception) else _as_failure(error)]


def _as_failure(error: BaseException) -> TokenizerFailed:
    failure = TokenizerFailed(f"tokenising failed with {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
