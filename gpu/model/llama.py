"""Llama: attention, then a gated MLP, each behind an RMSNorm and added to the stream."""

from __future__ import annotations

from typing import ClassVar

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


class LlamaLayer:
    """One layer. Families that differ in the attention alone derive from it."""

    has_bias: ClassVar[bool] = False
    has_norms: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, index: int, weights: Weights, kernels: CpuKernels) -> None:
        prefix = f"model.layers.{index}."
        self._attention_norm = RMSNorm(config, weights, prefix + "input_layernorm.weight", kernels)
        self._attention = Attention(config, index, weights, kernels, self.has_bias, self.has_norms)
        self._mlp_norm = RMSNorm(config, weights, prefix + "post_attention_layernorm.weight", kernels)
        self._mlp = GatedMLP(config, index, weights, kernels)

    def __call__(self, residual: Tensor, batch: Batch, cache: CacheLayer, cos_sin: Tensor) -> None:
        attention, mlp = self._attention, self._mlp
        hidden = self._attention_norm(residual, attention.out.dtype)
        attention.out.add_to(residual, attention(hidden, batch, cache, cos_sin))
        mlp.out.add_to(residual, mlp(self._mlp_norm(residual, mlp.out.dtype)))


class Llama(Decoder):
    layer_type = LlamaLayer
