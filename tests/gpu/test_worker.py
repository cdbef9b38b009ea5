"""The worker actor in a process of its own: starting, refusing, and running steps; and what importing it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from random_models import random_llama, save_gguf

import ringcast.actors as rt
from ringcast.gpu import Worker, WorkerConfig, WorkerConfigError
from ringcast.scheduler.messages import KVCacheConfig, NewRow, SamplingRule, StepPlan

LIMITS = KVCacheConfig(num_blocks=20, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=100)
FIRST_STEP = StepPlan(1, [], [NewRow(0, [5, 6, 7], 0, [2], SamplingRule())], [0], [3], [[]], [True])


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    save_gguf(random_llama(tie=True), path)
    return str(path)


def run_python(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("leak_oracle")
async def test_a_worker_process_loads_and_runs_steps(model_path: str) -> None:
    config = WorkerConfig(model_path, dtype="float32", kv_cache_memory_bytes=1 << 20, num_threads=1, max_model_len=100)
    async with rt.System() as system:
        worker = await system.spawn(rt.spec(Worker, config), name="worker", where=rt.process())
        spec = await worker.kv_cache_spec(16)
        # 2 (keys, values) * 3 layers * 2 heads * 16 dimensions * 16 tokens * 4 bytes
        assert (spec.bytes_per_block, spec.available_bytes) == (12288, 1 << 20)
        assert (spec.max_model_len, spec.vocab_size) == (100, 203)
        with pytest.raises(rt.RemoteError, match=r"PlanError.*before initialize_from_config"):
            await worker.execute_model(FIRST_STEP)
        await worker.initialize_from_config(LIMITS)
        first = await worker.execute_model(FIRST_STEP)
        second = await worker.execute_model(StepPlan(2, [], [], [0], [1], [[]], [True]))
        with pytest.raises(rt.RemoteError, match="PlanError"):
            await worker.execute_model(StepPlan(3, [3], [], [], [], [], []))
        # A new core attaches: the same steps give the same tokens.
        await worker.initialize_from_config(LIMITS)
        assert await worker.execute_model(FIRST_STEP) == first
        assert await worker.execute_model(StepPlan(2, [], [], [0], [1], [[]], [True])) == second
        with pytest.raises(rt.RemoteError, match="KVCacheMemoryError.*no memory for the KV cache"):
            await worker.initialize_from_config(KVCacheConfig(10**11, 16, 4, 64, 100))
        with pytest.raises(rt.RemoteError, match="max_model_len is 101, but the model's context is 100"):
            await worker.initialize_from_config(KVCacheConfig(20, 16, 4, 64, 101))


@pytest.mark.usefixtures("leak_oracle")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_path": "/nowhere/model"}, "ModelFileError: /nowhere/model: no such file or folder"),
        ({"model_path": __file__}, "ModelFileError: .*not a usable GGUF file: it begins with"),
        ({"max_model_len": 5000}, "WorkerConfigError: max_model_len is 5000, but the context .* is 2048; use at most"),
    ],
)
async def test_a_worker_that_cannot_start_says_why(model_path: str, changes: dict[str, Any], reason: str) -> None:
    config = WorkerConfig(**{"model_path": model_path, "dtype": "float32", "num_threads": 1, **changes})
    async with rt.System() as system:
        with pytest.raises(rt.StartFailed, match=reason):
            await system.spawn(rt.spec(Worker, config), name="worker", where=rt.process())


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("model_path", "", "give a model's folder"),
        ("dtype", "int8", "use one of auto, bfloat16, float32"),
        ("load_format", "pt", "use one of auto, dummy"),
        ("dtype", ["auto"], "use one of auto"),
        ("max_model_len", 0, "whole number from 1 to"),
        ("max_model_len", "1024", "whole number from 1 to"),
        ("kv_cache_memory_bytes", -1, "whole number of bytes"),
        ("kv_cache_memory_bytes", "4GiB", "whole number of bytes"),
        ("kv_cache_memory_bytes", 1e9, "whole number of bytes"),
        ("memory_fraction", 1.5, "above 0 and at most 1"),
        ("memory_fraction", "0.5", "above 0 and at most 1"),
        ("num_threads", 10**6, "a number up to"),
        ("num_threads", "2", "a number up to"),
        ("num_threads", True, "a number up to"),
        ("num_threads", -2, "0 for all processors"),
    ],
)
def test_settings_out_of_range_name_field_value_and_remedy(field: str, value: object, remedy: str) -> None:
    fields: dict[str, Any] = {"model_path": "/m", field: value}
    with pytest.raises(WorkerConfigError, match=re.escape(f"{field} is {value!r}: ") + f".*{remedy}"):
        WorkerConfig(**fields)


def test_naming_the_worker_and_reading_a_checkpoint_need_no_torch(gguf_path: Path) -> None:
    script = (
        "import sys\n"
        "import ringcast.gpu as gpu\n"
        "assert 'numpy' not in sys.modules\n"
        "checkpoint = gpu.Checkpoint.open(sys.argv[1])\n"
        "gpu.WorkerConfig(sys.argv[1]), gpu.Worker\n"
        "print(len(checkpoint.gguf.metadata['tokenizer.ggml.tokens']), checkpoint.config.vocab_size)\n"
        "print(sorted({'torch', 'transformers', 'fastapi', 'numpy'} & set(sys.modules)))\n"
    )
    assert run_python(script, str(gguf_path)).splitlines() == ["49152 49152", "[]"]


def test_kernels_and_torch_share_one_openmp_runtime() -> None:
    script = (
        "import ringcast.gpu.kernels\n"
        "names = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.rsplit('/', 1)[-1]}\n"
        "print([name.rsplit('/', 1)[-1].split('.')[0] for name in sorted(names)])\n"
    )
    assert run_python(script).strip() in ("['libgomp']", "['libomp']")


def test_dummy_weights_need_no_weights_file_to_be_sound(model_path: str) -> None:
    from ringcast.gpu import Checkpoint
    from ringcast.gpu.loader import load_runner

    runner = load_runner(
        WorkerConfig(model_path, dtype="bfloat16", load_format="dummy", num_threads=1), Checkpoint.open(model_path)
    )
    runner.initialize(LIMITS)
    assert runner.execute(FIRST_STEP).rows == [0]
