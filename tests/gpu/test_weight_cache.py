"""The packed copy of a checkpoint: written once, whole or not at all, noticed when damaged, never silently absent."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from random_models import random_llama, save_gguf

from ringcast.gpu import Checkpoint, ModelFileError, UnsupportedModelError, WeightCacheError, cache_folder
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.layers.linear import Embedding
from ringcast.gpu.loader import load_weights
from ringcast.gpu.packed_matrix import Weights
from ringcast.gpu.safetensors_file import SafetensorsFile
from ringcast.gpu.weight_cache import cached_weights, plan_of


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    save_gguf(random_llama(tie=False), path)
    return path


@pytest.fixture
def checkpoint(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    monkeypatch.setenv("RINGCAST_CACHE", str(tmp_path / "cache"))
    return Checkpoint.open(gguf_file)


@pytest.fixture
def small_file_limit() -> Iterator[None]:
    """Files of this process may not grow beyond 64 KiB: what a full disk looks like."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_CACHE", "/a/b")
    assert cache_folder() == Path("/a/b")
    monkeypatch.delenv("RINGCAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_folder() == Path("/c/ringcast")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "ringcast"


def rows_of(weights: Weights, name: str) -> torch.Tensor:
    """A packed matrix, unpacked by the embedding kernel: float32 [columns, depth]."""
    matrix = weights.matrices[name]
    return Embedding(matrix, CpuKernels(1))(torch.arange(matrix.columns))


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_copy_is_a_safetensors_file_with_merged_and_packed_weights(checkpoint: Checkpoint, dtype: str) -> None:
    kind = torch.float32 if dtype == "F32" else torch.bfloat16
    plan = plan_of(checkpoint, dtype, keep_blocks=False)
    tensors = safetensors.torch.load_file(cached_weights(checkpoint, plan).path)
    assert len(tensors) == 3 + 3 * 6
    weights = load_weights(checkpoint, kind)
    original = random_llama(tie=False).state_dict()
    query_key_value = [original[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    name = "model.layers.1.self_attn.qkv_proj.weight"
    assert tensors[name].dtype is torch.uint8
    assert torch.equal(tensors[name], weights.matrices[name].data)
    assert torch.equal(rows_of(weights, name), torch.cat(query_key_value).to(kind).float())
    assert torch.equal(rows_of(weights, "lm_head.weight"), original["lm_head.weight"].to(kind).float())
    norm = original["model.layers.2.post_attention_layernorm.weight"]
    assert torch.equal(weights.vectors["model.layers.2.post_attention_layernorm.weight"], norm)


def test_a_folder_of_weights_is_packed_once_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RINGCAST_CACHE", str(tmp_path / "cache"))
    random_llama(tie=True).save_pretrained(tmp_path / "model")
    checkpoint = Checkpoint.open(tmp_path / "model")
    first = load_weights(checkpoint, torch.bfloat16)
    (path,) = (cache_folder() / "weights").iterdir()
    status = path.stat()
    second = load_weights(Checkpoint.open(tmp_path / "model"), torch.bfloat16)
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert all(torch.equal(matrix.data, second.matrices[name].data) for name, matrix in first.matrices.items())


def test_the_second_load_maps_the_first_ones_file(checkpoint: Checkpoint) -> None:
    plan = plan_of(checkpoint, "F32", keep_blocks=False)
    first = cached_weights(checkpoint, plan).path
    status = first.stat()
    assert cached_weights(checkpoint, plan).path == first
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert names_in(first.parent) == [first.name]


def test_a_changed_source_gets_a_copy_that_takes_the_place_of_the_old_one(
    gguf_file: Path, checkpoint: Checkpoint
) -> None:
    plans = [plan_of(checkpoint, dtype, keep_blocks=False) for dtype in ("F32", "BF16")]
    old = [cached_weights(checkpoint, plan) for plan in plans]
    other = checkpoint.path.with_name("tiny-bf16-another.gguf")
    other.write_bytes(checkpoint.path.read_bytes())
    others = cached_weights(Checkpoint.open(other), plans[1]).path
    bytes_before = bytes(old[0].data)
    os.utime(checkpoint.path, ns=(1, 1))
    new = cached_weights(checkpoint, plans[0]).path
    assert new != old[0].path and new.name.startswith("tiny-f32-")
    # What was made of the file as it was is gone, in this format; the other format and the other file have theirs.
    assert names_in(new.parent) == sorted([new.name, old[1].path.name, others.name])
    # Who mapped the old copy still has it.
    assert bytes(old[0].data) == bytes_before


@pytest.mark.parametrize("damage", ["truncated", "zeroed", "empty", "foreign", "header"])
def test_a_damaged_copy_is_noticed_and_replaced(
    checkpoint: Checkpoint, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = cached_weights(checkpoint, plan_of(checkpoint, "F32", keep_blocks=False)).path
    sound = path.read_bytes()
    path.write_bytes({
        "truncated": sound[:-5000],
        "zeroed": sound[:20_000] + bytes(len(sound) - 20_000),
        "empty": b"",
        "foreign": b"something else" * 100,
        "header": sound[:100] + b"\xff" * 20 + sound[120:],
    }[damage])  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert cached_weights(checkpoint, plan_of(checkpoint, "F32", keep_blocks=False)).path == path
    assert "packing the weights again" in caplog.text
    assert path.read_bytes() == sound


def test_a_folder_that_cannot_be_written_is_told_and_loading_goes_on_in_memory(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = load_weights(checkpoint, torch.float32)
    (tmp_path / "file").touch()
    monkeypatch.setenv("RINGCAST_CACHE", str(tmp_path / "file"))
    with pytest.raises(WeightCacheError, match="point RINGCAST_CACHE to another folder"):
        cached_weights(checkpoint, plan_of(checkpoint, "F32", keep_blocks=False))
    with caplog.at_level(logging.WARNING):
        weights = load_weights(checkpoint, torch.float32)
    assert "packed in memory now, which every start will repeat" in caplog.text
    assert weights.vectors.keys() == expected.vectors.keys() and weights.matrices.keys() == expected.matrices.keys()
    assert all(torch.equal(vector, expected.vectors[name]) for name, vector in weights.vectors.items())
    assert all(torch.equal(matrix.data, expected.matrices[name].data) for name, matrix in weights.matrices.items())


def test_a_full_disk_leaves_no_file_behind(checkpoint: Checkpoint, small_file_limit: None) -> None:
    with pytest.raises(WeightCacheError, match="free some space"):
        cached_weights(checkpoint, plan_of(checkpoint, "F32", keep_blocks=False))
    assert names_in(cache_folder() / "weights") == []


def test_leftovers_of_dead_writers_are_removed(checkpoint: Checkpoint) -> None:
    folder = cache_folder() / "weights"
    folder.mkdir(parents=True)
    (folder / ".writing-dead").write_bytes(b"half")
    path = cached_weights(checkpoint, plan_of(checkpoint, "F32", keep_blocks=False)).path
    assert names_in(folder) == [path.name]


def test_processes_that_convert_at_the_same_time_all_succeed(checkpoint: Checkpoint) -> None:
    script = (
        "import sys\n"
        "from ringcast.gpu import Checkpoint\n"
        "from ringcast.gpu.weight_cache import cached_weights, plan_of\n"
        "for _ in range(20):\n"
        "    checkpoint = Checkpoint.open(sys.argv[1])\n"
        "    file = cached_weights(checkpoint, plan_of(checkpoint, 'F32', False))\n"
        "    assert file.raw('lm_head.weight').shape == (208 * 72 * 4,)\n"
        "    file.path.unlink(missing_ok=True)\n"
    )
    command = [sys.executable, "-c", script, str(checkpoint.path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    assert not [name for name in names_in(cache_folder() / "weights") if name.startswith(".writing")]


def test_a_model_that_lacks_a_tensor_or_has_another_shape_is_an_error(tmp_path: Path) -> None:
    model = random_llama(tie=True)
    model.save_pretrained(tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    removed = tensors.pop("model.norm.weight")
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"1 tensors are missing, such as model\.norm\.weight"):
        Checkpoint.open(tmp_path)
    tensors["model.norm.weight"] = removed[:-1].clone()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight has the shape \[71\].*promises \[72\]"):
        load_weights(Checkpoint.open(tmp_path), torch.float32)
    tensors["model.norm.weight"] = removed
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert len(load_weights(Checkpoint.open(tmp_path), torch.float32).matrices) == 1 + 3 * 4
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(96)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        UnsupportedModelError, match=r"1 tensors that .* such as model\.layers\.0\.self_attn\.q_proj\.bias"
    ):
        Checkpoint.open(tmp_path)


def test_tensor_types_that_are_no_floats_are_refused_by_name(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.arange(4)}, tmp_path / "a.safetensors")
    with pytest.raises(ModelFileError, match="tensor a has type I64"):
        SafetensorsFile(tmp_path / "a.safetensors").read("a")
