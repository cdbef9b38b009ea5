"""Streams that nobody reads: forgotten ones are aborted, held ones keep one answer."""

from __future__ import annotations

import asyncio
import gc

import pytest
from frontend_fakes import FakeEngine

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.sampling_params import RequestOutputKind, SamplingParams

ENDLESS = SamplingParams(max_tokens=50, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


async def test_a_forgotten_stream_is_aborted(llm: AsyncLLM, engine: FakeEngine) -> None:
    """C49: when it is collected, whether it was read from or not."""
    engine.paused = True
    streams = [await llm.add_request([100 + number], ENDLESS) for number in range(20)]
    assert len(engine.running) == 20
    kept = streams[0]
    del streams
    gc.collect()
    await engine.until(lambda: len(engine.running) == 1)
    assert len(engine.aborted) == 19
    kept.abort()
    assert engine.running == []


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_forgotten_generator_is_aborted(llm: AsyncLLM, engine: FakeEngine, is_begun: bool) -> None:
    """C49: one that was not begun never made a request."""
    engine.step_s = 0.02
    generators = [llm.generate([100 + number], ENDLESS) for number in range(20)]
    if is_begun:
        await asyncio.gather(*map(anext, generators))
        assert len(engine.running) == 20
    del generators
    gc.collect()
    await engine.until(lambda: engine.running == [])
    assert len(engine.aborted) == len(engine.added) == (20 if is_begun else 0)


async def test_a_held_stream_merges_what_is_not_read(llm: AsyncLLM, engine: FakeEngine) -> None:
    """C49: its memory is bounded by its answers, not by the number of steps."""
    stream = await llm.add_request([100], ENDLESS)
    await engine.until(lambda: engine.running == [])
    await asyncio.sleep(0)
    outputs = [output async for output in stream]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [50]
    assert outputs[0].finished
