"""Gemma 2: norms before and after attention and MLP, a window on every second layer, soft-caps, scaled embeddings.

The MLP's activation is GELU; all norms multiply by 1 + weight (the config's ``norm_offset``).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..batch import Batch
from ..kernels import CpuKernels
from ..kv_cache import CacheLayer
from ..layers.attention import Attention
from ..layers.mlp import GatedMLP
from ..layers.norm import RMSNorm
from ..model_config import ModelConfig
from ..packed_matrix import Weights
from .decoder import Decoder


class Gemma2Layer:
    """One layer. What attention and MLP add to the stream is normed first, in float32."""

    has_norms: ClassVar[bool] = False  # on each head of queries and keys

    def __init__(self, config: ModelConfig, index: int, weights: Weights, kernels: CpuKernels) -> None:
        def norm(name: str) -> RMSNorm:
            return RMSNorm(config, weights, f"model.layers.{index}.{name}_layernorm.weight", kernels)

        self._before_attention = norm("input")
        self._attention = Attention(config, index, weights, kernels, has_bias=False, has_norms=self.has_norms)
        self._after_attention = norm("post_attention")
        self._before_mlp = norm("pre_feedforward")
        self._mlp = GatedMLP(config, index, weights, kernels)
        self._after_mlp = norm("post_feedforward")

    def __call__(self, residual: Tensor, batch: Batch, cache: CacheLayer, cos_sin: Tensor) -> None:
        attention, mlp = self._attention, self._mlp
        attended = attention(self._before_attention(residual, attention.out.dtype), batch, cache, cos_sin)
        self._after_attention.add_to(residual, attention.out(attended, torch.float32))
        gated = mlp(self._before_mlp(residual, mlp.out.dtype))
        self._after_mlp.add_to(residual, mlp.out(gated, torch.float32))


class Gemma2(Decoder):
    layer_type = Gemma2Layer
