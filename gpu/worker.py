"""`Worker`: the actor that owns a model on one device, in a process of its own. The engine core drives it.

Life: init_device (in a spare: ahead) -> load_model (READY) -> kv_cache_spec -> initialize_from_config -> execute_model,
step after step.
This module imports no torch: the frontend names the class without paying for it, and only `on_prepare` brings it in.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import ringcast.actors as rt
from ringcast.scheduler.messages import KVCacheConfig, KVCacheSpec, StepPlan, StepResult, WorkerInterface

from . import machine
from .checkpoint import Checkpoint
from .errors import GpuError, WorkerConfigError
from .worker_config import WorkerConfig
from .worker_extension import call_function, call_method, extend

if TYPE_CHECKING:
    from .runner import ModelRunner

# Without a figure from the user the cache may take a quarter of the memory, but no more than this.
_DEFAULT_FRACTION = 0.25
_DEFAULT_LIMIT_BYTES = 4 << 30


class Worker(WorkerInterface):
    """A CPU worker. Handlers run one at a time on the process's main thread, products and kernels on several."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._runner: ModelRunner | None = None
        self._cache_bytes = 0

    def on_prepare(self, ctx: rt.Context) -> None:
        """Open the checkpoint and import torch: all that takes time and no memory that a predecessor may need."""
        ctx.phase("init_device")
        if self._config.worker_extension_cls is not None:
            extend(self, self._config.worker_extension_cls)
        # The checkpoint first: a wrong path is told at once, not after the second that torch takes to import.
        self._checkpoint = Checkpoint.open(self._config.model_path)
        self._max_model_len = _context_length(self._config, self._checkpoint)
        _import_torch()
        from . import loader  # noqa: F401 (the rest of what is imported)

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        """Load the model. `ModelFileError`, `UnsupportedModelError` or `WorkerConfigError` say why it cannot be."""
        ctx.phase("load_model")
        from .loader import load_runner

        self._runner = load_runner(self._config, self._checkpoint)
        self._runner.on_progress = ctx.progress  # a long prompt on a slow machine is no stall
        del self._checkpoint
        self._cache_bytes = _memory_for_cache(self._config)

    @rt.call
    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """The size of a block, and the memory for blocks that was left when the model had been loaded."""
        runner = self._loaded()
        return KVCacheSpec(
            bytes_per_block=runner.bytes_per_block(block_size),
            available_bytes=self._cache_bytes,
            max_model_len=self._max_model_len,
            vocab_size=runner.config.vocab_size,
            is_exact=runner.exact,
        )

    @rt.call
    def initialize_from_config(self, config: KVCacheConfig) -> None:
        """Allocate cache and rows and forget everything; `KVCacheMemoryError` if the memory is not there."""
        if config.max_model_len > self._max_model_len:
            raise WorkerConfigError(
                f"max_model_len is {config.max_model_len}, but the model's context is {self._max_model_len}; lower it"
            )
        self._loaded().initialize(config)

    @rt.call
    def execute_model(self, plan: StepPlan) -> StepResult:
        """Run one step. After a `PlanError` the rows are not to be relied on: initialise again."""
        return self._loaded().execute(plan)

    @rt.call
    def run_method(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a public method of the worker by name; its result must be a message. Steps wait while it runs."""
        return call_method(self, method, args, kwargs)

    @rt.call
    def run_function(self, pickled: bytes, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function pickled by cloudpickle with the worker as its first argument; else as `run_method`."""
        return call_function(self, pickled, args, kwargs)

    def _loaded(self) -> ModelRunner:
        if self._runner is None:
            raise GpuError("the worker has no model: on_start loads it, and has not run")
        return self._runner


def _context_length(config: WorkerConfig, checkpoint: Checkpoint) -> int:
    if config.max_model_len is None:
        return checkpoint.config.max_position_embeddings
    longest = checkpoint.config.longest_context
    if config.max_model_len > longest:
        raise WorkerConfigError(
            f"max_model_len is {config.max_model_len}, but the context of {checkpoint.path} is {longest}; "
            f"use at most {longest}"
        )
    return config.max_model_len


def _memory_for_cache(config: WorkerConfig) -> int:
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    available = machine.available_memory()
    if config.memory_fraction is not None:
        return int(config.memory_fraction * available)
    return min(int(_DEFAULT_FRACTION * available), _DEFAULT_LIMIT_BYTES)


def _import_torch() -> None:
    """Import torch with OpenMP threads that soon sleep while they wait, unless the environment says otherwise.

    By default they spin for long, and on shared processors burn the time that the thread they wait for needs. Measured
    on two cores, the products of a step: 9 ms on one thread, 920 ms on two beside one busy process, 11 to 17 ms if they
    sleep after 0 to 1000 rounds. On an idle machine 1000 rounds cost a step 8 %, none at all 35 %.
    """
    if "torch" in sys.modules or "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    os.environ["GOMP_SPINCOUNT"] = "1000"  # read once, when the OpenMP runtime is loaded
    try:
        import torch  # noqa: F401
    finally:
        del os.environ["GOMP_SPINCOUNT"]
