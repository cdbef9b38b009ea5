"""`GatedMLP`: the feed-forward part of one layer."""

from __future__ import annotations

from torch import Tensor

from ..kernels import CpuKernels
from ..model_config import ModelConfig
from ..packed_matrix import Weights
from .linear import GatedLinear, Linear


class GatedMLP:
    """activation(gate) * up in one product, then ``out``, which its caller applies."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights, kernels: CpuKernels) -> None:
        prefix = f"model.layers.{index}.mlp."
        self.out = Linear(weights.matrices[prefix + "down_proj.weight"], kernels)
        self._gate_up = GatedLinear(weights.matrices[prefix + "gate_up_proj.weight"], kernels, config.activation)

    def __call__(self, hidden: Tensor) -> Tensor:
        """``hidden`` [tokens, hidden_size] -> [tokens, intermediate_size], what ``out`` takes."""
        return self._gate_up(hidden)
