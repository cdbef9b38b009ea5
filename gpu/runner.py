"""`ModelRunner`: runs step plans on a loaded model. Owned by the worker; holds model, KV cache and rows.

A step: apply the plan to the rows, gather the inputs, forward, draw, and keep the tokens drawn so that the next plan
need not carry them. It decides nothing about what to run: that is the engine core's.
"""

from __future__ import annotations

import torch

from ringcast.scheduler.messages import KVCacheConfig, StepPlan, StepResult

from .batch import Batch
from .errors import PlanError
from .kernels import CpuKernels, check_attention_shape
from .kv_cache import KVCache, bytes_per_block
from .model import MODELS
from .model_config import ModelConfig
from .packed_matrix import Weights
from .rows import Rows, StepArrays
from .sampler import sample


class ModelRunner:
    """One model on this device. ``dtype`` is that of activations and cache.

    ``exact``: whether a request's logits are bit-equal whatever its batch mates, chunks, blocks and threads;
    ``exactness`` says so, and why.
    """

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, kernels: CpuKernels) -> None:
        self.config = config
        self.dtype = dtype
        # Every kernel accumulates an element by one chain, in an order that its row alone decides; torch only copies.
        self.exact = True
        self.exactness = f"exact: every sum of the native {kernels.level} kernels has a fixed order"
        self._kernels = kernels
        self._model = MODELS[config.architecture](config, weights, kernels)
        self._cache: KVCache | None = None
        self._rows: Rows | None = None

    def bytes_per_block(self, block_size: int) -> int:
        """Bytes that a block of ``block_size`` tokens takes in all layers."""
        return bytes_per_block(self.config, block_size, self.dtype)

    def initialize(self, config: KVCacheConfig) -> None:
        """Allocate cache and rows; what was in them is forgotten. A cache of the same size is kept.

        `KVCacheMemoryError` if the memory is not there, `UnsupportedModelError` for a block size that the attention
        kernel cannot take, `PlanError` for sizes below 1.
        """
        for name in ("num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(config, name) < 1:
                raise PlanError(f"{name} of the KV cache is {getattr(config, name)}; it must be at least 1")
        check_attention_shape(self.config.head_dim, config.block_size)
        cache = self._cache
        self._cache = self._rows = None  # so that the old one's memory is free before the new one is taken
        if cache is None or (cache.num_blocks, cache.block_size) != (config.num_blocks, config.block_size):
            cache = None
            cache = KVCache(self.config, config.num_blocks, config.block_size, self.dtype)
        self._model.prepare(config.max_model_len)
        self._rows = Rows(config, self.config.vocab_size)
        self._cache = cache

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. `PlanError` if the plan does not fit: then nothing was computed, and part of the plan may be
        applied, so the core has to initialise again.
        """
        if self._cache is None or self._rows is None:
            raise PlanError(f"step {plan.step_id} came before initialize_from_config, which allocates the cache")
        self._rows.apply(plan)
        if not plan.rows:
            return StepResult(plan.step_id, [], [])
        arrays = self._rows.gather(plan)
        logits = self._model.forward(_to_batch(arrays), self._cache)
        token_ids = sample(logits, self._rows.rules(arrays.sampled), self._kernels)
        self._rows.advance(plan, arrays.sampled, token_ids)
        return StepResult(plan.step_id, arrays.sampled.tolist(), token_ids.tolist())


def _to_batch(arrays: StepArrays) -> Batch:
    """Wrap the arrays without copying."""
    return Batch(
        token_ids=torch.from_numpy(arrays.token_ids),
        positions=torch.from_numpy(arrays.positions),
        slots=torch.from_numpy(arrays.slots),
        query_starts=torch.from_numpy(arrays.query_starts),
        kv_lengths=torch.from_numpy(arrays.kv_lengths),
        block_tables=torch.from_numpy(arrays.block_tables),
        logit_tokens=torch.from_numpy(arrays.logit_tokens),
    )
