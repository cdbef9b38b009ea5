"""B7: health tells the truth about a worker or core that hangs without dying, and says so once in the log."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
from counting_worker import HANG, CountingWorker

import ringcast.actors as rt
from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.engine import CORE, WORKER, Engine
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.errors import EngineError, InvalidRequest
from ringcast.frontend.request_stream import RequestStream
from ringcast.frontend.sampling_params import RequestOutputKind, SamplingParams
from ringcast.frontend.stall_monitor import StallClock
from ringcast.frontend.tokenizer import Tokenizer

LONG = SamplingParams(max_tokens=200, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA)
STALL_S = 0.5


async def make(smollm2: Tokenizer, restart_stalled: float | None = None) -> AsyncLLM:
    args = EngineArgs(max_num_seqs=8, stall_after=STALL_S, restart_stalled=restart_stalled)
    return AsyncLLM.from_parts(args, Engine(rt.spec(CountingWorker, 0.01), args), smollm2)


@pytest.fixture
async def llm(leak_oracle: None, smollm2: Tokenizer) -> AsyncIterator[AsyncLLM]:
    async with await make(smollm2) as llm:
        yield llm


def pids(llm: AsyncLLM) -> dict[str, int]:
    engine = llm._running().engine
    assert isinstance(engine, Engine)
    return engine.pids()


async def until(llm: AsyncLLM, state: str, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while llm.health().state != state:
            await asyncio.sleep(0.01)


async def rest(stream: RequestStream) -> list[int]:
    return [token async for output in stream for token in output.outputs[0].token_ids]


@pytest.mark.parametrize("name", [WORKER, CORE])
async def test_a_stopped_process_under_a_request_makes_it_unready_until_it_goes_on(
    llm: AsyncLLM, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B7."""
    stream = await llm.add_request([100], LONG)
    tokens = list((await anext(stream)).outputs[0].token_ids)
    assert llm.health().state == "ready"
    os.kill(pids(llm)[name], signal.SIGSTOP)
    try:
        await until(llm, "stalled")
        detail = llm.health().detail
        assert detail.startswith(f"{name} has made no progress in ")
        assert "s (since 20" in detail
        assert "engine-core" not in detail or name == CORE, "only the one that hangs is blamed"
        (figures,) = [figures for figures in await llm.actors() if figures.name == name]
        assert (figures.is_up, figures.has_answered) == (True, False)
        assert figures.stalled_s >= STALL_S
        await asyncio.sleep(2 * STALL_S)
        assert llm.health().state == "stalled"
        stalls = [record.message for record in caplog.records if "has made no progress" in record.message]
        assert len(stalls) == 1
        assert "the process is stopped by a signal" in stalls[0]
        assert "--restart-stalled" in stalls[0]
    finally:
        os.kill(pids(llm)[name], signal.SIGCONT)
    await until(llm, "ready")
    assert tokens + await rest(stream) == list(range(101, 301))
    assert f"{name} makes progress again" in caplog.text


async def test_a_step_that_never_ends_is_a_stall_in_its_handler(llm: AsyncLLM) -> None:
    """B7: not stopped, but in a loop."""
    stream = await llm.add_request([HANG], LONG)
    await until(llm, "stalled")
    assert llm.health().detail.startswith(f"{WORKER} has made no progress in handler 'execute_model'")
    stream.abort()
    await asyncio.sleep(2 * STALL_S)
    assert llm.health().state == "stalled", "whoever comes next would hang, too"


async def test_an_idle_engine_and_one_at_work_are_never_stalled(llm: AsyncLLM) -> None:
    """B7: no false alarm, neither between requests nor after a suspension of the server itself."""
    for _ in range(2):
        stream = await llm.add_request([100], LONG)
        await rest(stream)
        await asyncio.sleep(2 * STALL_S)
        assert llm.health().state == "ready"
    stream = await llm.add_request([100], LONG)
    await anext(stream)
    time.sleep(3 * STALL_S)  # this loop hangs, not the others
    states = set()
    async for _ in stream:
        states.add(llm.health().state)
    assert states == {"ready"}


@pytest.mark.parametrize("name", [WORKER, CORE])
async def test_a_stalled_process_is_restarted_if_asked_and_streams_go_on_to_the_token(
    leak_oracle: None, smollm2: Tokenizer, name: str
) -> None:
    """B7: restart_stalled."""
    async with await make(smollm2, restart_stalled=1.0) as llm:
        streams = [await llm.add_request([100 * index], LONG) for index in range(1, 4)]
        tokens = [list((await anext(stream)).outputs[0].token_ids) for stream in streams]
        before = pids(llm)
        os.kill(before[name], signal.SIGSTOP)
        for index, stream in enumerate(streams, 1):
            assert tokens[index - 1] + await rest(stream) == list(range(100 * index + 1, 100 * index + 201))
        await until(llm, "ready")
        after = pids(llm)
        assert {part for part in (WORKER, CORE) if after[part] != before[part]} == {name}


async def test_a_request_that_hangs_every_worker_is_quarantined_and_the_others_go_on(
    leak_oracle: None, smollm2: Tokenizer
) -> None:
    """B7, B16: the end of a stalled worker is evidence."""
    async with await make(smollm2, restart_stalled=STALL_S) as llm:
        others = [await llm.add_request([100 * index], LONG) for index in range(1, 3)]
        hangs = await llm.add_request([HANG], LONG)
        with pytest.raises(EngineError, match="the worker was lost 3 times .* ran alone .*no progress for"):
            await rest(hangs)
        for index, stream in enumerate(others, 1):
            assert (await rest(stream))[-1] == 100 * index + 200


def test_a_look_that_comes_late_counts_for_two_at_most() -> None:
    """B7: the time in which the whole machine was suspended is nobody's stall."""
    clock = StallClock("worker-0", limit_s=5.0, tick_s=1.0)
    clock.look(is_awaited=True, progress=1, where="handler 'step'", now_s=0.0)
    clock.look(is_awaited=True, progress=1, where="handler 'step'", now_s=1000.0)
    assert clock.stall is None
    for moment in range(1, 4):
        clock.look(is_awaited=True, progress=1, where="handler 'step'", now_s=1000.0 + moment)
    stall = clock.stall
    assert stall is not None and stall.waited_s == 5.0
    assert str(stall).startswith("worker-0 has made no progress in handler 'step' for 5 s (since ")
    clock.look(is_awaited=True, progress=2, where="handler 'step'", now_s=1004.0)
    assert clock.stall is None
    for moment in range(10):
        clock.look(is_awaited=False, progress=2, where="", now_s=1005.0 + moment)
    assert clock.stall is None, "nobody waits for it"


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), True, "10"])
def test_times_that_are_no_times_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"stall_after is .*: it must be a number in \(0, 1e\+06\]"):
        EngineArgs(stall_after=value)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="restart_stalled is"):
        EngineArgs(restart_stalled=value)  # type: ignore[arg-type]
