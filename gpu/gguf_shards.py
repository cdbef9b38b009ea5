"""`GGUFModel`: a GGUF model, in one file or split over several by llama.cpp's gguf-split, read as one thing.

`checkpoint` builds models from it, the frontend takes tokenizer and chat template from its `metadata`. As in llama.cpp
a split model is named by its first file; the others are found beside it by their names. Imports no torch.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelFileError
from .gguf_file import GGUFFile, GGUFTensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)
_MAX_SHARDS = 99999


class GGUFModel:
    """All shards of a model. ``metadata`` are those of the first, ``tensors`` those of all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map and check the headers. `ModelFileError` if a file is missing or damaged, or ``path`` is not the first."""
        first = GGUFFile(path)
        self.path = first.path
        self.metadata: Mapping[str, Any] = first.metadata
        self._files = [first, *_others(first)]
        self._file_of: dict[str, GGUFFile] = {}
        for file in self._files:
            for name in file.tensors:
                if name in self._file_of:
                    raise ModelFileError(
                        f"{file.path}: tensor {name} is in another shard too; download the files again"
                    )
                self._file_of[name] = file
        total = first.metadata.get("split.tensors.count", len(self._file_of))
        if len(self._files) > 1 and total != len(self._file_of):
            raise ModelFileError(
                f"{self.path}: its {len(self._files)} shards hold {len(self._file_of)} tensors instead of {total}; "
                "download the files again"
            )
        self.tensors: dict[str, GGUFTensor] = {name: file.tensors[name] for name, file in self._file_of.items()}

    def read(self, name: str) -> NDArray[np.float32]:
        """As `GGUFFile.read`."""
        return self._file_of[name].read(name)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """As `GGUFFile.raw`."""
        return self._file_of[name].raw(name)

    def fingerprint(self) -> str:
        """Hex digest that changes with any of the files."""
        prints = [file.fingerprint() for file in self._files]
        return prints[0] if len(prints) == 1 else hashlib.sha256(" ".join(prints).encode()).hexdigest()


def is_later_shard(path: Path) -> bool:
    """Whether this is, by its name, another shard of a split model than the first."""
    match = _NAME.fullmatch(path.name)
    return match is not None and int(match[2]) > 1


def _others(first: GGUFFile) -> list[GGUFFile]:
    """The shards behind the first, in order; none where the model is in one file."""
    path = first.path
    count, index = (first.metadata.get(f"split.{key}", default) for key, default in (("count", 1), ("no", 0)))
    if not all(type(number) is int for number in (count, index)) or not 0 <= index < max(count, 1) <= _MAX_SHARDS:
        raise ModelFileError(f"{path}: split.no is {index!r} and split.count {count!r}; download the files again")
    if index:
        raise ModelFileError(
            f"{path}: it is shard {index + 1} of {count} of a split model; give the first shard"
            f"{_named(path, 0, count)}, which has to stand in the same folder"
        )
    if count <= 1:
        return []
    if _shard_path(path, 0, count) != path:
        raise ModelFileError(
            f"{path}: it is the first of {count} shards of a split model, which find each other by their names; give "
            f"them back their names, which end in -00001-of-{count:05}.gguf and so on"
        )
    others: list[GGUFFile] = []
    for number in range(1, count):
        other = _shard_path(path, number, count)
        assert other is not None
        if not other.exists():
            raise ModelFileError(
                f"{path}: it is shard 1 of {count} of a split model, and shard {number + 1}, {other.name}, is not "
                "beside it; download all shards into one folder"
            )
        file = GGUFFile(other)
        found = file.metadata.get("split.no"), file.metadata.get("split.count")
        if found != (number, count):
            raise ModelFileError(
                f"{other}: its split.no and split.count are {found}, not {(number, count)}: it belongs to another "
                "model; download the files again"
            )
        others.append(file)
    return others


def _shard_path(path: Path, number: int, count: int) -> Path | None:
    """Where this shard stands, going by the name of another one; None if that is no shard's name."""
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        return None
    return path.with_name(f"{match[1]}-{number + 1:05}-of-{match[3]}{match[4]}")


def _named(path: Path, number: int, count: int) -> str:
    place = _shard_path(path, number, count)
    return "" if place is None else f", {place.name}"
