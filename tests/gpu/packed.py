"""Random weights in every packed format, beside the same numbers in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ringcast.gpu.packed_matrix import PackedMatrix
from ringcast.gpu.packing import FORMATS, Packing, pack_floats, pack_q4, pack_q8

__all__ = ["FORMATS", "activations", "random_matrix"]


def random_matrix(format_name: str, columns: int, depth: int, gated: bool = False) -> tuple[PackedMatrix, Tensor]:
    """A packed weight and what it stands for: float64 [columns, depth]."""
    generator = np.random.default_rng(columns + depth)
    packing = Packing(format_name, columns, depth, gated)
    pieces, values = _DRAW[format_name](generator, columns, depth, packing)
    data = torch.from_numpy(np.concatenate([*pieces]))
    return PackedMatrix(data, packing), torch.from_numpy(values.astype(np.float64))


def activations(format_name: str, rows: int, depth: int) -> Tensor:
    """What such a weight is multiplied with: [rows, depth], always the same first rows."""
    x = torch.randn((depth, 64), generator=torch.Generator().manual_seed(depth)).T[:rows].contiguous()
    return x if format_name == "F32" else x.bfloat16()


def _f32(generator: np.random.Generator, columns: int, depth: int, packing: Packing) -> Any:
    values = generator.standard_normal((columns, depth), np.float32)
    return pack_floats(values, packing), values


def _bf16(generator: np.random.Generator, columns: int, depth: int, packing: Packing) -> Any:
    tensor = torch.from_numpy(generator.standard_normal((columns, depth), np.float32)).bfloat16()
    return pack_floats(tensor.view(torch.uint16).numpy(), packing), tensor.double().numpy()


def _scales(generator: np.random.Generator, columns: int, depth: int) -> Any:
    """float16 [columns, blocks] of all sizes, the smallest denormal, and both signs."""
    scales = 10.0 ** generator.uniform(-6, 0, (columns, depth // 32)) * generator.choice(
        [-1, 1], (columns, depth // 32)
    )
    return scales.astype(np.float16)


def _q4(generator: np.random.Generator, columns: int, depth: int, packing: Packing) -> Any:
    scales, offsets = _scales(generator, columns, depth), _scales(generator, columns, depth)
    numbers = generator.integers(0, 16, (columns, depth), np.uint8)
    values = scaled(numbers, scales) + np.repeat(offsets.astype(np.float64), 32, axis=1)
    return pack_q4(scales, offsets, numbers, packing), values


def _q8(generator: np.random.Generator, columns: int, depth: int, packing: Packing) -> Any:
    scales = _scales(generator, columns, depth)
    numbers = generator.integers(-128, 128, (columns, depth), np.int8)
    return pack_q8(scales, numbers, packing), scaled(numbers, scales)


def scaled(numbers: Any, scales: Any) -> Any:
    """numbers [columns, depth] times the scale of their block, in float64."""
    return numbers.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)


_DRAW = {"F32": _f32, "BF16": _bf16, "Q4": _q4, "Q8": _q8}
