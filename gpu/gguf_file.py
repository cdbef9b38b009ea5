"""Reads GGUF files: header, metadata, tensor table, tensors as float32. Imports no torch; numpy only for tensors.

`checkpoint` builds models from it, the frontend takes tokenizer and chat template from its `metadata`. It never trusts
a number in the file: a damaged, truncated or foreign file ends in a `ModelFileError` that names it.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ModelFileError, UnsupportedModelError
from .fingerprint import fingerprint
from .gguf_metadata import Cursor, Metadata
from .gguf_types import TENSOR_TYPES, TensorType, type_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies. ``shape`` is in numpy's order (slowest first); ``offset`` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    size_bytes: int


class GGUFFile:
    """An open GGUF file, mapped read-only. The mapping lives as long as the object and the arrays taken from it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map and check the header of ``path``; `ModelFileError` if it is missing, unreadable or damaged."""
        self.path = Path(path)
        self._data = _map(self.path)
        cursor = Cursor(self._data, str(self.path))
        if self._data[:4] != _MAGIC:
            raise cursor.fail(f"it begins with {self._data[:4]!r} instead of {_MAGIC!r}")
        cursor.skip(4)
        self.version = cursor.number("I")
        if self.version not in _VERSIONS:
            raise ModelFileError(
                f"{self.path}: GGUF version {self.version} is not supported (supported: 2 and 3, little-endian); "
                "convert the model again with a current llama.cpp"
            )
        tensor_count, pair_count = cursor.number("Q"), cursor.number("Q")
        self.metadata = Metadata(cursor, pair_count)
        self.tensors = self._read_tensor_table(cursor, tensor_count)

    def read(self, name: str) -> NDArray[np.float32]:
        """The tensor ``name``, dequantised to float32 in numpy's order.

        `KeyError` if there is none; `UnsupportedModelError` if its type has no dequantiser.
        """
        from .gguf_quants import DEQUANTIZERS, dequantize

        tensor = self.tensors[name]
        if tensor.type_id not in DEQUANTIZERS:
            supported = ", ".join(sorted(TENSOR_TYPES[type_id].name for type_id in DEQUANTIZERS))
            raise UnsupportedModelError(
                f"{self.path}: tensor {name} has type {type_name(tensor.type_id)}, which cannot be read yet "
                f"(readable: {supported}); use a file with another quantisation"
            )
        return dequantize(self.raw(name), tensor.type_id).reshape(tensor.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of the tensor ``name`` as they stand in the file. `KeyError` if there is none."""
        import numpy as np

        tensor = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, tensor.size_bytes, tensor.offset)

    def fingerprint(self) -> str:
        """Hex digest that tells this file from others: size, time of change, header, and 64 pages of the weights.

        Cheap (a few ms) where hashing gigabytes would not be; a file edited in place changes its time.
        """
        return fingerprint(self.path, self._data, self._data_start)

    def _read_tensor_table(self, cursor: Cursor, count: int) -> dict[str, GGUFTensor]:
        entries = [self._read_tensor_entry(cursor) for _ in range(count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise cursor.fail(f"general.alignment is {alignment!r}, not a positive multiple of 8")
        self._data_start = (cursor.offset + alignment - 1) // alignment * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, relative in entries:
            if name in tensors:
                raise cursor.fail(f"the tensor {name!r} occurs twice")
            size = _size_bytes(cursor, name, shape, type_id)
            offset = self._data_start + relative
            if relative % alignment or offset + size > cursor.size:
                raise cursor.fail(
                    f"tensor {name!r} claims bytes {offset} to {offset + size} of {cursor.size} (truncated?)"
                )
            tensors[name] = GGUFTensor(name, shape, type_id, offset, size)
        return tensors

    @staticmethod
    def _read_tensor_entry(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
        name = cursor.text()
        dimensions = cursor.number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise cursor.fail(f"tensor {name!r} has {dimensions} dimensions (1 to {_MAX_DIMENSIONS} are possible)")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))
        if 0 in shape:
            raise cursor.fail(f"tensor {name!r} has an empty dimension in {shape}")
        return name, shape[::-1], cursor.number("I"), cursor.number("Q")


def _size_bytes(cursor: Cursor, name: str, shape: tuple[int, ...], type_id: int) -> int:
    """Bytes that a tensor takes; 0 for a type of unknown layout, which `read` then refuses by name."""
    tensor_type: TensorType | None = TENSOR_TYPES.get(type_id)
    if tensor_type is None:
        return 0
    if shape[-1] % tensor_type.block_items:
        raise cursor.fail(f"rows of tensor {name!r} have {shape[-1]} items, not whole blocks of {tensor_type.name}")
    return math.prod(shape) // tensor_type.block_items * tensor_type.block_bytes


def _map(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < 24:
                raise ModelFileError(f"{path}: not a usable GGUF file: it is too short; download the file again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such file; check the path or the model's name") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}; check that it is a file you may read") from error
