"""Model configs are read from HF folders and GGUF metadata; what is not implemented is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringcast.gpu import Checkpoint, ModelConfig, ModelFileError, UnsupportedModelError
from ringcast.gpu.model_config import config_from_gguf, config_from_hf

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
    intermediate_size=128, vocab_size=100, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0,
    tie_word_embeddings=False, eos_token_ids=(2,),
)  # fmt: skip


def hf(**changes: Any) -> ModelConfig:
    return config_from_hf({**HF, **changes}, {}, "config.json")


def from_gguf(changes: dict[str, Any]) -> ModelConfig:
    return config_from_gguf({**GGUF, **changes}, (100, 64), True, "m.gguf")


def test_defaults_are_those_of_the_formats() -> None:
    assert hf() == EXPECTED
    assert from_gguf({}) == EXPECTED


def test_explicit_values_win() -> None:
    assert hf(num_key_value_heads=2, head_dim=32).num_kv_heads == 2
    assert hf(head_dim=32).head_dim == 32
    assert hf(rope_theta=5e5).rope_theta == 5e5
    assert hf(rope_parameters={"rope_type": "default", "rope_theta": 7e4}).rope_theta == 7e4
    assert hf(rope_scaling=None, tie_word_embeddings=True).tie_word_embeddings
    assert from_gguf({"llama.rope.freq_base": 1e5}).rope_theta == 1e5
    assert config_from_gguf(GGUF, (100, 64), False, "m").tie_word_embeddings


def test_every_eos_id_is_kept_once() -> None:
    config = config_from_hf({**HF, "eos_token_id": [2, 3]}, {"eos_token_id": [5, 2]}, "config.json")
    assert config.eos_token_ids == (5, 2, 3)
    assert hf(eos_token_id=None).eos_token_ids == ()
    assert from_gguf({"tokenizer.ggml.eot_token_id": 9}).eos_token_ids == (2, 9)
    with pytest.raises(ModelFileError, match="EOS id 'x'"):
        hf(eos_token_id=["x"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"architecture 'MambaForCausalLM' .*supported: LlamaForCausalLM"),
        ({"architectures": None}, "architecture 'none'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope scaling 'linear'"),
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
        ({"general.architecture": "gemma3"}, r"architecture 'gemma3' is not supported \(supported: llama\)"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
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
        {"vocab_size": True}, {"rope_parameters": [1]},
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
