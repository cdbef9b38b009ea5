"""`Attention`: the attention of one layer, from normed hidden states to its output product."""

from __future__ import annotations

import torch
from torch import Tensor

from ..batch import Batch
from ..kernels import CpuKernels
from ..kv_cache import CacheLayer
from ..model_config import ModelConfig
from ..packed_matrix import Weights
from .linear import Linear


class Attention:
    """Queries, keys and values in one product; rotation; cache write; attention; ``out``, which its caller applies.

    ``has_bias``: queries, keys and values have biases. ``has_norms``: each head of queries and keys is normed before
    it is rotated. Window and soft-cap come from the config.
    """

    def __init__(
        self, config: ModelConfig, index: int, weights: Weights, kernels: CpuKernels, has_bias: bool, has_norms: bool
    ) -> None:
        prefix = f"model.layers.{index}.self_attn."
        bias = weights.vectors[prefix + "qkv_proj.bias"] if has_bias else None
        self.out = Linear(weights.matrices[prefix + "o_proj.weight"], kernels)
        self._qkv = Linear(weights.matrices[prefix + "qkv_proj.weight"], kernels, bias)
        self._norms: tuple[Tensor, Tensor] | None = None
        if has_norms:
            query_norm, key_norm = (weights.vectors[f"{prefix}{name}_norm.weight"] for name in "qk")
            self._norms = query_norm + config.norm_offset, key_norm + config.norm_offset
        self._kernels = kernels
        self._num_heads = config.num_heads
        self._epsilon = config.rms_norm_eps
        self._scale = config.head_dim**-0.5 if config.query_scale is None else config.query_scale
        self._window = config.window(index)
        self._softcap = config.attention_softcap

    def __call__(self, hidden: Tensor, batch: Batch, layer: CacheLayer, cos_sin: Tensor) -> Tensor:
        """``hidden`` [tokens, hidden_size] -> [tokens, heads * head_dim], what ``out`` takes."""
        queries = self._kernels.rotary(
            self._qkv(hidden, torch.float32),
            cos_sin,
            batch,
            layer,
            self._num_heads,
            self._scale,
            self._norms,
            self._epsilon,
        )
        return self._kernels.attention(queries, batch, layer, self.out.dtype, self._window, self._softcap)
