"""`ModelRunner`: runs step plans on a loaded model. Owned by the worker; holds model, KV cache and rows.

A step: apply the plan to the rows, gather the inputs, forward, draw, and keep the tokens drawn so that the next plan
need not carry them. It decides nothing about what to run: that is the engine core's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ringcast.scheduler.messages import KVCacheConfig, Logprobs, PromptLogprobs, StepPlan, StepResult

from .batch import Batch
from .errors import PlanError
from .kernels import CpuKernels, KeepingKernels, check_attention_shape
from .kv_cache import KVCache, bytes_per_block
from .model import MODELS
from .model_config import ModelConfig
from .packed_matrix import Weights
from .recorded_pass import RecordedPass, RecordingKernels
from .rows import PromptPart, Rows, StepArrays
from .sampler import sample, token_logprobs
from .sampling_kernels import SamplingKernels

# Logits of prompt tokens are made and looked at in pieces, so that a chunk costs no more memory than this.
_PROMPT_LOGITS_BYTES = 64 << 20


class ModelRunner:
    """One model on this device. ``dtype`` is that of activations and cache.

    ``exact``: whether a request's logits are bit-equal whatever its batch mates, chunks, blocks and threads;
    ``exactness`` says so, and why. ``on_progress`` may be set: it is called now and then in long steps.
    """

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, kernels: CpuKernels) -> None:
        self.config = config
        self.dtype = dtype
        # Every kernel accumulates an element by one chain, in an order that its row alone decides; torch only copies.
        self.exact = True
        self.exactness = f"exact: every sum of the native {kernels.level} kernels has a fixed order"
        self.on_progress: Callable[[], None] | None = None
        self._sampling = SamplingKernels(kernels)
        self._model = MODELS[config.architecture](config, weights, KeepingKernels(kernels))  # for logits alone
        self._weights = weights
        self._kernels = kernels
        self._forward: RecordedPass | None = None
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
        # Before the new one is taken, the memory of the old one must be free.
        self._cache = self._rows = self._forward = None
        if cache is None or (cache.num_blocks, cache.block_size) != (config.num_blocks, config.block_size):
            cache = None
            cache = KVCache(self.config, config.num_blocks, config.block_size, self.dtype)
        recorder = RecordingKernels(self._kernels)
        model = MODELS[self.config.architecture](self.config, self._weights, recorder)
        model.prepare(config.max_model_len)
        self._forward = RecordedPass(model.forward, recorder, cache, config.max_num_batched_tokens)
        self._rows = Rows(config, self.config.vocab_size)
        self._cache = cache

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. `PlanError` if the plan does not fit: then nothing was computed, and part of the plan may be
        applied, so the core has to initialise again.
        """
        if self._forward is None or self._rows is None:
            raise PlanError(f"step {plan.step_id} came before initialize_from_config, which allocates the cache")
        self._rows.apply(plan)
        if not plan.rows:
            return StepResult(plan.step_id, [], [])
        arrays = self._rows.gather(plan)
        hidden = self._forward(_to_batch(arrays), self.on_progress)
        drawn_hidden, prompt_hidden = hidden.tensor_split([len(arrays.sampled)])
        logits = self._model.logits(drawn_hidden)
        draws = sample(logits, self._rows.rules(arrays.sampled), self._sampling)
        self._rows.advance(plan, arrays.sampled, draws.token_ids)
        return StepResult(
            plan.step_id,
            arrays.sampled.tolist(),
            draws.token_ids.tolist(),
            draws.logprobs,
            self._prompt_logprobs(prompt_hidden, arrays.prompt_parts) if arrays.prompt_parts else None,
            draws.errors,
        )

    def _prompt_logprobs(self, hidden: Tensor, parts: list[PromptPart]) -> list[PromptLogprobs]:
        told: list[PromptLogprobs] = []
        size = max(1, _PROMPT_LOGITS_BYTES // (4 * self.config.vocab_size))
        end = 0
        for part in parts:
            begin, end = end, end + len(part.token_ids)
            pieces: list[Logprobs] = []
            for start in range(begin, end, size):
                stop = min(start + size, end)
                logits = self._model.logits(hidden[start:stop])
                tokens = part.token_ids[start - begin : stop - begin]
                pieces.append(token_logprobs(logits, np.arange(len(tokens)), tokens, part.count, self._sampling))
                if self.on_progress is not None:
                    self.on_progress()
            told.append(PromptLogprobs(part.row, part.first, _joined(pieces)))
        return told


def _joined(pieces: list[Logprobs]) -> Logprobs:
    """The log-probabilities of successive positions as one."""
    return Logprobs(
        pieces[0].width,
        b"".join(piece.token_ids for piece in pieces),
        b"".join(piece.logprobs for piece in pieces),
        b"".join(piece.ranks for piece in pieces),
    )


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
