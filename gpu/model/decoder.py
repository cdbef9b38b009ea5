"""`Decoder`: what all models share: embedding, a stack of one family's layers, final norm, head. The runner drives it.

The stream between the layers stays in float32; products run in the model's dtype. A model owns weights, no cache.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..batch import Batch
from ..kernels import CpuKernels
from ..kv_cache import CacheLayer, KVCache
from ..layers.linear import Embedding, Linear
from ..layers.norm import RMSNorm
from ..layers.rotary import cos_sin_table
from ..model_config import ModelConfig
from ..packed_matrix import Weights


class Layer(Protocol):
    """One layer of a family."""

    def __init__(self, config: ModelConfig, index: int, weights: Weights, kernels: CpuKernels) -> None: ...

    def __call__(self, residual: Tensor, batch: Batch, cache: CacheLayer, cos_sin: Tensor) -> None:
        """Write the batch's keys and values into ``cache`` and add to ``residual`` float32 [tokens, hidden_size]."""


class Decoder:
    """Token ids in, hidden states and logits out. A family names its ``layer_type``."""

    layer_type: ClassVar[type[Layer]]

    def __init__(self, config: ModelConfig, weights: Weights, kernels: CpuKernels) -> None:
        self._config = config
        self._kernels = kernels
        embedding = weights.matrices["model.embed_tokens.weight"]
        self._embedding = Embedding(embedding, kernels, config.embedding_scale)
        self._layers = [self.layer_type(config, index, weights, kernels) for index in range(config.num_layers)]
        self._norm = RMSNorm(config, weights, "model.norm.weight", kernels)
        self._head = Linear(embedding if config.tie_word_embeddings else weights.matrices["lm_head.weight"], kernels)
        self._cos_sin: list[Tensor] = []

    def prepare(self, max_model_len: int) -> None:
        """Make room for positions below ``max_model_len``."""
        ropes = [self._config.layer_rope(index) for index in range(self._config.num_layers)]
        tables = {rope: cos_sin_table(rope, max_model_len) for rope in set(ropes)}
        self._cos_sin = [tables[rope] for rope in ropes]

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into ``cache``; the normed hidden states of its ``logit_tokens``."""
        residual = self._embedding(batch.token_ids)
        for layer, blocks, cos_sin in zip(self._layers, cache.layers, self._cos_sin, strict=True):
            layer(residual, batch, blocks, cos_sin)
        return self._norm(self._kernels.gather(residual, batch), self._head.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab] of normed hidden states; a row's bits do not depend on the rows beside it."""
        logits = self._head(hidden, torch.float32)
        if self._config.logit_softcap:
            self._kernels.softcap(logits, self._config.logit_softcap)
        return logits
