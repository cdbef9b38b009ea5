"""The scheduler's own plans change no byte of a request's logits: forced preemption, prefix hits, a restarted worker.

`test_exactness` makes plans by hand; here the real scheduler makes them, on too few blocks.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from exact_core import ExactCore
from random_models import random_model, save_gguf
from test_exactness import FORMS, each_form, runner_of

from ringcast.gpu import Checkpoint
from ringcast.gpu.runner import ModelRunner
from ringcast.scheduler.messages import AddRequest, KVCacheConfig, SamplingRule, StopRule
from ringcast.scheduler.scheduler import Scheduler

NUM_TOKENS = 40
SHARED = [(13 * index + 3) % 203 for index in range(32)]
PROMPTS = [
    *([*SHARED, *((7 * index + number) % 203 for index in range(1 + 3 * number))] for number in range(4)),
    *([(29 * index + 11 * number) % 203 for index in range(5 + 9 * number)] for number in range(4)),
]


def save_small(path: Path) -> None:
    """A random Llama with blocks of Q4_1, its head of Q8_0."""
    model = random_model("llama", hidden_size=96, intermediate_size=160)
    save_gguf(model, path, lambda name: "Q8_0" if "embed" in name or "head" in name else "Q4_1")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    save_small(path)
    return path


def alone(runner: ModelRunner) -> list[list[bytes]]:
    """The logits of every request's output tokens, each request run alone and its prompt in one piece."""
    return [ExactCore(runner).logits_of([prompt], NUM_TOKENS)[0] for prompt in PROMPTS]


def scheduled(
    runner: ModelRunner, budget: int, num_blocks: int, successor: Callable[[], ModelRunner] | None = None
) -> tuple[list[list[bytes]], Scheduler]:
    """The same, all requests at once under the scheduler; a ``successor`` takes over in the middle."""
    limits = KVCacheConfig(num_blocks, 16, 8, budget, 200)
    scheduler = Scheduler(limits, 203)
    for number, prompt in enumerate(PROMPTS):
        stop = StopRule(NUM_TOKENS, [], [])
        assert scheduler.add(AddRequest(str(number), 1, prompt, SamplingRule(), stop, [])) is None
    core = ExactCore(runner)
    runner.initialize(limits)
    found: list[list[bytes]] = [[] for _ in PROMPTS]
    row_of: dict[int, int] = {}
    while (plan := scheduler.schedule()) is not None:
        if successor is not None and sum(map(len, found)) > NUM_TOKENS * len(PROMPTS) // 2:
            runner = successor()
            core, successor = ExactCore(runner), None
            runner.initialize(limits)
            scheduler.worker_lost("killed")
            scheduler.worker_ready(num_blocks)
            continue
        for new in plan.new_rows:
            row_of[new.row] = PROMPTS.index(new.token_ids[: new.num_prompt_tokens])
        result = runner.execute(plan)
        for row, logits in zip(result.rows, core._rows, strict=True):
            found[row_of[row]].append(logits)
        scheduler.update(result)
        scheduler.check()
    return found, scheduler


def digests(path: Path) -> str:
    """Of the logits of every form, each request alone."""
    checkpoint = Checkpoint.open(path)
    found = [alone(runner_of(checkpoint, form)) for form in FORMS]
    return " ".join(hashlib.sha256(b"".join(b"".join(rows) for rows in logits)).hexdigest() for logits in found)


@each_form
@pytest.mark.parametrize("budget", [17, 64])
def test_forced_preemption_and_prefix_hits_change_no_byte(small: Path, form: str, budget: int) -> None:
    runner = runner_of(Checkpoint.open(small), form, threads=2)
    expected = alone(runner)
    found, scheduler = scheduled(runner, budget, num_blocks=12)
    statistics = scheduler.statistics()
    assert statistics.num_preemptions >= 3
    assert statistics.num_cached_tokens >= 32
    assert found == expected


@each_form
def test_a_worker_that_is_restarted_in_the_middle_changes_no_byte(small: Path, form: str) -> None:
    checkpoint = Checkpoint.open(small)
    runner = runner_of(checkpoint, form, threads=2)
    expected = alone(runner)
    found, scheduler = scheduled(runner, 64, num_blocks=40, successor=lambda: runner_of(checkpoint, form))
    assert scheduler.statistics().num_worker_losses == 1
    assert found == expected


def test_another_process_gives_the_same_bytes(small: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_exact_schedules import digests
print(digests(Path({str(small)!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == digests(small).split()
