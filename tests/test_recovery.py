"""The real engine, its processes killed or its prefix cache warm: every output is that of an undisturbed run.

The model computes in float32; the promise is equality of all tokens, greedy and seeded.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from ringcast import LLM, SamplingParams
from ringcast.frontend.engine import CORE, WORKER, Engine
from ringcast.frontend.errors import EngineError
from ringcast.frontend.outputs import RequestOutput

pytestmark = pytest.mark.timeout(180)

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
SHORT = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
SEEDED = [SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=40, ignore_eos=True) for seed in range(4)]
# What depends on all tokens before, and what is told beside the tokens.
TOLD = SamplingParams(
    temperature=0.8,
    seed=5,
    presence_penalty=0.5,
    frequency_penalty=0.4,
    repetition_penalty=1.2,
    logprobs=2,
    prompt_logprobs=1,
    max_tokens=40,
    ignore_eos=True,
    detokenize=False,
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2", dtype="float32", max_model_len=1024, max_num_batched_tokens=256) as llm:
        yield llm


def cpu_s() -> dict[int, float]:
    """Processor time so far of everybody in the engine, by process: worker, its spare, core, and this one."""
    processes = [psutil.Process(), *psutil.Process().children()]
    return {p.pid: p.cpu_times().user + p.cpu_times().system for p in processes}


def prompt(number: int, length: int) -> list[int]:
    draw = random.Random(number)
    return [draw.randrange(1000, 40_000) for _ in range(length)]


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [answer.token_ids for output in outputs for answer in output.outputs]


def engine_of(llm: LLM) -> Engine:
    engine = llm._llm._running().engine
    assert isinstance(engine, Engine)
    return engine


def pids_of(llm: LLM) -> dict[str, int]:
    """Asked on the engine's own loop."""

    async def ask() -> dict[str, int]:
        return engine_of(llm).pids()

    return llm._thread.run(ask())


def num_generated_tokens(llm: LLM) -> int:
    """Of the core that lives; 0 while none does."""
    try:
        return llm.statistics().num_generated_tokens
    except EngineError:
        return 0


@pytest.mark.parametrize("victims", [[CORE], [WORKER], [CORE, WORKER]], ids=["core", "worker", "both"])
def test_a_kill_is_a_pause_for_eight_streams_and_nothing_else(llm: LLM, victims: list[str]) -> None:
    prompts = [prompt(number, 10 + 30 * number) for number in range(8)]
    several = SamplingParams(temperature=0.9, seed=9, max_tokens=40, ignore_eos=True, detokenize=False, n=2)
    params = [GREEDY, *SEEDED, TOLD, several, GREEDY]
    undisturbed = llm.generate(prompts, params)
    seed = time.time_ns()
    print("seed", seed)  # of the moment of the kill, should it fail
    before = llm.statistics()
    kill_at = before.num_generated_tokens + random.Random(seed).randrange(9 * 36)
    pids = pids_of(llm)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(llm.generate, prompts, params)
        while num_generated_tokens(llm) < kill_at:
            time.sleep(0.002)
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        disturbed = running.result()
    assert tokens(disturbed) == tokens(undisturbed)
    assert disturbed[5].outputs[0].logprobs == undisturbed[5].outputs[0].logprobs
    assert disturbed[5].prompt_logprobs == undisturbed[5].prompt_logprobs
    assert len(undisturbed[5].prompt_logprobs or []) == len(prompts[5])
    after = llm.statistics()
    assert (after.num_failed, after.num_free_blocks) == (0, after.num_blocks)
    now = pids_of(llm)
    assert {name for name in (CORE, WORKER) if now[name] != pids[name]} == set(victims), "who lives keeps its process"
    if victims == [WORKER]:
        assert after.num_worker_losses == before.num_worker_losses + 1
        assert after.num_generated_tokens - before.num_generated_tokens == 9 * 40  # none was drawn twice


def test_an_idle_engine_sleeps(llm: LLM) -> None:
    llm.generate([prompt(900, 20)], SHORT)
    deadline = time.monotonic() + 20
    while not any("(spare)" in " ".join(p.cmdline()) for p in psutil.Process().children()):
        assert time.monotonic() < deadline, "there is no spare"
        time.sleep(0.05)
    time.sleep(0.2)  # everybody falls asleep
    before = cpu_s()
    time.sleep(2.0)
    after = cpu_s()
    assert after.keys() == before.keys()
    assert len(after) == 4
    assert sum(after.values()) - sum(before.values()) <= 0.02, (before, after)  # two ticks of the kernel's clock


def test_warm_cache_and_cold_cache_answer_alike(llm: LLM) -> None:
    outputs = [llm.generate([prompt(100, 200)], GREEDY)[0] for _ in range(3)]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.num_cached_tokens for output in outputs] == [0, 192, 192]


@pytest.mark.parametrize("length", [16, 32, 48])
def test_prompt_of_whole_blocks_that_is_cached(llm: LLM, length: int) -> None:
    first, second = (llm.generate([prompt(200 + length, length)], SHORT)[0] for _ in range(2))
    assert second.outputs[0].token_ids == first.outputs[0].token_ids
    assert second.num_cached_tokens == length - 16


def test_prompts_that_share_a_prefix_answer_alike_in_any_company(llm: LLM) -> None:
    """Alone after another; and together, so that some read what others compute in the same step."""
    shared = prompt(300, 90)
    prompts = [shared + prompt(301 + number, 10) for number in range(4)]
    together = tokens(llm.generate(prompts, SHORT))
    assert [tokens(llm.generate([one], SHORT))[0] for one in prompts] == together
    assert tokens(llm.generate(prompts[::-1], SHORT))[::-1] == together


def test_four_answers_to_one_prompt_share_its_blocks_and_are_those_of_single_runs(llm: LLM) -> None:
    """In the very step in which the first of them computes the prompt."""
    text = prompt(400, 100)
    params = SamplingParams(n=4, seed=7, temperature=1.0, max_tokens=12, ignore_eos=True)
    before = llm.statistics()
    together = tokens(llm.generate([text], params))
    after = llm.statistics()
    assert after.num_cached_tokens - before.num_cached_tokens == 3 * 96
    singles = [SamplingParams(seed=7 + i, temperature=1.0, max_tokens=12, ignore_eos=True) for i in range(4)]
    assert together == [tokens(llm.generate([text], one))[0] for one in singles]
