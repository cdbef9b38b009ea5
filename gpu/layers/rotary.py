"""The table of cosines and sines for rotary position embedding, as HF computes it for each kind of scaling.

HF changes the frequencies of "dynamic" and "longrope" with the length of the sequence at hand, against which the keys
that are cached already would be wrong. Here they are chosen once, by the context that the worker serves: up to the
original context they are the unscaled ones, beyond it those that HF takes for a sequence of the full length.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..rope_config import RopeConfig


def cos_sin_table(rope: RopeConfig, num_positions: int) -> Tensor:
    """float32 [num_positions, rotary_dim]: cosines of the rotary_dim/2 angles, then their sines.

    Angle i of position p is p * frequency i, in float32 throughout, as the models were trained.
    """
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies(rope, num_positions))
    return torch.cat([angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor], dim=1)


def frequencies(rope: RopeConfig, num_positions: int) -> Tensor:
    """float32 [rotary_dim / 2], for a context of ``num_positions``. `KeyError` for a kind that `rope_config` lacks."""
    return _FREQUENCIES[rope.kind](rope, num_positions)


def _powers(theta: float, rotary_dim: int) -> Tensor:
    return theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim)


def _default(rope: RopeConfig, num_positions: int) -> Tensor:
    return 1.0 / _powers(rope.theta, rope.rotary_dim)


def _linear(rope: RopeConfig, num_positions: int) -> Tensor:
    return _default(rope, num_positions) / rope.factor


def _dynamic(rope: RopeConfig, num_positions: int) -> Tensor:
    """ "Dynamic NTK": theta grows with the context."""
    length, dim = max(num_positions, rope.original_context), rope.rotary_dim
    growth = rope.factor * length / rope.original_context - (rope.factor - 1)
    return 1.0 / _powers(rope.theta * growth ** (dim / (dim - 2)), dim)


def _yarn(rope: RopeConfig, num_positions: int) -> Tensor:
    """YaRN (arXiv 2309.00071): fast frequencies stay, slow ones are divided by the factor, others are blended."""
    dim, powers = rope.rotary_dim, _powers(rope.theta, rope.rotary_dim)

    def dimension_of(rotations: float) -> float:
        """The dimension that turns so often within the original context."""
        return dim * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept


def _llama3(rope: RopeConfig, num_positions: int) -> Tensor:
    """Llama 3.1: by wavelength; short ones stay, long ones are divided by the factor, those between are blended."""
    plain = _default(rope, num_positions)
    wavelengths = 2 * math.pi / plain
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    scaled = torch.where(wavelengths > rope.original_context / low, plain / rope.factor, plain)
    smooth = (rope.original_context / wavelengths - low) / (high - low)
    blended = (1 - smooth) * scaled / rope.factor + smooth * scaled
    between = (wavelengths >= rope.original_context / high) & (wavelengths <= rope.original_context / low)
    return torch.where(between, blended, scaled)


def _longrope(rope: RopeConfig, num_positions: int) -> Tensor:
    """LongRoPE (arXiv 2402.13753): a divisor for each frequency, one set up to the original context, one beyond."""
    factors = rope.long_factors if num_positions > rope.original_context else rope.short_factors
    return 1.0 / (torch.tensor(factors) * _powers(rope.theta, rope.rotary_dim))


def _divided(rope: RopeConfig, num_positions: int) -> Tensor:
    return 1.0 / (torch.tensor(rope.short_factors) * _powers(rope.theta, rope.rotary_dim))


_FREQUENCIES: dict[str, Callable[[RopeConfig, int], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "divided": _divided,
}
