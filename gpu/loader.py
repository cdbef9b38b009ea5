"""Brings a checkpoint's weights into memory as torch tensors, merged as the weight table says. Called by the worker."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .errors import WeightCacheError
from .weight_cache import cached_weights, stacked
from .weight_table import weight_table

logger = logging.getLogger(__name__)

_FILE_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


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
