"""Model configs are read from HF folders and GGUF metadata; what is not implemented is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringcast.gpu import SUPPORTED_ARCHITECTURES, Checkpoint, ModelConfig, ModelFileError, UnsupportedModelError
from ringcast.gpu.gguf_config import config_from_gguf
from ringcast.gpu.hf_config import config_from_hf
from ringcast.gpu.rope_config import RopeConfig

HF: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.context_length": 512,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.eos_token_id": 2,
}
EXPECTED = ModelConfig(
    architecture="LlamaForCausalLM", hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16,
    intermediate_size=128, vocab_size=100, max_position_embeddings=512, rms_norm_eps=1e-5,
    rope=RopeConfig(10000.0, 16), tie_word_embeddings=False,
)  # fmt: skip


def hf(**changes: Any) -> ModelConfig:
    return config_from_hf({**HF, **changes}, "config.json")


def family(name: str, **changes: Any) -> ModelConfig:
    return hf(architectures=[f"{name}ForCausalLM"], **changes)


def from_gguf(changes: dict[str, Any], architecture: str = "llama") -> ModelConfig:
    values = {key.replace("llama", architecture): value for key, value in GGUF.items()}
    return config_from_gguf({**values, "general.architecture": architecture, **changes}, (100, 64), True, "m.gguf")


def test_defaults_are_those_of_the_formats() -> None:
    assert hf() == EXPECTED
    assert from_gguf({}) == EXPECTED


def test_explicit_values_win() -> None:
    assert hf(num_key_value_heads=2, head_dim=32).num_kv_heads == 2
    assert hf(head_dim=32).head_dim == 32
    assert hf(rope_theta=5e5).rope.theta == 5e5
    assert hf(rope_parameters={"rope_type": "default", "rope_theta": 7e4}).rope.theta == 7e4
    assert hf(rope_scaling=None, tie_word_embeddings=True).tie_word_embeddings
    assert from_gguf({"llama.rope.freq_base": 1e5}).rope.theta == 1e5
    assert config_from_gguf(GGUF, (100, 64), False, "m").tie_word_embeddings


def test_every_architecture_has_its_own_defaults() -> None:
    assert {name: family(name).max_position_embeddings for name in ("Llama", "Mistral", "Qwen2", "Gemma2", "Phi3")} == {
        "Llama": 512, "Mistral": 512, "Qwen2": 512, "Gemma2": 512, "Phi3": 512
    }  # fmt: skip
    without = {key: value for key, value in HF.items() if key not in ("max_position_embeddings", "rms_norm_eps")}
    for name, context, epsilon, head_dim, tied in (
        ("Llama", 2048, 1e-6, 16, False), ("Mistral", 131072, 1e-6, 16, False), ("Qwen2", 32768, 1e-6, 16, False),
        ("Qwen3", 32768, 1e-6, 128, False), ("Gemma2", 8192, 1e-6, 256, True), ("Gemma3", 131072, 1e-6, 256, True),
        ("Phi3", 4096, 1e-5, 16, False),
    ):  # fmt: skip
        config = config_from_hf({**without, "architectures": [f"{name}ForCausalLM"]}, "c")
        assert (config.max_position_embeddings, config.rms_norm_eps) == (context, epsilon)
        assert (config.head_dim, config.tie_word_embeddings) == (head_dim, tied)
    assert set(SUPPORTED_ARCHITECTURES) == {
        f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "Gemma3", "Phi3")
    }


def test_windows_are_told_layer_by_layer() -> None:
    assert hf(sliding_window=8).windows == ()  # Llama does not know the key
    assert family("Mistral").windows == (4096, 4096)
    assert family("Mistral", sliding_window=None).windows == ()
    assert family("Phi3", sliding_window=2047).windows == (2047, 2047)
    assert family("Phi3").windows == ()
    assert family("Qwen2", sliding_window=8, max_window_layers=1).windows == ()  # switched off
    assert family("Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1).windows == (0, 8)
    assert family("Qwen3", use_sliding_window=True, layer_types=["sliding_attention", "full_attention"]).windows == (
        4096, 0
    )  # fmt: skip
    assert family("Gemma2", num_hidden_layers=5).windows == (4096, 0, 4096, 0, 4096)
    assert family("Gemma3", num_hidden_layers=7, sliding_window=5).windows == (5, 5, 5, 5, 5, 0, 5)
    assert family("Gemma3", sliding_window=5, sliding_window_pattern=1).windows == ()
    assert from_gguf({"gemma3.attention.sliding_window": 9}, "gemma3").windows == (9, 9)
    assert from_gguf({"gemma2.attention.sliding_window": 9}, "gemma2").windows == (9, 0)
    assert from_gguf({"phi3.attention.sliding_window": 0}, "phi3").windows == ()
    assert from_gguf({"phi3.attention.sliding_window": 9}, "phi3").windows == (9, 9)


def test_layers_with_a_window_may_have_a_rotation_of_their_own() -> None:
    config = family("Gemma3", num_hidden_layers=6, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert config.layer_rope(5) == RopeConfig(1e6, 256, "linear", 8.0)
    assert config.layer_rope(0) == RopeConfig(1e4, 256)
    config = family("Mistral")
    assert config.layer_rope(0) == config.rope


def test_gemma_scales_by_numbers_of_its_own() -> None:
    config = family("Gemma3", query_pre_attn_scalar=100)
    assert (config.query_scale, config.embedding_scale, config.norm_offset) == (0.1, 8.0, 1.0)
    assert (config.activation, config.logit_softcap, config.attention_softcap) == ("gelu_tanh", 0.0, 0.0)
    config = family("Gemma2", final_logit_softcapping=None)
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 0.0)
    # The 27B model: llama.cpp knows it by its layers.
    config = from_gguf({"gemma3.block_count": 62, "gemma3.attention.key_length": 32}, "gemma3")
    assert config.query_scale == 0.25
    assert from_gguf({"gemma3.attention.key_length": 64}, "gemma3").query_scale == 0.125


def test_contexts_may_be_longer_where_the_rope_is_made_for_it() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert hf(rope_scaling=yarn).longest_context == 2048
    assert hf(rope_scaling={"type": "dynamic", "factor": 2.0}).longest_context == 1024
    assert hf(rope_scaling={"type": "linear", "factor": 2.0}).longest_context == 512
    assert hf().longest_context == 512


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            r"architecture 'MambaForCausalLM' .*supported: LlamaForCausalLM, Mistral.*Qwen2.*Qwen3.*Gemma3.*Phi3",
        ),
        ({"architectures": None}, "architecture 'none'"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope scaling 'mrope' .*supported: 'default', 'linear', 'dynamic'"),
        ({"rope_scaling": {"type": "su", "factor": 2}}, "rope scaling 'su'"),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "layer_types": ["full_attention", "mamba"],
            },
            "layer type 'mamba'",
        ),
        (
            {"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True},
            "use_bidirectional_attention=T",
        ),
        ({"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ({"architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu"}, "hidden_activation='gelu'"),
        ({"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, "attention_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config="),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        hf(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"general.architecture": "gpt2"},
            r"architecture 'gpt2' is not supported \(supported: gemma2, gemma3, llama, phi3, qwen2, qwen3\)",
        ),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope'"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count=8"),
    ],
)
def test_gguf_variants_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        from_gguf(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": None}, {"hidden_size": "64"}, {"num_hidden_layers": 0}, {"vocab_size": -1},
        {"rms_norm_eps": float("nan")}, {"num_key_value_heads": 3}, {"head_dim": 15}, {"rope_theta": 0},
        {"vocab_size": True}, {"rope_parameters": [1]}, {"tie_word_embeddings": "yes"},
        {"architectures": ["MistralForCausalLM"], "sliding_window": -1},
        {"architectures": ["MistralForCausalLM"], "sliding_window": True},
        {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["full_attention"]},
        {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 2.0},
    ],
)  # fmt: skip
def test_impossible_values_name_the_file(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json: "):
        hf(**changes)


def test_folders_that_are_no_model_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json: no such file"):
        Checkpoint.open(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match="no JSON"):
        Checkpoint.open(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelFileError, match="no JSON object"):
        Checkpoint.open(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(HF))
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        Checkpoint.open(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}')
    with pytest.raises(ModelFileError, match="no plain file name"):
        Checkpoint.open(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ModelFileError, match="not a usable safetensors file"):
        Checkpoint.open(tmp_path)
    with pytest.raises(ModelFileError, match="no such file or folder"):
        Checkpoint.open(tmp_path / "missing")
    with pytest.raises(ModelFileError, match="give the folder"):
        Checkpoint.open(tmp_path / "model.safetensors")
