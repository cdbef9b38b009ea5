"""Checkpoints in uncommon forms load as transformers and llama.cpp load them, or the refusal names the form."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import safetensors
import torch
from random_models import hf_logits, logits_of, random_llama, random_model, save_gguf
from safetensors.torch import load_file, save_file

from ringcast.gpu import Checkpoint, ModelFileError, UnsupportedModelError
from ringcast.gpu.gguf_shards import GGUFModel
from ringcast.gpu.safetensors_file import SafetensorsFile

PROMPT = [5, 6, 7, 8]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = dict[str, torch.Tensor]


def untied(tensors: Tensors) -> Tensors:
    return tensors


def copied(tensors: Tensors) -> Tensors:
    return {**tensors, HEAD: tensors[EMBEDDING].clone()}


def in_another_type(tensors: Tensors) -> Tensors:
    return {**tensors, EMBEDDING: tensors[EMBEDDING].bfloat16(), HEAD: tensors[EMBEDDING].bfloat16().float()}


def one_number_off(tensors: Tensors) -> Tensors:
    head = tensors[EMBEDDING].clone()
    head[-1, -1] += 0.5
    return {**tensors, HEAD: head}


def head_alone(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != EMBEDDING}


def embedding_alone(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != HEAD}


def write_tied(folder: Path, family: str, form: Callable[[Tensors], Tensors]) -> None:
    """A checkpoint whose config says that the head is the embedding, whatever its tensors say."""
    random_model(family, tie_word_embeddings=False).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    save_file(form(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("form", [untied, copied, in_another_type, one_number_off, head_alone, embedding_alone])
def test_a_tied_head_is_what_transformers_makes_of_it(
    tmp_path: Path, form: Callable[[Tensors], Tensors], family: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B3, C20: two matrices that differ both count; the shared one may have the head's name alone."""
    import transformers

    write_tied(tmp_path, family, form)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    )
    with caplog.at_level(logging.WARNING, "ringcast.gpu.checkpoint"):
        ours = Checkpoint.open(tmp_path)
    differs = form in (untied, one_number_off)
    assert ours.config.tie_word_embeddings is not differs
    assert any(EMBEDDING in text and HEAD in text for text in caplog.messages) is differs
    assert (logits_of(ours, PROMPT) - hf_logits(theirs, PROMPT)).abs().max() < 1e-4


def test_a_head_is_still_missing_where_it_is_not_tied(tmp_path: Path) -> None:
    """C20: transformers would draw random numbers for it."""
    write_tied(tmp_path, "llama", embedding_alone)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(ModelFileError, match=r"missing, such as lm_head\.weight"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("mark", ["file", "prefix", "base_layer"])
def test_a_peft_folder_is_named_as_such(tmp_path: Path, mark: str) -> None:
    """C20: an adapter, or a model saved with its adapter unmerged."""
    random_llama(tie=True).save_pretrained(tmp_path)
    if mark == "file":
        (tmp_path / "adapter_config.json").write_text("{}")
    else:
        tensors = load_file(tmp_path / "model.safetensors")
        changed = {
            (f"base_model.model.{name}" if mark == "prefix" else name.replace("q_proj", "q_proj.base_layer")): tensor
            for name, tensor in tensors.items()
        }
        save_file(changed, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"PEFT adapter \(.*merge_and_unload"):
        Checkpoint.open(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """B3: which of the two counts would be a guess."""
    model = random_llama(tie=True)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    first, second = sorted(tmp_path.glob("*.safetensors"))[:2]
    name, tensor = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: tensor}, second)
    with pytest.raises(ModelFileError, match=f"tensor {name} is in .* and in "):
        Checkpoint.open(tmp_path)


def tensor(start: int, stop: int, shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": tensor(0, 8), "b": tensor(8, 16)}, 16),
        ({"b": tensor(8, 16), "a": tensor(0, 8)}, 16),
        ({"a": tensor(0, 8), "b": tensor(8, 8, [0])}, 8),
        ({}, 0),
        ({"a": tensor(0, 8), "b": tensor(0, 8)}, 8),
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12),
        ({"a": tensor(0, 8)}, 72),
        ({"a": tensor(0, 8), "b": tensor(16, 24)}, 24),
        ({"a": tensor(8, 16)}, 16),
        ({"a": tensor(0, 8), "b": tensor(4, 4, [0])}, 8),
        ({"a": tensor(0, 4, [True])}, 4),
        ({}, 2),
    ],
)
def test_layouts_are_taken_and_refused_as_by_the_safetensors_library(
    tmp_path: Path, header: dict[str, Any], size: int
) -> None:
    """B13: no overlaps, no gaps, no data that no tensor owns."""
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(size)
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    try:
        expected = {name for name, _ in safetensors.deserialize(content)}
    except safetensors.SafetensorError:
        with pytest.raises(ModelFileError, match=r"a\.safetensors: not a usable safetensors file"):
            SafetensorsFile(path)
    else:
        assert SafetensorsFile(path).names() == expected


def split(path: Path, folder: Path, count: int) -> list[Path]:
    """As llama.cpp's gguf-split does it: metadata in the first file, tensors in order, names by number."""
    reader = gguf.GGUFReader(path)
    paths = [folder / f"small-{index + 1:05}-of-{count:05}.gguf" for index in range(count)]
    for index, place in enumerate(paths):
        writer = gguf.GGUFWriter(place, "llama")
        if index == 0:
            for field in reader.fields.values():
                if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                    kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(field.name, field.contents(), field.types[0], kind)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for item in reader.tensors[index::count]:
            writer.add_tensor(item.name, item.data, raw_dtype=item.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_a_split_gguf_is_loaded_from_its_first_shard(tmp_path: Path) -> None:
    """C19: the same model as in one file, tokenizer metadata included."""
    model = random_llama(tie=False)
    save_gguf(model, tmp_path / "whole.gguf")
    paths = split(tmp_path / "whole.gguf", tmp_path, 3)
    checkpoint = Checkpoint.open(paths[0])
    assert (logits_of(checkpoint, PROMPT) - hf_logits(model, PROMPT)).abs().max() < 1e-4
    assert len(GGUFModel(paths[0]).metadata["tokenizer.ggml.tokens"]) == 203
    first = checkpoint.fingerprint()
    save_gguf(random_llama(tie=False, seed=1), tmp_path / "whole.gguf")
    (tmp_path / "other").mkdir()
    paths[2].write_bytes(split(tmp_path / "whole.gguf", tmp_path / "other", 3)[2].read_bytes())
    assert Checkpoint.open(paths[0]).fingerprint() != first


def test_an_incomplete_split_says_which_shard_it_is(tmp_path: Path) -> None:
    """C19: a later shard, a missing one, one of another model, a renamed one."""
    save_gguf(random_llama(tie=False), tmp_path / "whole.gguf")
    paths = split(tmp_path / "whole.gguf", tmp_path, 2)
    with pytest.raises(ModelFileError, match=r"is shard 2 of 2 .*give the first shard, small-00001-of-00002\.gguf"):
        Checkpoint.open(paths[1])
    second = paths[1].read_bytes()
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(ModelFileError, match=r"00002-of-00002\.gguf: its split\.no and split\.count are \(0, 2\)"):
        Checkpoint.open(paths[0])
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"shard 1 of 2 .*shard 2, small-00002-of-00002\.gguf, is not beside"):
        Checkpoint.open(paths[0])
    paths[1].write_bytes(second)
    Checkpoint.open(paths[0])
    with pytest.raises(ModelFileError, match="give them back their names"):
        Checkpoint.open(paths[0].rename(tmp_path / "model.gguf"))
