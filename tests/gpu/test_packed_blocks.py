"""Quantised blocks that stay packed: the same numbers as the dequantised model's, from every type, in every place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import logits_of, random_model, save_gguf
from test_attention import LEVELS_HERE

from ringcast.gpu import Checkpoint, GGUFFile, ModelFileError, UnsupportedModelError
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.layers.linear import Embedding
from ringcast.gpu.loader import load_weights

SIZES = {"hidden_size": 96, "intermediate_size": 160, "vocab_size": 203}


def quantised(path: Path, kind: str = "Q4_1", head: str = "Q8_0", value: str | None = None) -> Checkpoint:
    def type_of(name: str) -> str:
        if "embed" in name or "head" in name:
            return head
        return value or kind if "v_proj" in name else kind

    save_gguf(random_model("llama", **SIZES), path, type_of)
    return Checkpoint.open(path)


def formats(checkpoint: Checkpoint, keep_blocks: bool = True) -> dict[str, str]:
    weights = load_weights(checkpoint, torch.bfloat16, keep_blocks)
    return {name.removeprefix("model."): matrix.packing.format for name, matrix in weights.matrices.items()}


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_rows_are_those_that_the_reference_reader_gives(kind: str, tmp_path: Path) -> None:
    checkpoint = quantised(tmp_path / "model.gguf", kind)
    weights = load_weights(checkpoint, torch.bfloat16, keep_blocks=True)
    parts = [checkpoint.read(f"model.layers.1.self_attn.{part}_proj.weight").array for part in "qkv"]
    for name, expected in (
        ("layers.1.self_attn.qkv_proj", np.concatenate(parts)),
        ("layers.2.mlp.down_proj", checkpoint.read("model.layers.2.mlp.down_proj.weight").array),
        ("embed_tokens", checkpoint.read("model.embed_tokens.weight").array),
    ):
        matrix = weights.matrices[f"model.{name}.weight"]
        rows = Embedding(matrix, CpuKernels(1))(torch.arange(matrix.columns))
        # One rounding apart: the kernel multiplies and adds in one go.
        torch.testing.assert_close(rows, torch.from_numpy(expected), rtol=1e-6, atol=1e-7)


def test_only_what_the_products_can_read_stays_packed(tmp_path: Path) -> None:
    checkpoint = quantised(tmp_path / "model.gguf", "Q4_0", head="F16", value="Q8_0")
    found = formats(checkpoint)
    assert found["layers.0.self_attn.o_proj.weight"] == found["layers.0.mlp.gate_up_proj.weight"] == "Q4"
    # Parts of different types cannot be one packed weight; float16 is no type of blocks.
    assert found["layers.0.self_attn.qkv_proj.weight"] == found["embed_tokens.weight"] == "BF16"
    assert set(formats(checkpoint, keep_blocks=False).values()) == {"BF16"}


def test_blocks_of_other_types_become_bfloat16(tmp_path: Path) -> None:
    assert set(formats(quantised(tmp_path / "model.gguf", "Q5_1", head="Q5_0")).values()) == {"BF16"}


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("level", LEVELS_HERE)
def test_logits_are_those_of_the_dequantised_model(kind: str, level: str, tmp_path: Path) -> None:
    checkpoint = quantised(tmp_path / "model.gguf", kind)
    prompt = [(7 * index + index * index) % 203 for index in range(45)]
    exact = logits_of(checkpoint, prompt, level=level)
    rounded = logits_of(checkpoint, prompt, torch.bfloat16, level=level)
    packed = logits_of(checkpoint, prompt, torch.bfloat16, keep_blocks=True, level=level)
    error, error_of_rounding = (packed - exact).abs().mean(), (rounded - exact).abs().mean()
    # Packed blocks are not rounded to bfloat16, so they are nearer to the truth than weights that are.
    assert error < error_of_rounding < 0.02 * exact.abs().max()


def test_infinite_scales_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    quantised(path)
    tensor = GGUFFile(path).tensors["blk.1.ffn_down.weight"]
    content = bytearray(path.read_bytes())
    content[tensor.offset : tensor.offset + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_down\.weight has infinite scales"):
        load_weights(Checkpoint.open(path), torch.bfloat16, keep_blocks=True)


def test_a_depth_that_the_products_cannot_take_is_refused(tmp_path: Path) -> None:
    random_model("llama", intermediate_size=101).save_pretrained(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"rows of .*down_proj.weight have 101 items.*use dtype float32"):
        load_weights(checkpoint, torch.bfloat16)
    assert logits_of(checkpoint, [1, 2, 3]).isfinite().all()
