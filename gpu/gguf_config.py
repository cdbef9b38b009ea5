"""Reads a model's config from GGUF metadata, as llama.cpp understands them. Imports no torch, reads no files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .config_fields import Fields
from .hf_config import checked
from .model_config import MAX_LAYERS, SUPPORTED_ARCHITECTURES, ModelConfig
from .rope_config import RopeConfig, rope_from_gguf

# Tensors that are no weights, but divisors of the rotation's frequencies: part of the config.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# The first of an HF name's namesakes counts.
_ARCHITECTURES = {name: hf_name for hf_name, name in reversed(SUPPORTED_ARCHITECTURES.items())}
# Of the two sizes whose queries llama.cpp scales by another number than the size of the head.
_GEMMA_27B_LAYERS = {"Gemma2ForCausalLM": 46, "Gemma3ForCausalLM": 62}
_GEMMA_PERIODS = {"Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6}


def config_from_gguf(
    metadata: Mapping[str, Any],
    embedding_shape: tuple[int, ...],
    has_head: bool,
    source: str,
    rope_factors: Mapping[str, tuple[float, ...]] | None = None,
) -> ModelConfig:
    """Build it from a file's metadata, the shape of its embedding [vocab, hidden], and whether it has a head.

    ``rope_factors`` are the values of its `ROPE_TENSORS`. `ModelFileError` for missing or impossible values,
    `UnsupportedModelError` for architectures and variants that are not implemented.
    """
    name = metadata.get("general.architecture", "none")
    if name not in _ARCHITECTURES:
        raise Fields(metadata, source).unsupported(f"architecture {name!r}", sorted(_ARCHITECTURES))
    prefix = name + "."
    values = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    fields = Fields(values, source, prefix)
    if values.get("expert_count"):
        raise fields.unsupported("mixture of experts", ("dense models",))
    architecture = _ARCHITECTURES[name]
    hidden_size, num_heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", hidden_size // num_heads)
    rotary_dim = fields.count("rope.dimension_count", head_dim)
    for key, supported in (
        ("attention.value_length", head_dim),
        ("rope.dimension_count", rotary_dim if architecture == "Phi3ForCausalLM" else head_dim),
    ):
        if fields.count(key, head_dim) != supported:
            raise fields.unsupported(f"{prefix}{key}={values[key]}", (f"the head size, {head_dim}",))
    num_layers = fields.count("block_count", limit=MAX_LAYERS)
    context = fields.count("context_length")
    gemma: dict[str, Any] = {}
    if architecture in _GEMMA_PERIODS:
        scaled_by = hidden_size / num_heads if num_layers == _GEMMA_27B_LAYERS[architecture] else head_dim
        has_local_rope = architecture == "Gemma3ForCausalLM"
        local_rope = RopeConfig(fields.positive("rope.freq_base_swa", 10000.0), head_dim) if has_local_rope else None
        gemma = {
            "local_rope": local_rope,
            "activation": "gelu_tanh",
            "query_scale": scaled_by**-0.5,
            "attention_softcap": fields.softcap("attn_logit_softcapping", 0.0),
            "logit_softcap": fields.softcap("final_logit_softcapping", 0.0),
            "embedding_scale": math.sqrt(hidden_size),
            "norm_offset": 1.0,
        }
    return checked(
        ModelConfig(
            architecture=architecture,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=fields.count("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            intermediate_size=fields.count("feed_forward_length"),
            vocab_size=embedding_shape[0],
            max_position_embeddings=context,
            rms_norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
            rope=rope_from_gguf(fields, rotary_dim, context, dict(rope_factors or {})),
            tie_word_embeddings=not has_head,
            windows=_windows(fields, architecture, num_layers),
            **gemma,
        ),
        source,
    )


def _windows(fields: Fields, architecture: str, num_layers: int) -> tuple[int, ...]:
    window = fields.window("attention.sliding_window", 0)
    if not window:
        return ()
    # A number n: every n-th layer has none. A list: which layers have one.
    pattern = fields.values.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != num_layers or not all(isinstance(item, bool) for item in pattern):
            raise fields.wrong("attention.sliding_window_pattern", pattern, f"a list of {num_layers} booleans")
        return tuple(window if item else 0 for item in pattern)
    if architecture not in _GEMMA_PERIODS:
        return (window,) * num_layers
    period = fields.count("attention.sliding_window_pattern", _GEMMA_PERIODS[architecture])
    return tuple(0 if (layer + 1) % period == 0 else window for layer in range(num_layers))
