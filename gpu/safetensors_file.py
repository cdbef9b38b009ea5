"""Reads and writes safetensors files as numpy arrays, bfloat16 included. Imports no torch.

`checkpoint` reads model folders with it, `weight_cache` writes the converted copies. Arrays are views of a private
mapping: nothing is copied, and a write to one would stay in this process. Every offset is checked before use.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelFileError
from .host_tensor import ITEM_BYTES, NUMPY_TYPES, HostTensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ALIGNMENT = 64
_MAX_HEADER_BYTES = 100_000_000


class SafetensorsFile:
    """An open file. ``metadata`` are its free-form strings. `ModelFileError` for anything that is not sound."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size < 8:
                    raise self._damaged("it is too short")
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error}; check path and permissions") from error
        header_bytes = int.from_bytes(self.data[:8], "little")
        if header_bytes > min(len(self.data) - 8, _MAX_HEADER_BYTES):
            raise self._damaged(f"its header claims {header_bytes} bytes of {len(self.data)} (truncated?)")
        self.data_start = 8 + header_bytes
        try:
            header = json.loads(self.data[8 : self.data_start])
            self.metadata: dict[str, str] = dict(header.pop("__metadata__", {}))
            self._entries = {name: self._check(name, entry) for name, entry in header.items()}
            self._check_coverage()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise self._damaged(f"its header cannot be understood ({error})") from error

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._entries)

    def read(self, name: str) -> HostTensor:
        """A view of the tensor ``name``. `KeyError` if there is none."""
        import numpy as np

        dtype, shape, start, stop = self._entries[name]
        if dtype not in NUMPY_TYPES:
            raise ModelFileError(
                f"{self.path}: tensor {name} has type {dtype} (readable: {', '.join(NUMPY_TYPES)}); "
                "use a checkpoint with plain float weights"
            )
        items = (stop - start) // ITEM_BYTES[dtype]
        array = np.frombuffer(self.data, NUMPY_TYPES[dtype], items, self.data_start + start)
        return HostTensor(dtype, array.reshape(shape))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A view of the bytes of tensor ``name``. `KeyError` if there is none."""
        import numpy as np

        _, _, start, stop = self._entries[name]
        return np.frombuffer(self.data, np.uint8, stop - start, self.data_start + start)

    def _check(self, name: str, entry: Mapping[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
            raise ValueError(f"tensor {name} has the shape {shape} at {start} to {stop}")
        if not start <= stop <= len(self.data) - self.data_start:
            raise ValueError(f"tensor {name} ends at {stop}, behind the end of the data (truncated?)")
        if dtype in ITEM_BYTES and math.prod(shape) * ITEM_BYTES[dtype] != stop - start:
            raise ValueError(f"tensor {name} of shape {shape} and type {dtype} takes {stop - start} bytes")
        return dtype, shape, start, stop

    def _check_coverage(self) -> None:
        """Refuse overlaps, gaps and data that no tensor owns, as the safetensors library does."""
        end = 0
        for name, (_, _, start, stop) in sorted(self._entries.items(), key=lambda item: item[1][2:]):
            if start != end:
                problem = "overlaps the tensor before it" if start < end else "leaves a gap before it"
                raise ValueError(f"tensor {name} at {start} to {stop} {problem}, which ends at {end}")
            end = stop
        size = len(self.data) - self.data_start
        if end != size:
            raise ValueError(f"its tensors end at {end}, but there are {size} bytes of data")

    def _damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: not a usable safetensors file: {what}; get the file again")


def lay_out(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Lay out tensors (name, type, shape) one after the other, without gaps, as the format wants it.

    Returns the head of the file (length word and header) and the offset of each tensor in the file. The head's length
    does not depend on what the metadata say, only on how long they are; the data begin at a multiple of 64 bytes.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    starts: dict[str, int] = {}
    position = 0
    for name, dtype, shape in tensors:
        size = math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        starts[name] = position
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    return head, {name: len(head) + start for name, start in starts.items()}
