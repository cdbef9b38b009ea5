"""`PackedMatrix`: a weight as the matrix products read it; and `Weights`, all that a model takes from the loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .packing import FORMATS, Packing


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight [columns, depth], packed. ``data`` uint8 [bytes]; ``view`` is what native code takes (PackedWeight)."""

    data: Tensor
    packing: Packing

    def __post_init__(self) -> None:
        expected = (self.packing.size_bytes,)
        if self.data.dtype is not torch.uint8 or self.data.shape != expected or not self.data.is_contiguous():
            raise ValueError(f"packed data is {self.data.dtype} {list(self.data.shape)}, not uint8 {list(expected)}")

    @property
    def columns(self) -> int:
        """Outputs of the product."""
        return self.packing.columns

    @property
    def depth(self) -> int:
        """Inputs of the product."""
        return self.packing.depth

    @property
    def dtype(self) -> torch.dtype:
        """Of what it is multiplied with: quantised blocks take bfloat16."""
        return torch.float32 if self.packing.format == "F32" else torch.bfloat16

    @property
    def view(self) -> tuple[int, int, int, int]:
        """Address, panels, depth and format."""
        return (self.data.data_ptr(), self.packing.panels, self.depth, FORMATS[self.packing.format])


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model by their name in the weight table. `KeyError` for a name that is not there."""

    vectors: Mapping[str, Tensor]  # float32 [items]: norms and biases
    matrices: Mapping[str, PackedMatrix]
