"""`ModelConfig`: the numbers that define a model, from an HF ``config.json`` or from GGUF metadata. Imports no torch.

Used by the loader, the models and the frontend's admission. It reads no files and refuses by name what no model here
implements, so that nothing is computed wrongly in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ModelFileError, UnsupportedModelError

# HF architecture -> GGUF's general.architecture.
SUPPORTED_ARCHITECTURES = {"LlamaForCausalLM": "llama"}
# Beyond any model, but small enough that a damaged number cannot make a table of a billion layers.
_MAX_COUNT = 1 << 24
_MAX_LAYERS = 1 << 12


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a decoder-only model looks like. Sizes count elements; ``max_position_embeddings`` counts tokens."""

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]


def config_from_hf(config: Mapping[str, Any], generation_config: Mapping[str, Any], source: str) -> ModelConfig:
    """Build it from the parsed ``config.json`` and ``generation_config.json`` (empty if there is none).

    ``source`` names the file in errors: `ModelFileError` for missing or impossible values, `UnsupportedModelError` for
    architectures and variants that are not implemented.
    """
    fields = _Fields(config, source)
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else "none"
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise _unsupported(source, f"architecture {architecture!r}", tuple(SUPPORTED_ARCHITECTURES))
    for key, supported in (
        ("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False), ("quantization_config", None),
    ):  # fmt: skip
        if config.get(key, supported) != supported:
            raise _unsupported(source, f"{key}={config[key]!r}", (repr(supported),))
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    return _checked(
        ModelConfig(
            architecture=architecture,
            hidden_size=hidden_size,
            num_layers=fields.count("num_hidden_layers", limit=_MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=fields.count("num_key_value_heads", num_heads),
            head_dim=fields.count("head_dim", hidden_size // num_heads),
            intermediate_size=fields.count("intermediate_size"),
            vocab_size=fields.count("vocab_size"),
            max_position_embeddings=fields.count("max_position_embeddings", 2048),
            rms_norm_eps=fields.positive("rms_norm_eps", 1e-6),
            rope_theta=_hf_rope_theta(config, source),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            eos_token_ids=_token_ids(generation_config.get("eos_token_id"), config.get("eos_token_id"), source=source),
        ),
        source,
    )


def config_from_gguf(
    metadata: Mapping[str, Any], embedding_shape: tuple[int, ...], has_head: bool, source: str
) -> ModelConfig:
    """Build it from a GGUF file's metadata, the shape of its embedding [vocab, hidden], and whether it has a head.

    Errors as in `config_from_hf`.
    """
    name = metadata.get("general.architecture", "none")
    by_gguf_name = {gguf_name: hf_name for hf_name, gguf_name in SUPPORTED_ARCHITECTURES.items()}
    if name not in by_gguf_name:
        raise _unsupported(source, f"architecture {name!r}", tuple(by_gguf_name))
    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    if scaling != "none":
        raise _unsupported(source, f"rope scaling {scaling!r}", ("'none'",))
    if metadata.get(f"{name}.expert_count", 0):
        raise _unsupported(source, "mixture of experts", ("dense models",))
    prefix = name + "."
    fields = _Fields({key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}, source)
    hidden_size = fields.count("embedding_length")
    num_heads = fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.count(key, head_dim) != head_dim:
            raise _unsupported(source, f"{prefix}{key}={fields.values[key]}", (f"the head size, {head_dim}",))
    ids = ("eos_token_id", "eot_token_id", "eom_token_id")
    return _checked(
        ModelConfig(
            architecture=by_gguf_name[name],
            hidden_size=hidden_size,
            num_layers=fields.count("block_count", limit=_MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=fields.count("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            intermediate_size=fields.count("feed_forward_length"),
            vocab_size=embedding_shape[0],
            max_position_embeddings=fields.count("context_length"),
            rms_norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
            rope_theta=fields.positive("rope.freq_base", 10000.0),
            tie_word_embeddings=not has_head,
            eos_token_ids=_token_ids(*(metadata.get(f"tokenizer.ggml.{key}") for key in ids), source=source),
        ),
        source,
    )


class _Fields:
    """Typed access to raw values; every complaint names the source and the key."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def count(self, key: str, default: int | None = None, limit: int = _MAX_COUNT) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            raise self._wrong(key, value, f"a whole number from 1 to {limit}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def _value(self, key: str, default: float | None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def _wrong(self, key: str, value: object, wanted: str) -> ModelFileError:
        return ModelFileError(f"{self.source}: {key} is {value!r}, not {wanted}; the file is damaged: get it again")


def _hf_rope_theta(config: Mapping[str, Any], source: str) -> float:
    """Transformers 5 keeps it in ``rope_parameters``; before, it stood beside an optional ``rope_scaling``."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ModelFileError(f"{source}: rope parameters are {rope!r}, not an object; get the file again")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise _unsupported(source, f"rope scaling {kind!r}", ("'default'",))
    theta = {"rope_theta": rope.get("rope_theta", config.get("rope_theta"))}
    return _Fields(theta, source).positive("rope_theta", 10000.0)


def _token_ids(*candidates: object, source: str) -> tuple[int, ...]:
    """All ids named by any of the candidates (None, an id, or a list of ids), each once, in order."""
    ids: dict[int, None] = {}
    for candidate in candidates:
        for token_id in candidate if isinstance(candidate, list) else [candidate]:
            if token_id is None:
                continue
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise ModelFileError(f"{source}: EOS id {token_id!r} is no token id; get the file again")
            ids[token_id] = None
    return tuple(ids)


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly; "
            "the file is damaged: get it again"
        )
    if config.head_dim % 2:
        raise ModelFileError(
            f"{source}: head size {config.head_dim} is odd, so it cannot be rotated; get the file again"
        )
    return config


def _unsupported(source: str, what: str, supported: tuple[str, ...]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{source}: {what} is not supported (supported: {', '.join(supported)}); choose another model"
    )
