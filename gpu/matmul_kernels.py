"""Products with packed weights, as functions of torch tensors. `layers.linear` calls them; like `kernels`, it checks
every size, type and layout, so that native code can trust its numbers. Token ids are checked in `rows`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import ACTIVATIONS, DTYPE_NUMBERS, CpuKernels, require
from .packed_matrix import PackedMatrix
from .packing import PANEL_COLUMNS

# Finish in native/matmul.h.
_STORE, _ADD, _GATED = 0, 1, 2


def matmul(
    kernels: CpuKernels, x: Tensor, weight: PackedMatrix, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``x`` [rows, depth] times the weight, plus ``bias``: [rows, columns] as ``dtype`` (None: that of ``x``).

    ``bias`` is float32 [columns, filled up to a multiple of 16]. A row's result depends on that row alone.
    """
    out = kernels.empty((x.shape[0], weight.columns), dtype or x.dtype)
    _run(kernels, x, weight, bias, out, _STORE)
    return out


def matmul_add(kernels: CpuKernels, x: Tensor, weight: PackedMatrix, bias: Tensor | None, residual: Tensor) -> None:
    """The same, added to ``residual`` float32 [rows, columns] in place."""
    require(residual, "residual", torch.float32, (x.shape[0], weight.columns))
    _run(kernels, x, weight, bias, residual, _ADD)


def matmul_gated(kernels: CpuKernels, x: Tensor, weight: PackedMatrix, activation: str) -> Tensor:
    """``activation`` (one of `ACTIVATIONS`) of the product's first half of columns, times the second half."""
    if not weight.packing.gated:
        raise ValueError("the weight is not packed as gates and ups in turn")
    out = kernels.empty((x.shape[0], weight.columns // 2), x.dtype)
    _run(kernels, x, weight, None, out, _GATED + ACTIVATIONS.index(activation))
    return out


def embed(kernels: CpuKernels, token_ids: Tensor, weight: PackedMatrix, scale: float) -> Tensor:
    """Rows ``token_ids`` int64 [tokens] of the weight times ``scale``, as float32 [tokens, depth]."""
    require(token_ids, "token_ids", torch.int64, (token_ids.shape[0],))
    out = kernels.empty((token_ids.shape[0], weight.depth), torch.float32)
    kernels.native.embed(
        kernels.level_number, kernels.num_threads, token_ids.data_ptr(), token_ids.shape[0], weight.view,
        out.data_ptr(), scale,
    )  # fmt: skip
    return out


def _run(kernels: CpuKernels, x: Tensor, weight: PackedMatrix, bias: Tensor | None, out: Tensor, finish: int) -> None:
    require(x, "x", weight.dtype, (x.shape[0], weight.depth))
    if bias is not None:
        require(bias, "bias", torch.float32, (weight.packing.panels * PANEL_COLUMNS,))
    if finish < _GATED and weight.packing.gated:
        raise ValueError("the weight is packed as gates and ups in turn: its plain product has no use")
    kernels.native.matmul(
        kernels.level_number, kernels.num_threads, x.data_ptr(), x.shape[0], weight.view,
        0 if bias is None else bias.data_ptr(), out.data_ptr(), out.shape[1], DTYPE_NUMBERS[out.dtype], finish,
    )  # fmt: skip
