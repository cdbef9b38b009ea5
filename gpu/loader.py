"""From a checkpoint to a runner: chooses dtype and threads, loads the weights, builds the model. For the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import machine
from .checkpoint import Checkpoint
from .errors import WeightCacheError
from .kernels import CpuKernels
from .packed_matrix import PackedMatrix, Weights
from .runner import ModelRunner
from .weight_cache import Plan, cached_weights, plan_of
from .weight_packing import packed_bytes, random_bytes
from .weight_table import Weight
from .worker_config import WorkerConfig

logger = logging.getLogger(__name__)

_FILE_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def load_runner(config: WorkerConfig, checkpoint: Checkpoint) -> ModelRunner:
    """A runner without a KV cache yet, on the calling thread's OpenMP pool: call and use it from one thread."""
    threads = config.num_threads or machine.usable_cpus()
    # Torch and the native kernels share one pool of threads; it must not change its size between them.
    torch.set_num_threads(threads)
    kernels = CpuKernels(threads)
    dtype = _dtype(config)
    load = random_weights if config.load_format == "dummy" else load_weights
    weights = load(checkpoint, dtype, config.quantization == "gguf")
    runner = ModelRunner(checkpoint.config, weights, dtype, kernels)
    logger.info(
        "loaded %s as %s: %d threads, %s kernels; %s",
        checkpoint.path, _formats(weights), threads, kernels.level, runner.exactness,
    )  # fmt: skip
    return runner


def load_weights(checkpoint: Checkpoint, dtype: torch.dtype, keep_blocks: bool = False) -> Weights:
    """All weights of the model, packed for products in ``dtype`` (float32 or bfloat16).

    ``keep_blocks`` leaves quantised blocks packed that the products can read; others are dequantised to ``dtype``.
    They come from the packed copy in the user's cache folder, which is mapped, not read; if that cannot be kept, they
    are packed in memory with a warning. `ModelFileError` if a tensor is missing or misshapen.
    """
    plan = plan_of(checkpoint, _FILE_TYPES[dtype], keep_blocks)
    try:
        cached = cached_weights(checkpoint, plan)
        return _weights(plan, lambda weight: cached.raw(weight.name))
    except WeightCacheError as error:
        logger.warning("%s. The weights are packed in memory now, which every start will repeat.", error)
    return _weights(plan, lambda weight: np.concatenate([*packed_bytes(checkpoint, weight, plan[weight])]))


def random_weights(checkpoint: Checkpoint, dtype: torch.dtype, keep_blocks: bool = False) -> Weights:
    """Weights around N(0, 0.02), always the same: for trials of speed that need no weights to be there."""
    plan = plan_of(checkpoint, _FILE_TYPES[dtype], keep_blocks)
    generator = np.random.default_rng(0)

    def draw(weight: Weight) -> Any:
        packing = plan[weight]
        if packing is None:
            return np.ones(weight.shape, np.float32).view(np.uint8)
        return np.concatenate([*random_bytes(packing, generator)])

    return _weights(plan, draw)


def _weights(plan: Plan, read: Callable[[Weight], Any]) -> Weights:
    vectors: dict[str, Tensor] = {}
    matrices: dict[str, PackedMatrix] = {}
    for weight, packing in plan.items():
        data = torch.from_numpy(read(weight))
        if packing is None:
            vectors[weight.name] = data.view(torch.float32)
        else:
            matrices[weight.name] = PackedMatrix(data, packing)
    return Weights(vectors, matrices)


def _formats(weights: Weights) -> str:
    """The formats of the matrices and how much of each: "Q4 63 MiB, Q8 29 MiB"."""
    sizes: dict[str, int] = {}
    for matrix in weights.matrices.values():
        name = matrix.packing.format
        sizes[name] = sizes.get(name, 0) + matrix.packing.size_bytes
    return ", ".join(f"{name} {size >> 20} MiB" for name, size in sorted(sizes.items()))


def _dtype(config: WorkerConfig) -> torch.dtype:
    name = config.dtype
    if name == "auto":
        name = "bfloat16" if config.quantization == "gguf" or machine.has_fast_bfloat16() else "float32"
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]
