"""Reads an HF ``config.json``: what each family's keys and defaults mean. Imports no torch and reads no files.

It refuses by name what no model here implements, so that nothing is computed wrongly in silence. Defaults are those of
transformers' config classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .config_fields import Fields
from .errors import ModelFileError
from .model_config import MAX_LAYERS, SUPPORTED_ARCHITECTURES, ModelConfig
from .rope_config import RopeConfig, rope_from_hf

_LAYER_TYPES = ("full_attention", "sliding_attention")


def _no_windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    return ()


def _same_windows(default: int) -> Callable[[Fields, int], tuple[int, ...]]:
    """Every layer has the window ``sliding_window``."""
    return lambda fields, num_layers: (fields.window("sliding_window", default),) * num_layers


def _late_windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Qwen: layers from ``max_window_layers`` on, if windows are switched on at all."""
    if not fields.flag("use_sliding_window", False):
        return ()
    window, first = fields.window("sliding_window", 4096), fields.window("max_window_layers", 28)
    return _by_layer_type(fields, window, num_layers, lambda layer: layer >= first)


def _most_windows(default_pattern: int) -> Callable[[Fields, int], tuple[int, ...]]:
    """Gemma: all layers but every n-th."""

    def windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
        window = fields.window("sliding_window", 4096)
        pattern = fields.count("sliding_window_pattern", default_pattern)
        return _by_layer_type(fields, window, num_layers, lambda layer: (layer + 1) % pattern != 0)

    return windows


def _by_layer_type(fields: Fields, window: int, num_layers: int, has_window: Callable[[int], bool]) -> tuple[int, ...]:
    types = fields.values.get("layer_types")
    if types is None:
        return tuple(window if has_window(layer) else 0 for layer in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers:
        raise fields.wrong("layer_types", types, f"a list of {num_layers}")
    for layer_type in types:
        if layer_type not in _LAYER_TYPES:
            raise fields.unsupported(f"layer type {layer_type!r}", _LAYER_TYPES)
    return tuple(window if layer_type == "sliding_attention" else 0 for layer_type in types)


@dataclass(frozen=True, slots=True)
class _Family:
    """Defaults of one HF config class, and the keys that must have the value that is implemented."""

    max_position_embeddings: int
    windows: Callable[[Fields, int], tuple[int, ...]] = _no_windows
    rms_norm_eps: float = 1e-6
    head_dim: int | None = None  # None: hidden size / heads
    rope_theta: float = 10000.0
    partial_rope: bool = False
    tied: bool = False
    is_gemma: bool = False
    softcaps: tuple[float, float] = (0.0, 0.0)  # of attention scores and of logits
    neutral: Mapping[str, object] = field(default_factory=dict)


_FAMILIES = {
    "LlamaForCausalLM": _Family(2048, neutral={"attention_bias": False, "mlp_bias": False}),
    "MistralForCausalLM": _Family(131072, _same_windows(4096)),
    "Qwen2ForCausalLM": _Family(32768, _late_windows),
    "Qwen3ForCausalLM": _Family(32768, _late_windows, head_dim=128, neutral={"attention_bias": False}),
    "Gemma2ForCausalLM": _Family(
        8192, _most_windows(2), head_dim=256, tied=True, is_gemma=True, softcaps=(50.0, 30.0),
        neutral={"attention_bias": False, "use_bidirectional_attention": False},
    ),
    # HF's Gemma 3 has a key for a cap on attention scores, but ignores it.
    "Gemma3ForCausalLM": _Family(
        131072, _most_windows(6), head_dim=256, rope_theta=1e6, tied=True, is_gemma=True,
        neutral={"attention_bias": False, "use_bidirectional_attention": False, "attn_logit_softcapping": None},
    ),
    "Phi3ForCausalLM": _Family(4096, _same_windows(0), rms_norm_eps=1e-5, partial_rope=True),
}  # fmt: skip


def config_from_hf(config: Mapping[str, Any], source: str) -> ModelConfig:
    """Build it from the parsed ``config.json``.

    ``source`` names the file in errors: `ModelFileError` for missing or impossible values, `UnsupportedModelError` for
    architectures and variants that are not implemented.
    """
    fields = Fields(config, source)
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else "none"
    if architecture not in _FAMILIES:
        raise fields.unsupported(f"architecture {architecture!r}", SUPPORTED_ARCHITECTURES)
    family = _FAMILIES[architecture]
    for key, neutral in {**family.neutral, "quantization_config": None}.items():
        if (config.get(key) or neutral) != neutral:
            raise fields.unsupported(f"{key}={config[key]!r}", (repr(neutral),))
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_layers = fields.count("num_hidden_layers", limit=MAX_LAYERS)
    head_dim = fields.count("head_dim", family.head_dim or hidden_size // num_heads)
    context = fields.count("max_position_embeddings", family.max_position_embeddings)
    windows = family.windows(fields, num_layers)
    rope, local_rope = _ropes(fields, family, architecture, head_dim, context)
    gemma: dict[str, Any] = {}
    if family.is_gemma:
        gemma = {
            "local_rope": local_rope,
            "query_scale": fields.positive("query_pre_attn_scalar", 256) ** -0.5,
            "attention_softcap": fields.softcap("attn_logit_softcapping", family.softcaps[0]),
            "logit_softcap": fields.softcap("final_logit_softcapping", family.softcaps[1]),
            "embedding_scale": math.sqrt(hidden_size),
            "norm_offset": 1.0,
        }
    return checked(
        ModelConfig(
            architecture=architecture,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.count("num_key_value_heads", num_heads),
            head_dim=head_dim,
            intermediate_size=fields.count("intermediate_size"),
            vocab_size=fields.count("vocab_size"),
            max_position_embeddings=context,
            rms_norm_eps=fields.positive("rms_norm_eps", family.rms_norm_eps),
            rope=rope,
            tie_word_embeddings=fields.flag("tie_word_embeddings", family.tied),
            windows=windows if any(windows) else (),
            activation=_activation(fields, family),
            **gemma,
        ),
        source,
    )


def checked(config: ModelConfig, source: str) -> ModelConfig:
    """``config``, if its numbers fit together; else `ModelFileError`."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly; "
            "the file is damaged: get it again"
        )
    for rope in {config.rope, config.local_rope or config.rope}:
        if rope.rotary_dim % 2 or not 2 < rope.rotary_dim <= config.head_dim:
            raise ModelFileError(
                f"{source}: {rope.rotary_dim} of the {config.head_dim} dimensions of a head cannot be rotated in "
                "pairs; get the file again"
            )
    return config


def _activation(fields: Fields, family: _Family) -> str:
    """Gemma calls the key ``hidden_activation`` and has GELU."""
    key, name, activation = ("hidden_act", "silu", "silu")
    if family.is_gemma:
        key, name, activation = ("hidden_activation", "gelu_pytorch_tanh", "gelu_tanh")
    if (fields.values.get(key) or name) != name:
        raise fields.unsupported(f"{key}={fields.values[key]!r}", (repr(name),))
    return activation


def _ropes(
    fields: Fields, family: _Family, architecture: str, head_dim: int, context: int
) -> tuple[RopeConfig, RopeConfig | None]:
    """Of layers without a window, and with one where that is another.

    Transformers 5 keeps them in ``rope_parameters``, for Gemma by type of layer; before, there were ``rope_scaling``
    and keys beside it.
    """
    key = "rope_parameters" if fields.values.get("rope_parameters") else "rope_scaling"
    rope = fields.part(key)
    if any(layer_type in rope.values for layer_type in _LAYER_TYPES):
        full, sliding = rope.part("full_attention"), rope.part("sliding_attention")
    else:
        theta = fields.positive("rope_local_base_freq", 10000.0)
        full, sliding = rope, Fields({"rope_theta": theta}, fields.source)
    if architecture == "Phi3ForCausalLM" and full.values.get("rope_type", full.values.get("type")) in ("su", "yarn"):
        full = Fields({**full.values, "rope_type": "longrope"}, fields.source, f"{key}.")  # its names for it
    rope_of_all = rope_from_hf(full, fields, head_dim, context, family.rope_theta, family.partial_rope)
    if architecture != "Gemma3ForCausalLM":
        return rope_of_all, None
    return rope_of_all, rope_from_hf(sliding, fields, head_dim, context, 10000.0)
