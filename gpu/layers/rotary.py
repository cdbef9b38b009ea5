"""The table of cosines and sines for rotary position embedding, as HF computes it (RoFormer, arXiv 2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor


def cos_sin_table(head_dim: int, theta: float, num_positions: int) -> Tensor:
    """float32 [num_positions, head_dim]: cosines of the head_dim/2 angles, then their sines.

    Angle i of position p is p * theta ** (-2i / head_dim), in float32 throughout, like the models were trained.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=1)
