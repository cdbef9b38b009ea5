"""`RecordedPass`: a model's forward pass as one native call. Made by the runner for the sizes it was told to serve.

Python runs the model once, with kernels that note their calls down instead of making them, over memory that stays. A
step then fills in its batch. The model need not know; but it may compute by kernels only: what torch computed between
them would be missing from the record. Tests compare the two for every architecture.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ._kernels import Program
from .batch import Batch
from .errors import KVCacheMemoryError
from .kernels import CpuKernels
from .kv_cache import KVCache

_SLICE_CALLS = 8  # about a layer: after so many calls a long pass says that it is at work
_LONG_TOKENS = 32  # a pass over fewer tokens is short, and made in one piece
_ALL_CALLS = 1 << 30


class Forward(Protocol):
    """A model's forward pass: normed hidden states [draws, hidden] of the batch's ``logit_tokens``."""

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor: ...


class RecordingKernels(CpuKernels):
    """Kernels that note their calls in ``native``. Outputs whose tensors are gone lend their memory to later ones."""

    def __init__(self, kernels: CpuKernels) -> None:
        super().__init__(kernels.num_threads, kernels.level)
        self.native = Program()
        self.blocks: list[Tensor] = []  # all memory that the noted calls use
        self._free: list[Tensor] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        fitting = [block for block in self._free if len(block) >= size]
        block = min(fitting, key=len) if fitting else torch.empty(size, dtype=torch.uint8)
        if fitting:
            self._free[:] = [other for other in self._free if other is not block]
        else:
            self.blocks.append(block)
        tensor = block[:size].view(dtype).view(shape)
        weakref.finalize(tensor, self._free.append, block).atexit = False
        return tensor


class RecordedPass:
    """Callable like the model's forward. What it returns is overwritten by the next call."""

    def __init__(self, forward: Forward, kernels: RecordingKernels, cache: KVCache, max_tokens: int) -> None:
        """``forward`` belongs to a model that was built with ``kernels`` and prepared. `KVCacheMemoryError`."""
        self._kernels = kernels
        # The record points into the model's and the cache's memory.
        self._model = forward
        self._cache = cache
        self._max_tokens = max_tokens
        try:
            self._hidden = forward(_placeholder(max_tokens), cache)
        except RuntimeError as error:
            if "DefaultCPUAllocator" not in str(error):  # torch's out-of-memory error has no class of its own
                raise
            raise KVCacheMemoryError(
                f"no memory for steps of max_num_batched_tokens={max_tokens}, which the system refused; lower it"
            ) from error

    def __call__(self, batch: Batch, on_progress: Callable[[], None] | None = None) -> Tensor:
        """Write the batch's keys and values and return the normed hidden states of its ``logit_tokens``.

        ``on_progress`` is called after each layer or so of a long pass.
        """
        draws = batch.logit_tokens.shape[0]
        if max(batch.num_tokens, draws) > self._max_tokens:
            raise ValueError(f"{batch.num_tokens} tokens, {draws} draws: recorded for up to {self._max_tokens}")
        step = (
            self._kernels.level_number, batch.token_ids.data_ptr(), batch.positions.data_ptr(), batch.slots.data_ptr(),
            batch.query_starts.data_ptr(), batch.kv_lengths.data_ptr(), batch.block_tables.data_ptr(),
            batch.logit_tokens.data_ptr(), batch.num_tokens, batch.kv_lengths.shape[0], batch.block_tables.shape[1],
            draws,
        )  # fmt: skip
        run = self._kernels.native.run
        if on_progress is None or batch.num_tokens < _LONG_TOKENS:
            run(*step, 0, _ALL_CALLS)
        else:
            following = run(*step, 0, _SLICE_CALLS)
            while following:
                on_progress()
                following = run(*step, following, _SLICE_CALLS)
        return self._hidden[:draws]


def _placeholder(tokens: int) -> Batch:
    """One sequence of ``tokens``, all of whose logits are wanted. Only its sizes count."""
    return Batch(
        token_ids=torch.zeros(tokens, dtype=torch.int64),
        positions=torch.zeros(tokens, dtype=torch.int64),
        slots=torch.zeros(tokens, dtype=torch.int64),
        query_starts=torch.tensor([0, tokens], dtype=torch.int32),
        kv_lengths=torch.tensor([tokens], dtype=torch.int32),
        block_tables=torch.zeros((1, 1), dtype=torch.int32),
        logit_tokens=torch.zeros(tokens, dtype=torch.int64),
    )
