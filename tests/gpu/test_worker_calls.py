"""Reaching into a worker: added methods, calls by name and by function; and the same worker in the app's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from random_models import random_model, save_gguf

import ringcast.actors as rt
from ringcast.gpu import Worker, WorkerConfig
from ringcast.scheduler.messages import KVCacheConfig, NewRow, SamplingRule, StepPlan, StepResult

LIMITS = KVCacheConfig(num_blocks=20, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=100)
RULES = [
    SamplingRule(prompt_logprobs=2),
    SamplingRule(temperature=1.3, top_p=0.9, seed=7, repetition_penalty=1.2, logprobs=3),
]
PLANS = [
    StepPlan(
        1, [], [NewRow(0, [5, 6, 7], 0, [2], RULES[0], 3), NewRow(2, [9, 8], 0, [4], RULES[1], 2)], [0, 2], [3, 2],
        [[], []], [True, True],
    ),
    *(StepPlan(step, [], [], [2, 0], [1, 1], [[], []], [True, True]) for step in range(2, 12)),
]  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> WorkerConfig:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    save_gguf(random_model("qwen3"), path)
    return WorkerConfig(
        str(path), dtype="float32", kv_cache_memory_bytes=1 << 20, num_threads=1, max_model_len=100,
        worker_extension_cls="extra_methods.Extra",
    )  # fmt: skip


async def steps(worker: Worker) -> list[StepResult]:
    await worker.initialize_from_config(LIMITS)  # type: ignore[misc]
    return [await worker.execute_model(plan) for plan in PLANS]  # type: ignore[misc]


@pytest.mark.usefixtures("leak_oracle")
async def test_a_worker_in_the_apps_process_gives_the_outputs_of_one_in_its_own(config: WorkerConfig) -> None:
    async with rt.System() as system:
        own = await system.spawn(rt.spec(Worker, config), name="own", where=rt.process())
        here = await system.spawn(rt.spec(Worker, config), name="here", where=rt.here)
        expected = await steps(own)
        assert [result.rows for result in expected] == [[0, 2]] + [[2, 0]] * 10
        assert expected[0].prompt_logprobs is not None and expected[0].logprobs is not None
        assert await steps(here) == expected
        # Again, beside each other: a thread shares nothing with the process.
        assert await steps(here) == expected == await steps(own)
        assert await here.kv_cache_spec(16) == await own.kv_cache_spec(16)


@pytest.mark.usefixtures("leak_oracle")
@pytest.mark.parametrize("where", [rt.process(), rt.here], ids=["process", "here"])
async def test_methods_are_called_by_name_and_functions_are_sent(config: WorkerConfig, where: Any) -> None:
    def layers_and(worker: Any, *numbers: int, plus: int) -> list[int]:
        return [worker._loaded().config.num_layers, sum(numbers) + plus]

    async with rt.System() as system:
        worker = await system.spawn(rt.spec(Worker, config), name="worker", where=where)
        spec = await worker.run_method("kv_cache_spec", [16], {})
        assert spec == await worker.kv_cache_spec(16) and spec.is_exact
        assert await worker.run_method("describe", ["the"], {}) == "the extra on Worker with 3 layers"
        assert await worker.run_method("describe", ["the"], {"shout": True}) == "THE EXTRA ON WORKER WITH 3 LAYERS"
        assert await worker.run_function(cloudpickle.dumps(layers_and), [4, 5], {"plus": 1}) == [3, 10]
        for name in ("nothing", "_loaded", "title", "__class__"):
            with pytest.raises(rt.RemoteError, match=f"GpuError.*no method '{name}'.*worker_extension_cls"):
                await worker.run_method(name, [], {})
        with pytest.raises(rt.RemoteError, match="GpuError.*a function was due, not 5"):
            await worker.run_function(cloudpickle.dumps(5), [], {})
        with pytest.raises(rt.RemoteError, match="ZeroDivisionError"):
            await worker.run_function(cloudpickle.dumps(lambda worker: 1 / 0), [], {})
        # After all that it still works.
        assert len(await steps(worker)) == len(PLANS)


@pytest.mark.parametrize(
    ("dotted_name", "reason"),
    [
        ("extra_methods.Hiding", "execute_model would hide what the worker has; rename"),
        ("extra_methods.Missing", "it cannot be imported .*Missing.*; give package.module.Class"),
        ("no_such_module.Extra", "it cannot be imported .*no_such_module"),
        ("Extra", "it cannot be imported"),
        ("extra_methods.NOT_A_CLASS", "it is no class"),
        ("builtins.int", "would hide|cannot be added to Worker"),
    ],
)
async def test_an_extension_that_does_not_fit_says_why(config: WorkerConfig, dotted_name: str, reason: str) -> None:
    from dataclasses import replace

    changed = replace(config, worker_extension_cls=dotted_name)
    async with rt.System() as system:
        with pytest.raises(rt.StartFailed, match=f"worker_extension_cls is '{dotted_name}': .*({reason})"):
            await system.spawn(rt.spec(Worker, changed), name="worker", where=rt.here)


def test_two_workers_of_one_process_may_have_different_extensions(config: WorkerConfig, tmp_path: Path) -> None:
    from ringcast.gpu.worker_extension import extend

    plain, extended = Worker(config), Worker(config)
    extend(extended, "extra_methods.Extra")
    assert isinstance(extended, Worker) and hasattr(extended, "describe")
    assert not hasattr(plain, "describe")
