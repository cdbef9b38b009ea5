"""Rotary embeddings of every kind equal those of transformers; from GGUF files they are the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import hf_logits, logits_of, random_model, save_gguf

from ringcast.gpu import Checkpoint, ModelFileError, UnsupportedModelError
from ringcast.gpu.config_fields import Fields
from ringcast.gpu.layers.rotary import cos_sin_table, frequencies
from ringcast.gpu.rope_config import RopeConfig, rope_from_gguf, rope_from_hf

SEQUENCE = [(7 * index + index * index) % 203 for index in range(90)]
CONTEXT = 256
FACTORS = [1.0 + 0.25 * index for index in range(8)]
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, all keys": {
        "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0,
        "attention_factor": 1.25, "truncate": False,
    },
    "yarn, by magnitudes": {
        "factor": 8.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.2,
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
}  # fmt: skip


def rope_parameters(name: str) -> dict[str, Any]:
    return {"rope_type": name.partition(",")[0], "rope_theta": 3000.0, **KINDS[name]}


def opened(model: Any, folder: Path, form: str) -> Checkpoint:
    if form == "gguf":
        save_gguf(model, folder / "model.gguf")
        return Checkpoint.open(folder / "model.gguf")
    model.save_pretrained(folder)
    return Checkpoint.open(folder)


@pytest.mark.parametrize("name", KINDS)
def test_a_model_with_it_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = random_model("llama", max_position_embeddings=CONTEXT, rope_parameters=rope_parameters(name))
    checkpoint = opened(model, tmp_path, "hf")
    ours, theirs = logits_of(checkpoint, SEQUENCE, context=CONTEXT), hf_logits(model, SEQUENCE)
    assert (ours - theirs).abs().max() < 1e-4
    plain = random_model("llama", rope_parameters=rope_parameters("default"))
    # Within its original context "dynamic" changes nothing.
    assert (hf_logits(plain, SEQUENCE) - theirs).abs().max() > 0.1 or name in ("default", "dynamic")


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3"])
def test_a_gguf_file_with_it_gives_the_same(name: str, tmp_path: Path) -> None:
    model = random_model("llama", max_position_embeddings=CONTEXT, rope_parameters=rope_parameters(name))
    checkpoint = opened(model, tmp_path, "gguf")
    assert checkpoint.config.rope.kind == {"llama3": "divided"}.get(name, name)
    assert (logits_of(checkpoint, SEQUENCE) - hf_logits(model, SEQUENCE)).abs().max() < 1e-4


def test_dynamic_scaling_is_that_of_the_whole_context(tmp_path: Path) -> None:
    """Transformers takes the length of the sequence at hand; the two agree where that is the context."""
    model = random_model("llama", max_position_embeddings=64, rope_parameters=rope_parameters("dynamic"))
    checkpoint = opened(model, tmp_path, "hf")
    assert (checkpoint.config.max_position_embeddings, checkpoint.config.longest_context) == (64, 128)
    ours = logits_of(checkpoint, SEQUENCE, context=len(SEQUENCE))
    assert (ours - hf_logits(model, SEQUENCE)).abs().max() < 1e-4
    assert torch.equal(logits_of(checkpoint, SEQUENCE, context=len(SEQUENCE), chunk=16), ours)
    assert (logits_of(checkpoint, SEQUENCE, context=128) - ours).abs().max() > 0.01


@pytest.mark.parametrize("form", ["hf", "gguf"])
@pytest.mark.parametrize(("length", "context"), [(60, 64), (90, 256)], ids=["short", "long"])
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_longrope_has_factors_for_short_and_for_long_contexts(
    share: float, length: int, context: int, form: str, tmp_path: Path
) -> None:
    dimensions = int(16 * share) // 2
    model = random_model(
        "phi3",
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": FACTORS[:dimensions],
            "long_factor": [3 * factor for factor in FACTORS[:dimensions]], "partial_rotary_factor": share,
        },
    )  # fmt: skip
    checkpoint = opened(model, tmp_path, form)
    assert checkpoint.config.rope.rotary_dim == 2 * dimensions
    assert checkpoint.config.rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))
    ours = logits_of(checkpoint, SEQUENCE[:length], context=context)
    assert (ours - hf_logits(model, SEQUENCE[:length])).abs().max() < 1e-4


def test_gemma_rotates_layers_with_a_window_by_another_rule(tmp_path: Path) -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    }
    model = random_model("gemma3", rope_parameters=ropes, query_pre_attn_scalar=16, tie_word_embeddings=True)
    expected = hf_logits(model, SEQUENCE)
    for form in ("hf", "gguf"):
        assert (logits_of(opened(model, tmp_path, form), SEQUENCE) - expected).abs().max() < 1e-4


def test_older_configs_say_the_same_in_other_words() -> None:
    def read(rope: dict[str, Any], **beside: Any) -> RopeConfig:
        return rope_from_hf(Fields(rope, "c"), Fields(beside, "c"), 16, CONTEXT, 10000.0)

    new = read(rope_parameters("llama3"))
    old = {key: value for key, value in rope_parameters("llama3").items() if key not in ("rope_type", "rope_theta")}
    assert read({**old, "type": "llama3"}, rope_theta=3000.0) == new
    del old["original_max_position_embeddings"]
    assert read({**old, "type": "llama3"}, rope_theta=3000.0, original_max_position_embeddings=64) == new
    assert read({}, rope_theta=None) == RopeConfig(10000.0, 16)
    # YaRN's factor may follow from the lengths.
    assert read({"type": "yarn", "original_max_position_embeddings": 64}).factor == 4.0


def test_unknown_kinds_and_broken_values_are_refused_by_name() -> None:
    def read(**rope: Any) -> RopeConfig:
        return rope_from_hf(Fields(rope, "config.json", "rope_parameters."), Fields({}, "config.json"), 16, 64, 1e4)

    with pytest.raises(UnsupportedModelError, match=r"rope scaling 'mrope' .*'default', 'linear', 'dynamic', 'yarn', "):
        read(rope_type="mrope")
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor=0.5 .*supported: 1.0"):
        read(partial_rotary_factor=0.5)
    for rope, reason in (
        ({"rope_type": "linear"}, r"rope_parameters\.factor is None"),
        ({"rope_type": "linear", "factor": -1.0}, r"rope_parameters\.factor is -1\.0, not a positive number"),
        ({"rope_type": "llama3", "factor": 2.0}, r"rope_parameters\.low_freq_factor is None"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, r"short_factor is \[1\.0\], not a list of 8"),
        ({"rope_type": "longrope", "short_factor": [0] * 8}, r"short_factor\.0 is 0"),
        ({"rope_type": "yarn", "truncate": 1}, r"truncate is 1, not true or false"),
    ):
        with pytest.raises(ModelFileError, match=reason):
            read(**rope)


def test_gguf_metadata_that_mean_something_else_are_refused_by_name() -> None:
    def read(factors: dict[str, tuple[float, ...]] | None = None, **changes: Any) -> RopeConfig:
        values = {"rope." + key.replace("__", "."): value for key, value in changes.items()}
        return rope_from_gguf(Fields(values, "m.gguf", "llama."), 16, 64, factors or {})

    assert read() == RopeConfig(10000.0, 16)
    with pytest.raises(UnsupportedModelError, match=r"rope scaling 'su' .*'none', 'linear', 'yarn'"):
        read(scaling__type="su")
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.yarn_log_multiplier=0\.1"):
        read(scaling__yarn_log_multiplier=0.1)
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight is \(1\.0,\), not 8 positive numbers"):
        read({"rope_freqs.weight": (1.0,)})
    with pytest.raises(ModelFileError, match="8 positive numbers"):
        read({"rope_freqs.weight": (float("nan"),) * 8})


def test_the_table_holds_cosines_then_sines() -> None:
    rope = RopeConfig(100.0, 8)
    table = cos_sin_table(rope, 50)
    angles = torch.arange(50)[:, None] * 100.0 ** (-torch.arange(0, 8, 2) / 8)
    assert torch.allclose(table, torch.cat([angles.cos(), angles.sin()], 1), atol=2e-6)
    assert frequencies(rope, 50).dtype == torch.float32
