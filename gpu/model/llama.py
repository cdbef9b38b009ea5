"""`Llama`: the decoder of Llama-like checkpoints over flattened tokens. Built by the runner; owns weights, no cache.

The stream between the layers stays in float32; products run in the model's dtype. Norms, rotary embedding and attention
are native kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from ..batch import Batch
from ..kernels import CpuKernels
from ..kv_cache import CacheLayer, KVCache
from ..layers.linear import Linear
from ..layers.rotary import cos_sin_table
from ..model_config import ModelConfig


class LlamaLayer:
    """One decoder layer: attention, then a gated MLP, each behind an RMSNorm."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str, kernels: CpuKernels) -> None:
        self._config = config
        self._kernels = kernels
        vectors, matrices = weights.vectors, weights.matrices
        self._attention_norm = vectors[prefix + "input_layernorm.weight"]
        self._qkv = Linear(matrices[prefix + "self_attn.qkv_proj.weight"], kernels)
        self._attention_out = Linear(matrices[prefix + "self_attn.o_proj.weight"], kernels)
        self._mlp_norm = vectors[prefix + "post_attention_layernorm.weight"]
        self._gate_up = GatedLinear(matrices[prefix + "mlp.gate_up_proj.weight"], kernels)
        self._down = Linear(matrices[prefix + "mlp.down_proj.weight"], kernels)

    def __call__(
        self, delta: Tensor | None, residual: Tensor, batch: Batch, layer: CacheLayer, cos_sin: Tensor
    ) -> Tensor:
        """Add ``delta`` (what the layer before computed) to ``residual`` and return what this layer adds to it."""
        kernels, epsilon, dtype = self._kernels, self._config.rms_norm_eps, self._qkv.weight.dtype
        hidden = kernels.norm(delta, residual, self._attention_norm, epsilon, dtype)
        queries = kernels.rotary(self._qkv(hidden), cos_sin, batch, layer, self._config.num_heads)
        attended = self._attention_out(kernels.attention(queries, batch, layer, dtype))
        hidden = kernels.norm(attended, residual, self._mlp_norm, epsilon, dtype)
        return self._down(kernels.gate(self._gate_up(hidden)))


class Llama:
    """Token ids in, logits out. ``weights`` are those of the weight table, all of one dtype."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: CpuKernels) -> None:
        self._config = config
        self._kernels = kernels
        self._embedding = weights["model.embed_tokens.weight"]
        self._layers = [
            LlamaLayer(config, weights, f"model.layers.{index}.", kernels) for index in range(config.num_layers)
        ]
        self._norm = weights["model.norm.weight"].float()
        head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        self._head = Linear(weights[head])
        self._cos_sin = torch.empty((0, config.head_dim))

    def prepare(self, max_model_len: int) -> None:
        """Make room for positions below ``max_model_len``."""
        self._cos_sin = cos_sin_table(self._config.head_dim, self._config.rope_theta, max_model_len)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into ``cache``; float32 logits [draws, vocab] of its ``logit_tokens``."""
        residual = functional.embedding(batch.token_ids, self._embedding).float()
        delta: Tensor | None = None
        for layer, blocks in zip(self._layers, cache.layers, strict=True):
            delta = layer(delta, residual, batch, blocks, self._cos_sin)
        if not len(batch.logit_tokens):
            return torch.empty((0, self._config.vocab_size))
        hidden = self._kernels.norm(delta, residual, self._norm, self._config.rms_norm_eps, self._head.weight.dtype)
        return self._head(hidden[batch.logit_tokens]).float()
