"""`Checkpoint`: a model on this machine's disk, an HF folder or a GGUF file, read as one thing. Imports no torch.

The loader takes weights from it under their HF names, the frontend takes ``config`` for admission and, from a GGUF
file, ``gguf.metadata`` for the tokenizer. It never downloads and never writes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapters import refuse_adapter
from .errors import ModelFileError, UnsupportedModelError
from .fingerprint import fingerprint
from .gguf_config import ROPE_TENSORS, config_from_gguf
from .gguf_names import GGUFName, gguf_name
from .gguf_shards import GGUFModel
from .gguf_types import type_name
from .hf_config import config_from_hf
from .host_tensor import HostTensor, same_items
from .model_config import ModelConfig
from .safetensors_file import SafetensorsFile
from .weight_table import weight_table

if TYPE_CHECKING:
    from .gguf_quants import Blocks

logger = logging.getLogger(__name__)

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Checkpoint(ABC):
    """One model. ``path`` is the folder or file, ``gguf`` the open model if it is one, else None."""

    path: Path
    config: ModelConfig
    gguf: GGUFModel | None

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint at ``path``: a folder with config.json and safetensors, or a .gguf file.

        `ModelFileError` if it is missing, damaged or neither; `UnsupportedModelError` if it asks for what is not
        implemented. Weights are not read yet.
        """
        place = Path(path)
        if place.is_dir():
            return FolderCheckpoint(place)
        if not place.exists():
            raise ModelFileError(f"{place}: no such file or folder; check the path or the model's name")
        if place.suffix == ".safetensors":
            raise ModelFileError(f"{place}: weights alone are no model; give the folder, which has a config.json")
        return GGUFCheckpoint(place)

    @abstractmethod
    def read(self, name: str) -> HostTensor:
        """The tensor with this HF name, which must stand in the model's weight table.

        `ModelFileError` or `UnsupportedModelError` if its data cannot be read.
        """

    @abstractmethod
    def type_name(self, name: str) -> str:
        """The type of this tensor in the file, as llama.cpp spells it; "" where all are plain floats."""

    @abstractmethod
    def read_blocks(self, name: str) -> Blocks:
        """The blocks of this quantised tensor, unscaled: scales and offsets [rows, blocks], numbers [rows, depth].

        Its type must be one of `SPLIT_TYPES`.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest that changes with any file of the checkpoint (its size, time of change, or sampled content)."""


class FolderCheckpoint(Checkpoint):
    """A folder as ``save_pretrained`` writes it: config.json and safetensors files, one or sharded."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.gguf = None
        refuse_adapter(folder)
        source = folder / "config.json"
        config = config_from_hf(_read_json(source), str(source))
        self._files = [SafetensorsFile(path) for path in self._weight_paths()]
        self._file_of = self._files_by_tensor()
        refuse_adapter(folder, self._file_of)
        self._stored_names = {name: name for name in self._file_of}
        self.config = replace(config, tie_word_embeddings=config.tie_word_embeddings and self._tie_head())
        present = self._stored_names.keys() - _harmless(self._stored_names, self.config)
        _check_names(self.path, _table_names(self.config), present)

    def read(self, name: str) -> HostTensor:
        stored = self._stored_names[name]
        return self._file_of[stored].read(stored)

    def type_name(self, name: str) -> str:
        return ""

    def read_blocks(self, name: str) -> Blocks:
        raise ValueError(f"tensor {name} of {self.path} is not quantised")

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.config).encode())
        for file in self._files:
            digest.update(fingerprint(file.path, file.data, file.data_start).encode())
        return digest.hexdigest()

    def _files_by_tensor(self) -> dict[str, SafetensorsFile]:
        found: dict[str, SafetensorsFile] = {}
        for file in self._files:
            for name in file.names():
                other = found.setdefault(name, file)
                if other is not file:
                    raise ModelFileError(
                        f"{self.path}: tensor {name} is in {other.path.name} and in {file.path.name}; get the model "
                        "again"
                    )
        return found

    def _tie_head(self) -> bool:
        """Whether the head of a config with a tied head is the embedding, as transformers decides it.

        A checkpoint may hold the shared matrix under the head's name alone. If it holds two matrices that differ,
        both count.
        """
        if _HEAD not in self._file_of:
            return True
        if _EMBEDDING not in self._file_of:
            self._stored_names[_EMBEDDING] = _HEAD
            return True
        if same_items(self.read(_EMBEDDING), self.read(_HEAD)):
            return True
        logger.warning(
            "%s: tie_word_embeddings is true, but %s and %s differ: the model runs with both, as in transformers; "
            "set it to false in config.json to confirm this",
            self.path, _EMBEDDING, _HEAD,
        )  # fmt: skip
        return False

    def _weight_paths(self) -> list[Path]:
        single = self.path / "model.safetensors"
        if single.exists():
            return [single]
        index = self.path / "model.safetensors.index.json"
        if not index.exists():
            raise ModelFileError(
                f"{self.path}: neither model.safetensors nor model.safetensors.index.json is there; "
                "give a folder with safetensors weights"
            )
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelFileError(f"{index}: it has no weight_map; get the file again")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            # The index is foreign input: it may not point out of its folder.
            if Path(name).name != name:
                raise ModelFileError(f"{index}: {name!r} is no plain file name; get the file again")
        return [self.path / name for name in names]


class GGUFCheckpoint(Checkpoint):
    """A GGUF model. Tensors come dequantised to float32, under HF names and in HF's order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = self.gguf = GGUFModel(path)
        embedding = self._file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelFileError(f"{path}: it has no token embedding, so it is no language model; use another file")
        has_head = "output.weight" in self._file.tensors
        factors = {
            name: tuple(self._file.read(name).reshape(-1).tolist())
            for name in ROPE_TENSORS
            if name in self._file.tensors
        }
        self.config = config_from_gguf(self._file.metadata, embedding.shape, has_head, str(path), factors)
        expected = {gguf_name(name, self.config).name for name in _table_names(self.config)}
        _check_names(path, expected, self._file.tensors.keys() - factors.keys())

    def read(self, name: str) -> HostTensor:
        known = gguf_name(name, self.config)
        array = self._in_order(self._file.read(known.name), known)
        return HostTensor("F32", array - known.offset if known.offset else array)

    def type_name(self, name: str) -> str:
        return type_name(self._file.tensors[gguf_name(name, self.config).name].type_id)

    def read_blocks(self, name: str) -> Blocks:
        import numpy as np

        from .gguf_quants import Blocks, split_blocks

        known = gguf_name(name, self.config)
        tensor = self._file.tensors[known.name]
        blocks = split_blocks(self._file.raw(known.name), tensor.type_id)
        factors = [field for field in (blocks.scales, blocks.offsets) if field is not None]
        if not all(np.isfinite(field).all() for field in factors):
            raise ModelFileError(f"{self.path}: tensor {known.name} has infinite scales; download the file again")
        rows = tensor.shape[0]
        scales, numbers = (self._in_order(field.reshape(rows, -1), known) for field in (blocks.scales, blocks.numbers))
        offsets = None if blocks.offsets is None else self._in_order(blocks.offsets.reshape(rows, -1), known)
        return Blocks(scales, offsets, numbers)

    def fingerprint(self) -> str:
        return self._file.fingerprint()

    def _in_order(self, rows: Any, known: GGUFName) -> Any:
        return _halves_from_pairs(rows, known.interleaved_heads, self.path) if known.interleaved_heads else rows


def _table_names(config: ModelConfig) -> set[str]:
    return {part.name for weight in weight_table(config) for part in weight.parts}


def _harmless(names: Iterable[str], config: ModelConfig) -> set[str]:
    """Tensors of HF checkpoints that say nothing new: computed buffers, and the copy of a tied embedding."""
    buffers = {name for name in names if name.endswith("rotary_emb.inv_freq")}
    return buffers | ({_HEAD} if config.tie_word_embeddings else set())


def _check_names(path: Path, expected: Set[str], present: Set[str]) -> None:
    """Every tensor that the model needs is there, and every one that is there is used.

    An unused one (biases, factors of a rope scaling) means another variant, which would be computed wrongly in silence.
    """
    missing = sorted(expected - present)
    if missing:
        raise ModelFileError(
            f"{path}: {len(missing)} tensors are missing, such as {missing[0]}; the model is not whole: get it again"
        )
    unused = sorted(present - expected)
    if unused:
        raise UnsupportedModelError(
            f"{path}: it has {len(unused)} tensors that its architecture as built here does not use, such as "
            f"{unused[0]}; this variant is not supported: choose another model"
        )


def _halves_from_pairs(array: Any, heads: int, path: Path) -> Any:
    """Undo llama.cpp's order of query and key rows.

    Its rotary embedding turns neighbouring rows (2i, 2i+1) together; HF's turns row i of a head with row i + half.
    """
    rows, columns = array.shape
    if rows % (2 * heads):
        raise ModelFileError(f"{path}: {rows} rows cannot be split over {heads} heads; download the file again")
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such file; give a model's folder, a .gguf file or a model's name") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error}; check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: it is no JSON ({error}); get the file again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: it holds no JSON object; get the file again")
    return value
