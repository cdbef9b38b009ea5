"""`RMSNorm`: of the stream between the layers, which stays in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import CpuKernels
from ..model_config import ModelConfig
from ..packed_matrix import Weights


class RMSNorm:
    """Rows divided by their root mean square, times a weight to which the family's offset was added."""

    def __init__(self, config: ModelConfig, weights: Weights, name: str, kernels: CpuKernels) -> None:
        self._weight = weights.vectors[name] + config.norm_offset
        self._epsilon = config.rms_norm_eps
        self._kernels = kernels

    def __call__(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """``rows`` float32 [tokens, hidden_size], left as they are -> the same shape as ``dtype``."""
        return self._kernels.norm(rows, self._weight, self._epsilon, dtype)

    def add_to(self, residual: Tensor, rows: Tensor) -> None:
        """``residual`` += the normed ``rows``, both float32 [tokens, hidden_size]."""
        self._kernels.norm_add(residual, rows, self._weight, self._epsilon)
