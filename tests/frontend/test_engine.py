"""The engine's actors in real processes, with a worker that counts: start, requests, deaths, restarts, the end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
from counting_worker import CORE_KILLER, CountingWorker

import ringcast.actors as rt
from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine import CORE, WORKER, Engine, reason
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import EngineError, EngineNotReady, EngineStartFailed
from ringcast.frontend.request_stream import RequestStream
from ringcast.frontend.sampling_params import RequestOutputKind, SamplingParams
from ringcast.frontend.tokenizer import Tokenizer

ARGS = EngineArgs(max_num_seqs=8)
LONG = SamplingParams(max_tokens=200, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA)


def _engine(step_s: float = 0.0, start_error: str = "", args: EngineArgs = ARGS, core_wait_s: float = 30.0) -> Engine:
    return Engine(rt.spec(CountingWorker, step_s, start_error), args, core_wait_s=core_wait_s)


@pytest.fixture
async def llm(leak_oracle: None, smollm2: Tokenizer) -> AsyncIterator[AsyncLLM]:
    """Steps take 10 ms, so that there is something to disturb."""
    async with AsyncLLM.from_parts(ARGS, _engine(step_s=0.01), smollm2) as llm:
        yield llm


def _engine_of(llm: AsyncLLM) -> Engine:
    engine = llm._running().engine
    assert isinstance(engine, Engine)
    return engine


def _pids(llm: AsyncLLM) -> dict[str, int]:
    return _engine_of(llm).pids()


async def _until(llm: AsyncLLM, state: str, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while llm.health().state != state:
            await asyncio.sleep(0.005)


async def _works(llm: AsyncLLM) -> None:
    stream = await llm.add_request([5], SamplingParams(max_tokens=3, output_kind=RequestOutputKind.FINAL_ONLY))
    assert (await stream.final()).outputs[0].token_ids == [6, 7, 8]


async def test_tokens_come_over_the_rings_in_order(llm: AsyncLLM) -> None:
    streams = [await llm.add_request([100 * index], LONG) for index in range(1, 6)]
    for index, stream in enumerate(streams, 1):
        tokens = [token async for output in stream for token in output.outputs[0].token_ids]
        assert tokens == list(range(100 * index + 1, 100 * index + 201))
    figures = await llm.ring_figures()
    assert figures.messages > 400
    assert figures.overflows == 0
    statistics = await llm.statistics()
    assert (statistics.num_running, statistics.num_free_blocks) == (0, statistics.num_blocks)


async def test_thousands_of_tiny_requests_neither_stall_nor_leak(leak_oracle: None, smollm2: Tokenizer) -> None:
    params = SamplingParams(max_tokens=4, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    memory = []

    async def client(number: int, count: int) -> None:
        for index in range(count):
            stream = await llm.add_request([10 * number, index], params)
            if index % 7 == 3:
                stream.abort()
                continue
            tokens = (await stream.final()).outputs[0].token_ids
            assert tokens == [index + 1, index + 2, index + 3, index + 4]

    async with AsyncLLM.from_parts(ARGS, _engine(), smollm2) as llm:
        processes = [psutil.Process(pid) for pid in (os.getpid(), *_pids(llm).values())]
        for _ in range(3):
            async with asyncio.timeout(40):
                await asyncio.gather(*(client(number, 50) for number in range(40)))
            memory.append([process.memory_info().rss for process in processes])
        await _works(llm)
        statistics = await llm.statistics()
        assert (statistics.num_running, statistics.num_waiting) == (0, 0)
        assert statistics.num_free_blocks == statistics.num_blocks
    grown = [after - before for before, after in zip(memory[1], memory[2], strict=True)]
    assert all(size < 3 << 20 for size in grown), grown  # the ring of the worker's spare, 2 MiB, may come in between


async def test_an_aborted_request_frees_its_blocks(llm: AsyncLLM) -> None:
    stream = await llm.add_request([5], LONG)
    await anext(stream)
    stream.abort()
    await _works(llm)
    statistics = await llm.statistics()
    assert (statistics.num_running, statistics.num_free_blocks) == (0, statistics.num_blocks)


async def test_limits_come_from_the_core(llm: AsyncLLM) -> None:
    info = llm.info()
    assert (info.max_model_len, info.vocab_size, info.max_num_seqs) == (256, 49152, 8)


async def _rest(stream: RequestStream) -> list[int]:
    return [token async for output in stream for token in output.outputs[0].token_ids]


async def _whole(llm: AsyncLLM, prompt: int) -> list[int]:
    return await _rest(await llm.add_request([prompt], LONG))


async def test_death_of_the_core_pauses_streams_that_then_go_on_to_the_token(llm: AsyncLLM) -> None:
    streams = [await llm.add_request([100 * index], LONG) for index in range(1, 13)]  # more than run at a time
    first = [list((await anext(stream)).outputs[0].token_ids) for stream in streams[:8]]
    before = _pids(llm)
    os.kill(before[CORE], signal.SIGKILL)
    await _until(llm, "restarting")
    assert "the engine core died" in llm.health().detail
    assert "SIGKILL" in llm.health().detail
    with pytest.raises(EngineNotReady, match="restarting"):
        await llm.statistics()
    assert llm.info().max_model_len == 256, "limits are known meanwhile"
    meanwhile = await llm.add_request([5000], LONG)
    assert llm.health().state == "ready", "it waited for the successor"
    streams[3].abort()
    for index, stream in enumerate(streams, 1):
        if index != 4:
            tokens = (first[index - 1] if index <= 8 else []) + await _rest(stream)
            assert tokens == list(range(100 * index + 1, 100 * index + 201))
    assert await _rest(meanwhile) == list(range(5001, 5201))
    after = _pids(llm)
    assert after[WORKER] == before[WORKER], "the worker keeps its process"
    assert after[CORE] != before[CORE]
    statistics = await llm.statistics()
    assert (statistics.num_running, statistics.num_waiting) == (0, 0)
    assert (statistics.num_failed, statistics.num_free_blocks) == (0, statistics.num_blocks)
    assert len(_engine_of(llm)._journal) == 0


async def test_a_request_given_up_while_the_core_is_gone_never_reaches_its_successor(llm: AsyncLLM) -> None:
    streams = [await llm.add_request([100 * index], LONG) for index in range(1, 4)]
    await anext(streams[0])
    os.kill(_pids(llm)[CORE], signal.SIGKILL)
    await _until(llm, "restarting")
    waiting = asyncio.create_task(llm.add_request([5000], LONG))
    await asyncio.sleep(0.01)
    waiting.cancel()
    for stream in streams:
        stream.abort()
    await _until(llm, "ready")
    await _works(llm)
    assert (await llm.statistics()).num_finished == 1


async def test_a_request_does_not_wait_for_a_core_for_ever(leak_oracle: None, smollm2: Tokenizer) -> None:
    engine = _engine(step_s=0.01, core_wait_s=0.02)
    async with AsyncLLM.from_parts(ARGS, engine, smollm2) as llm:
        stream = await llm.add_request([5], LONG)
        os.kill(_pids(llm)[CORE], signal.SIGKILL)
        await _until(llm, "restarting")
        with pytest.raises(EngineNotReady, match=r"has not come back within 0\.02 s.*SIGKILL.*try again"):
            await llm.add_request([6], LONG)
        assert await _rest(stream) == list(range(6, 206)), "those that were in go on all the same"


async def test_a_core_that_dies_again_and_again_is_the_end_of_all_requests(llm: AsyncLLM) -> None:
    ended = asyncio.create_task(llm.wait_dead())
    requests = [asyncio.create_task(_whole(llm, 5))]
    async with asyncio.timeout(60):
        while not ended.done():
            pid = _pids(llm).get(CORE)
            if pid is not None:
                os.kill(pid, signal.SIGSEGV)
            await asyncio.sleep(0.02)
            if llm.health().state == "restarting":
                requests.append(asyncio.create_task(_whole(llm, 6)))
    assert "the engine core is gone for good" in ended.result()
    errors = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(error, EngineError) for error in errors), errors
    assert "gone for good" in str(errors[-1])
    with pytest.raises(EngineNotReady, match="gone for good"):
        await llm.add_request([6], LONG)


async def test_a_request_that_kills_the_core_is_quarantined_and_the_others_go_on(
    leak_oracle: None, smollm2: Tokenizer
) -> None:
    """The worker kills the core each time it is given that prompt."""
    args = EngineArgs(max_num_seqs=8)
    async with AsyncLLM.from_parts(args, _engine(step_s=0.005, args=args), smollm2) as llm:
        others = [await llm.add_request([100 * index], LONG) for index in range(1, 4)]
        await anext(others[0])
        killer = await llm.add_request([13, CORE_KILLER], LONG)
        with pytest.raises(EngineError, match="the engine core died 3 times.*ran alone.*SIGSEGV.*not tried again"):
            await _rest(killer)
        for index, stream in enumerate(others, 1):
            tokens = await _rest(stream)
            assert tokens[-1] == 100 * index + 200
        assert llm.health().state == "ready"
        await _works(llm)


async def test_death_of_the_worker_pauses_streams_that_then_go_on_to_the_token(llm: AsyncLLM) -> None:
    streams = [await llm.add_request([100 * index], LONG) for index in range(1, 4)]
    tokens = [list((await anext(stream)).outputs[0].token_ids) for stream in streams]
    before = _pids(llm)
    os.kill(before[WORKER], signal.SIGKILL)
    await _until(llm, "restarting")
    assert "the worker died" in llm.health().detail
    for index, stream in enumerate(streams, 1):
        tokens[index - 1] += [token async for output in stream for token in output.outputs[0].token_ids]
        assert tokens[index - 1] == list(range(100 * index + 1, 100 * index + 201))
    assert llm.health().state == "ready"
    assert _pids(llm)[CORE] == before[CORE], "the core keeps its process"


async def test_death_of_both_at_once_is_a_pause_too(llm: AsyncLLM) -> None:
    stream = await llm.add_request([5], LONG)
    first = (await anext(stream)).outputs[0].token_ids
    for pid in _pids(llm).values():
        os.kill(pid, signal.SIGKILL)
    await _until(llm, "restarting")
    assert first + await _rest(stream) == list(range(6, 206))
    await _until(llm, "ready")
    await _works(llm)


async def test_a_worker_that_dies_again_and_again_is_the_end(llm: AsyncLLM) -> None:
    ended = asyncio.create_task(llm.wait_dead())
    async with asyncio.timeout(60):
        while not ended.done():
            pid = _pids(llm).get(WORKER)
            if pid is not None:
                os.kill(pid, signal.SIGSEGV)
            await asyncio.sleep(0.02)
    assert "the worker is gone for good" in ended.result()
    assert llm.health().state == "dead"
    with pytest.raises(EngineNotReady, match="gone for good"):
        await llm.add_request([5])


async def test_closing_with_live_requests_leaves_nothing(leak_oracle: None, smollm2: Tokenizer) -> None:
    llm = AsyncLLM.from_parts(ARGS, _engine(step_s=0.01), smollm2)
    await llm.start()
    stream = await llm.add_request([5], LONG)
    await anext(stream)
    await llm.close()
    with pytest.raises(EngineNotReady, match="closed"):
        await stream.final()


async def test_a_worker_that_cannot_start_is_told_in_its_own_words(leak_oracle: None, smollm2: Tokenizer) -> None:
    llm = AsyncLLM.from_parts(ARGS, _engine(start_error="the disk is full"), smollm2)
    with pytest.raises(EngineStartFailed, match="worker-0 failed: ValueError: the disk is full") as caught:
        await llm.start()
    assert "\n" not in str(caught.value)
    assert llm.health().state == "dead"


async def test_settings_that_do_not_fit_are_told_by_the_core(leak_oracle: None, smollm2: Tokenizer) -> None:
    args = EngineArgs(max_model_len=1000)
    llm = AsyncLLM.from_parts(args, _engine(args=args), smollm2)
    with pytest.raises(EngineStartFailed, match="max_model_len=1000 is more than the model's context of 256"):
        await llm.start()


async def test_cancelling_the_start_leaves_nothing(leak_oracle: None, smollm2: Tokenizer) -> None:
    llm = AsyncLLM.from_parts(ARGS, _engine(), smollm2)
    starting = asyncio.create_task(llm.start())
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await llm.close()


def test_the_reason_of_a_death_is_one_line() -> None:
    own = rt.Cause("exit code 1", traceback="Traceback:\n  File x\nringcast.scheduler.errors.ConfigError: too big\n")
    assert reason(own) == "too big"
    foreign = rt.Cause("exit code 1", traceback="Traceback:\n  File x\nValueError: too big\n")
    assert reason(foreign) == "ValueError: too big"
    assert reason(rt.Cause("killed by signal 9 (SIGKILL)")) == "killed by signal 9 (SIGKILL)"
