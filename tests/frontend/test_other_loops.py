"""An AsyncLLM belongs to the loop that started it (C50): elsewhere it says so at once, and nothing hangs or is left."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from frontend_fakes import FakeEngine

from ringcast import AsyncLLM, EngineArgs, SamplingParams
from ringcast.frontend.errors import EngineNotReady
from ringcast.frontend.tokenizer import Tokenizer


def test_an_engine_that_outlived_its_loop_is_killed_by_its_close() -> None:
    """C50: `asyncio.run(use(llm)); asyncio.run(llm.close())` ends at once, and its processes with it."""
    llm = AsyncLLM(EngineArgs(model="smollm2", max_model_len=64))

    async def use() -> list[psutil.Process]:
        outputs = [output async for output in llm.generate("1, 2,", SamplingParams(temperature=0, max_tokens=2))]
        assert outputs[-1].finished
        return psutil.Process().children()

    children = asyncio.run(use())
    assert len(children) >= 2  # core and worker
    with pytest.raises(EngineNotReady, match="was not closed before its event loop was"):
        asyncio.run(asyncio.wait_for(llm.close(), 20))
    asyncio.run(llm.close())  # the second time there is nothing to close
    assert psutil.wait_procs(children, timeout=10)[1] == []
    with pytest.raises(EngineNotReady):
        asyncio.run(use())


async def test_on_another_loop_it_says_where_it_belongs(smollm2: Tokenizer) -> None:
    """C50: its own loop goes on with it."""
    async with AsyncLLM.from_parts(EngineArgs(), FakeEngine(), smollm2) as llm:

        def elsewhere() -> None:
            with pytest.raises(EngineNotReady, match="started on another event loop"):
                asyncio.run(llm.close())
            with pytest.raises(EngineNotReady, match="started on another event loop"):
                asyncio.run(llm.encode("x"))

        await asyncio.to_thread(elsewhere)
        outputs = [output async for output in llm.generate("x", SamplingParams(max_tokens=2))]
        assert outputs[-1].finished


async def test_a_start_that_failed_may_be_tried_on_another_loop(smollm2: Tokenizer) -> None:
    llm = AsyncLLM(EngineArgs(model="/nowhere"))
    for _ in range(2):
        with pytest.raises(Exception, match="nowhere"):
            await asyncio.to_thread(lambda: asyncio.run(llm.start()))
    await llm.close()
