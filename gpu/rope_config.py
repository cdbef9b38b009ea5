"""`RopeConfig`: how a layer's queries and keys are rotated, and its reading from HF configs and GGUF files. No torch.

`layers/rotary.py` computes the table of it. Kinds are HF's; "divided" is what a GGUF file makes of llama3: a divisor
for each frequency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .config_fields import Fields

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (RoFormer, arXiv 2104.09864), scaled to longer contexts as ``kind`` says.

    The first ``rotary_dim`` dimensions of a head are rotated. ``original_context``: the tokens that the model was
    trained on before it was scaled. Cosines and sines are multiplied by ``attention_factor``.
    """

    theta: float
    rotary_dim: int
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    low_frequency_factor: float = 1.0  # llama3
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()  # longrope, up to the original context; divided, always
    long_factors: tuple[float, ...] = ()  # longrope, beyond it


def rope_from_hf(
    rope: Fields, config: Fields, head_dim: int, context: int, default_theta: float, partial: bool = False
) -> RopeConfig:
    """Read HF's ``rope_parameters`` or ``rope_scaling`` object; ``config`` is what it stands in.

    ``context`` is ``max_position_embeddings``; ``partial`` allows that only a part of each head is rotated.
    """
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind not in ROPE_KINDS:
        raise rope.unsupported(f"rope scaling {kind!r}", map(repr, ROPE_KINDS))
    owner = rope if rope.values.get("rope_theta") is not None else config
    theta = owner.positive("rope_theta", default_theta)
    owner = rope if rope.values.get("partial_rotary_factor") is not None else config
    share = owner.positive("partial_rotary_factor", 1.0)
    if share != 1.0 and not partial:
        raise rope.unsupported(f"partial_rotary_factor={share}", ("1.0",))
    rotary_dim = int(head_dim * share)
    if kind == "default":
        return RopeConfig(theta, rotary_dim)
    owner = config if config.values.get("original_max_position_embeddings") is not None else rope
    original = owner.count("original_max_position_embeddings", context)
    if kind == "linear":
        return RopeConfig(theta, rotary_dim, kind, rope.positive("factor"))
    if kind == "dynamic":
        return RopeConfig(theta, rotary_dim, kind, rope.positive("factor"), context)
    if kind == "llama3":
        return RopeConfig(
            theta, rotary_dim, kind, rope.positive("factor"), original,
            low_frequency_factor=rope.positive("low_freq_factor"),
            high_frequency_factor=rope.positive("high_freq_factor"),
        )  # fmt: skip
    factor = rope.positive("factor", context / original)
    attention_factor = rope.optional("attention_factor")
    if kind == "yarn":
        if attention_factor is None:
            attention_factor = _yarn_attention(rope, factor)
        return RopeConfig(
            theta, rotary_dim, kind, factor, original, attention_factor,
            beta_fast=rope.positive("beta_fast", 32.0), beta_slow=rope.positive("beta_slow", 1.0),
            truncate=rope.flag("truncate", True),
        )  # fmt: skip
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeConfig(
        theta, rotary_dim, kind, factor, original, attention_factor,
        short_factors=rope.positives("short_factor", rotary_dim // 2),
        long_factors=rope.positives("long_factor", rotary_dim // 2),
    )  # fmt: skip


def rope_from_gguf(fields: Fields, rotary_dim: int, context: int, factors: dict[str, tuple[float, ...]]) -> RopeConfig:
    """Read the metadata of an architecture; ``factors`` are the file's tensors ``rope_*``, by name, if it has any."""
    theta = fields.positive("rope.freq_base", 10000.0)
    kind = fields.values.get("rope.scaling.type", "none")
    attention_factor = fields.positive("rope.scaling.attn_factor", 1.0)
    original = fields.count("rope.scaling.original_context_length", context)
    for key, neutral in (
        ("rope.scale_linear", 1.0), ("rope.scaling.yarn_ext_factor", 1.0), ("rope.scaling.yarn_attn_factor", 1.0),
        ("rope.scaling.yarn_log_multiplier", 0.0),
    ):  # fmt: skip
        if fields.values.get(key, neutral) != neutral:
            raise fields.unsupported(f"{key}={fields.values[key]}", (str(neutral),))
    for name, values in factors.items():
        if len(values) != rotary_dim // 2 or not all(0 < value < math.inf for value in values):
            raise fields.wrong(name, values, f"{rotary_dim // 2} positive numbers")
    if "rope_freqs.weight" in factors:
        return RopeConfig(theta, rotary_dim, "divided", short_factors=factors["rope_freqs.weight"])
    if "rope_factors_long.weight" in factors and "rope_factors_short.weight" in factors:
        return RopeConfig(
            theta, rotary_dim, "longrope", context / original, original, attention_factor,
            short_factors=factors["rope_factors_short.weight"], long_factors=factors["rope_factors_long.weight"],
        )  # fmt: skip
    if kind == "none":
        return RopeConfig(theta, rotary_dim)
    factor = fields.positive("rope.scaling.factor", 1.0)
    if kind == "linear":
        return RopeConfig(theta, rotary_dim, "linear", factor)
    if kind == "yarn":
        return RopeConfig(
            theta, rotary_dim, "yarn", factor, original, attention_factor * _magnitude(factor),
            beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        )  # fmt: skip
    raise fields.unsupported(f"rope scaling {kind!r}", ("'none'", "'linear'", "'yarn'"))


def _yarn_attention(rope: Fields, factor: float) -> float:
    mscale, everywhere = rope.values.get("mscale"), rope.values.get("mscale_all_dim")
    if mscale and everywhere:
        return _magnitude(factor, rope.positive("mscale")) / _magnitude(factor, rope.positive("mscale_all_dim"))
    return _magnitude(factor)


def _magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's growth of the attention's temperature with the context (arXiv 2309.00071, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
