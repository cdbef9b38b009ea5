"""Layers around the matrix products: every product of a model, and its embedding, goes through here.

The products are the native packed-weight kernels; a row's bits do not depend on the rows beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..kernels import CpuKernels
from ..matmul_kernels import embed, matmul, matmul_add, matmul_gated
from ..packed_matrix import PackedMatrix
from ..packing import PANEL_COLUMNS


class Linear:
    """``x`` [rows, in] -> [rows, out], with a bias float32 [out] if there is one. ``dtype`` is that of ``x``."""

    def __init__(self, weight: PackedMatrix, kernels: CpuKernels, bias: Tensor | None = None) -> None:
        self.dtype = weight.dtype
        self._weight = weight
        self._kernels = kernels
        filling = weight.packing.panels * PANEL_COLUMNS - weight.columns
        self._bias = None if bias is None else functional.pad(bias, (0, filling))

    def __call__(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The product as ``dtype``, by default that of ``x``; sums are float32 and rounded once."""
        return matmul(self._kernels, x, self._weight, self._bias, dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """``residual`` float32 [rows, out] += the product."""
        matmul_add(self._kernels, x, self._weight, self._bias, residual)


class GatedLinear:
    """activation(first half of the product) * second half: [rows, in] -> [rows, out / 2], in one pass."""

    def __init__(self, weight: PackedMatrix, kernels: CpuKernels, activation: str = "silu") -> None:
        self._weight = weight
        self._kernels = kernels
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return matmul_gated(self._kernels, x, self._weight, self._activation)


class Embedding:
    """Token ids -> their rows of a packed weight (the output head's, where they are tied), in float32."""

    def __init__(self, weight: PackedMatrix, kernels: CpuKernels, scale: float = 1.0) -> None:
        self._weight = weight
        self._kernels = kernels
        self._scale = scale

    def __call__(self, token_ids: Tensor) -> Tensor:
        return embed(self._kernels, token_ids, self._weight, self._scale)
