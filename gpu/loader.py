"""From a checkpoint to a runner: chooses dtype and threads, loads the weights, builds the model. For the worker."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from . import machine
from .checkpoint import Checkpoint
from .errors import WeightCacheError
from .kernels import CpuKernels
from .runner import ModelRunner
from .weight_cache import cached_weights, stacked
from .weight_table import weight_table
from .worker_config import WorkerConfig

logger = logging.getLogger(__name__)

_FILE_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def load_runner(config: WorkerConfig, checkpoint: Checkpoint) -> ModelRunner:
    """A runner without a KV cache yet, on the calling thread's OpenMP pool: call and use it from one thread."""
    threads = config.num_threads or machine.usable_cpus()
    # Torch's products and the native kernels share one pool of threads; it must not change its size between them.
    torch.set_num_threads(threads)
    kernels = CpuKernels(threads)
    dtype = _dtype(config.dtype)
    load = random_weights if config.load_format == "dummy" else load_weights
    runner = ModelRunner(checkpoint.config, load(checkpoint, dtype), dtype, kernels)
    logger.info("loaded %s as %s: %d threads, %s kernels", checkpoint.path, dtype, threads, kernels.level)
    return runner


def load_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, Tensor]:
    """All weights of the model in ``dtype`` (float32 or bfloat16), by their name in the weight table.

    Quantised files go through the converted copy in the user's cache folder, which is mapped, not read; if that cannot
    be kept, they are converted in memory with a warning. `ModelFileError` if a tensor is missing or misshapen.
    """
    file_type = _FILE_TYPES[dtype]
    table = weight_table(checkpoint.config)
    if checkpoint.gguf is not None:
        try:
            cached = cached_weights(checkpoint, file_type)
            return {weight.name: _to_torch(cached.read(weight.name).array, dtype) for weight in table}
        except WeightCacheError as error:
            logger.warning("%s. The weights are converted in memory now, which every start will repeat.", error)
    return {weight.name: _to_torch(stacked(checkpoint, weight, file_type), dtype) for weight in table}


def random_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights drawn from N(0, 0.02), always the same: for trials of speed that need no real model."""
    generator = torch.Generator().manual_seed(0)
    return {
        weight.name: torch.ones(weight.shape, dtype=dtype)
        if len(weight.shape) == 1
        else torch.empty(weight.shape, dtype=dtype).normal_(0.0, 0.02, generator=generator)
        for weight in weight_table(checkpoint.config)
    }


def _to_torch(array: Any, dtype: torch.dtype) -> Tensor:
    """Wrap without a copy; bfloat16 comes as the uint16 bits that numpy can hold."""
    tensor = torch.from_numpy(array)
    return tensor if dtype is torch.float32 else tensor.view(dtype)


def _dtype(name: str) -> torch.dtype:
    if name == "auto":
        name = "bfloat16" if machine.has_fast_bfloat16() else "float32"
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]
