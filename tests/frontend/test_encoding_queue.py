"""Tokenising beside the loop: in batches, each with its own result or error, whatever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from ringcast.frontend.encoding_queue import EncodingQueue
from ringcast.frontend.errors import FrontendError, InvalidRequest
from ringcast.frontend.input_processor import ChatPrompt, EncodedPrompt, EncodeJob, InputProcessor
from ringcast.frontend.tokenizer import Tokenizer


class SlowProcessor(InputProcessor):
    """Waits for ``gate`` before each batch and remembers how many jobs each had."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.gate = threading.Event()
        self.batches: list[int] = []
        self.threads: set[int] = set()

    def encode_all(self, jobs: Sequence[EncodeJob]) -> list[EncodedPrompt | FrontendError]:
        self.threads.add(threading.get_ident())
        self.batches.append(len(jobs))
        self.gate.wait(10)
        return super().encode_all(jobs)


def _jobs(count: int) -> list[EncodeJob]:
    return [EncodeJob(f"number {index}", True) for index in range(count)]


async def test_what_gathers_while_threads_are_busy_is_one_batch(smollm2: Tokenizer) -> None:
    processor = SlowProcessor(smollm2)
    queue = EncodingQueue(processor)
    tasks = [asyncio.create_task(queue.encode(job)) for job in _jobs(200)]
    while len(processor.batches) < 2:
        await asyncio.sleep(0.001)  # the loop runs on
    processor.gate.set()
    prompts = await asyncio.gather(*tasks)
    assert [prompt.token_ids for prompt in prompts] == [smollm2.encode(f"number {index}") for index in range(200)]
    assert processor.batches == [64, 64, 64, 8]
    assert threading.get_ident() not in processor.threads


async def test_bad_jobs_fail_alone(smollm2: Tokenizer) -> None:
    queue = EncodingQueue(InputProcessor(smollm2))
    chat = ChatPrompt([{"role": "user", "content": "Hi"}])
    jobs = [
        EncodeJob("fine", True), EncodeJob("a\ud800", True), EncodeJob("", True), EncodeJob([5, -1], True),
        EncodeJob([5, 6], True), EncodeJob(chat, False), EncodeJob(ChatPrompt([]), False), EncodeJob("good", False),
    ]  # fmt: skip
    results = await asyncio.gather(*map(queue.encode, jobs), return_exceptions=True)
    texts = [result.text if isinstance(result, EncodedPrompt) else str(result) for result in results]
    assert texts[0] == "fine"
    assert "not valid Unicode" in str(texts[1])
    assert "prompt is empty" in str(texts[2])
    assert "holds -1" in str(texts[3])
    assert isinstance(results[4], EncodedPrompt) and results[4].token_ids == [5, 6]
    assert texts[5] == smollm2.render_chat(chat.messages)
    assert isinstance(results[6], InvalidRequest) and results[6].param == "messages"
    assert isinstance(results[7], EncodedPrompt) and results[7].token_ids == smollm2.encode("good")


async def test_cancelled_jobs_are_not_worked_on_and_disturb_nobody(smollm2: Tokenizer) -> None:
    processor = SlowProcessor(smollm2)
    queue = EncodingQueue(processor)
    first = [asyncio.create_task(queue.encode(job)) for job in _jobs(130)]
    while len(processor.batches) < 2:
        await asyncio.sleep(0.001)
    for task in first[::2]:
        task.cancel()
    processor.gate.set()
    results = await asyncio.gather(*first, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert all(isinstance(result, EncodedPrompt) for result in results[1::2])
    assert processor.batches == [64, 64, 1]


async def test_a_defect_reaches_everybody_who_waits(smollm2: Tokenizer) -> None:
    class Broken(InputProcessor):
        def encode_all(self, jobs: object) -> list[EncodedPrompt | FrontendError]:
            raise ZeroDivisionError("a defect")

    queue = EncodingQueue(Broken(smollm2))
    for _ in range(2):  # and the queue goes on
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(queue.encode(EncodeJob("x", True)), 5)


async def test_a_prompt_that_comes_in_the_moment_when_all_threads_end_is_taken(smollm2: Tokenizer) -> None:
    processor = SlowProcessor(smollm2)
    queue = EncodingQueue(processor)

    async def twice(job: EncodeJob) -> EncodedPrompt:
        await queue.encode(job)
        return await queue.encode(job)  # before anything else that the end of the first made due

    first, second = _jobs(2)
    tasks = []
    for count, work in enumerate((twice(first), queue.encode(second)), 1):
        tasks.append(asyncio.create_task(work))
        while len(processor.batches) < count:
            await asyncio.sleep(0.001)
    processor.gate.set()
    time.sleep(0.2)  # both threads end while the loop is away: it hears of both at once
    prompts = await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert [prompt.text for prompt in prompts] == ["number 0", "number 1"]
