"""`CpuKernels`: the native kernels as functions of torch tensors. Native code is called here and in two other modules
named ``*_kernels``.

Every size, type and layout is checked here, so native code can trust its numbers; values that must be in range (block
ids, positions, token ids) are checked where they enter, in `rows`. Kernels allocate their outputs and keep no state.
"""

from __future__ import annotations

import math
from typing import Any

import torch  # before the native module: both must find the same OpenMP runtime, torch's
from torch import Tensor

from . import _kernels
from .batch import Batch
from .errors import UnsupportedModelError
from .kv_cache import CacheLayer
from .worker_config import BLOCK_SIZE_UNIT

DTYPE_NUMBERS = {torch.float32: 0, torch.bfloat16: 1}
ACTIVATIONS = ("silu", "gelu_tanh")  # in the order of native/kernels.h
_MAX_HEAD_DIM = 1024  # kMaxHeadDim in native/vector16.h
LEVELS = ("portable", "avx2", "avx512", "avx512bf16")


class CpuKernels:
    """Kernels for one instruction set and number of threads.

    ``level`` names the instruction set (one of `LEVELS`); None takes the best that this processor has. ``native`` is
    what carries out the calls of a forward pass.
    """

    # `_kernels` itself, or a `_kernels.Program`, which only notes the calls down (see `recorded_pass`).
    native: Any = _kernels

    def __init__(self, num_threads: int, level: str | None = None) -> None:
        best = _kernels.best_level()
        self.level_number = best if level is None else LEVELS.index(level)
        if self.level_number > best:
            raise ValueError(f"this processor has no {level}; its best level is {LEVELS[best]}")
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}; it must be at least 1")
        self.num_threads = num_threads
        self.level = LEVELS[self.level_number]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory for an output."""
        return torch.empty(shape, dtype=dtype)

    def norm(self, x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        """RMSNorm of ``x`` float32 [rows, size], computed in float32: the same shape as ``dtype``."""
        out = self.empty(tuple(x.shape), dtype)
        self._norm(x, weight, epsilon, out, add=False)
        return out

    def norm_add(self, residual: Tensor, x: Tensor, weight: Tensor, epsilon: float) -> None:
        """``residual`` += RMSNorm of ``x``, both float32 [rows, size]."""
        require(residual, "residual", torch.float32, tuple(x.shape))
        self._norm(x, weight, epsilon, residual, add=True)

    def _norm(self, x: Tensor, weight: Tensor, epsilon: float, out: Tensor, add: bool) -> None:
        rows, size = x.shape
        require(x, "x", torch.float32, (rows, size))
        require(weight, "weight", torch.float32, (size,))
        self.native.norm(
            self.level_number, self.num_threads, x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, size, epsilon,
            add, DTYPE_NUMBERS[out.dtype],
        )  # fmt: skip

    def gather(self, x: Tensor, batch: Batch) -> Tensor:
        """The rows of ``x`` float32 [tokens, size] of the tokens whose logits are wanted: [draws, size]."""
        size, draws = x.shape[1], batch.logit_tokens.shape[0]
        require(x, "x", torch.float32, (batch.num_tokens, size))
        out = self.empty((draws, size), torch.float32)
        self.native.gather(
            self.level_number, x.data_ptr(), batch.logit_tokens.data_ptr(), out.data_ptr(), draws, size
        )  # fmt: skip
        return out

    def rotary(
        self, qkv: Tensor, cos_sin: Tensor, batch: Batch, layer: CacheLayer, num_heads: int, scale: float,
        norms: tuple[Tensor, Tensor] | None = None, epsilon: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """Rotate queries and keys by HF's convention and store keys and values at the batch's slots.

        ``qkv`` [tokens, (heads + 2 * kv_heads) * head_dim]; returns the queries [tokens, heads, head_dim] in float32,
        multiplied by ``scale``. ``cos_sin`` [positions, dimensions to rotate] must reach the largest position.
        ``norms``: weights [head_dim] of the RMSNorms of each query's and key's head before they are rotated.
        """
        tokens, head_dim = batch.num_tokens, layer.head_dim
        rotary_dim = cos_sin.shape[1]
        require(qkv, "qkv", qkv.dtype, (tokens, (num_heads + 2 * layer.num_kv_heads) * head_dim))
        require(cos_sin, "cos_sin", torch.float32, (cos_sin.shape[0], rotary_dim))
        if rotary_dim % 2 or rotary_dim > head_dim:
            raise ValueError(f"{rotary_dim} dimensions of heads of {head_dim} cannot be rotated")
        for norm in norms or ():
            require(norm, "norm", torch.float32, (head_dim,))
        query_norm, key_norm = (norm.data_ptr() for norm in norms) if norms else (0, 0)
        queries = self.empty((tokens, num_heads, head_dim), torch.float32)
        self.native.rotary(
            self.level_number, self.num_threads, qkv.data_ptr(), query_norm, key_norm, cos_sin.data_ptr(),
            batch.positions.data_ptr(), batch.slots.data_ptr(), queries.data_ptr(), tokens, num_heads, rotary_dim,
            scale, epsilon, layer.view, DTYPE_NUMBERS[qkv.dtype],
        )  # fmt: skip
        return queries

    def attention(
        self, queries: Tensor, batch: Batch, layer: CacheLayer, dtype: torch.dtype, window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """Every query attends to its sequence's tokens up to itself: [tokens, heads, head_dim] -> [tokens, hidden].

        With a ``window`` it attends to the last that many only, itself included (0: to all); with a ``softcap`` scores
        are bent to softcap * tanh(score / softcap) (0: they are not).
        A query's result depends on its sequence alone: not on other sequences, on chunking, or on ``block_size``.
        """
        tokens, heads, head_dim = queries.shape
        require(queries, "queries", torch.float32, (batch.num_tokens, heads, layer.head_dim))
        if heads % layer.num_kv_heads:
            raise ValueError(f"{heads} heads cannot share {layer.num_kv_heads} key-value heads evenly")
        out = self.empty((tokens, heads * head_dim), dtype)
        self.native.attention(
            self.level_number, self.num_threads, queries.data_ptr(), out.data_ptr(), batch.block_tables.data_ptr(),
            batch.query_starts.data_ptr(), batch.kv_lengths.data_ptr(), batch.kv_lengths.shape[0],
            batch.block_tables.shape[1], heads, window, softcap, layer.view, DTYPE_NUMBERS[dtype],
        )  # fmt: skip
        return out

    def softcap(self, values: Tensor, cap: float) -> None:
        """Bend ``values`` float32 [rows, size] to cap * tanh(value / cap), in place."""
        require(values, "values", torch.float32, tuple(values.shape))
        _kernels.softcap(self.level_number, self.num_threads, values.data_ptr(), values.numel(), cap)


def check_attention_shape(head_dim: int, block_size: int) -> None:
    """Refuse what the attention kernel's vectors of 16 cannot hold, before anything is allocated."""
    if head_dim % 16 or head_dim > _MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"attention heads of {head_dim} dimensions are not supported (multiples of 16 up to {_MAX_HEAD_DIM} are); "
            "choose another model"
        )
    if block_size % BLOCK_SIZE_UNIT or block_size < 1:
        raise UnsupportedModelError(f"block size {block_size} is not supported; use a multiple of {BLOCK_SIZE_UNIT}")


def require(tensor: Tensor, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_contiguous():
        raise ValueError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()}; "
            f"a contiguous {dtype} {list(shape)} is needed"
        )
    if dtype not in DTYPE_NUMBERS and dtype not in (torch.int64, torch.float64):
        raise ValueError(f"{name} is {dtype}; the kernels take float32 and bfloat16")


class KeepingKernels(CpuKernels):
    """Kernels whose outputs share one piece of memory, as large as the largest so far; each lasts until the next.

    For logits, which are large and made anew in every step: memory that goes to the allocator and back in ever other
    sizes leaves holes behind, and the process grows.
    """

    def __init__(self, kernels: CpuKernels) -> None:
        super().__init__(kernels.num_threads, kernels.level)
        self._memory = torch.empty(0, dtype=torch.uint8)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        if len(self._memory) < size:
            self._memory = torch.empty(size, dtype=torch.uint8)
        return self._memory[:size].view(dtype).view(shape)
