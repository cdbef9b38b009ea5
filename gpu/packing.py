"""Weights in the layout that the matrix products read (native/matmul.h). Imports no torch.

`weight_cache` writes packed weights, the loader maps them, `kernels` uses them. A weight is [columns, depth] as
in HF checkpoints (columns: outputs). The layout is the same for every instruction set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PANEL_COLUMNS = 16
GROUP_COLUMNS = 64
BLOCK_DEPTH = 32
# Name -> its number in native code (enum Format).
FORMATS = {"F32": 0, "BF16": 1, "Q4": 2, "Q8": 3}
# The formats that keep quantised blocks, and what each column of a block takes: scales, offsets, numbers.
_BLOCK_BYTES = {"Q4": 2 + 2 + 16, "Q8": 2 + 32}
_ITEM_BYTES = {"F32": 4, "BF16": 2}
# GGUF's types that stay packed. Q4_0's offset is -8 times its scale, which float16 holds exactly.
PACKED_TYPES = {"Q4_0": "Q4", "Q4_1": "Q4", "Q8_0": "Q8"}


@dataclass(frozen=True, slots=True)
class Packing:
    """How one weight is packed. ``gated``: its first half of columns are gates, the second the ups that they gate;
    they are packed in turn, 16 and 16, each half filled up to a multiple of 16.
    """

    format: str
    columns: int
    depth: int
    gated: bool = False

    @property
    def panels(self) -> int:
        """Panels of 16 columns, those that fill up included."""
        if self.gated:
            return 2 * -(-self.columns // 2 // PANEL_COLUMNS)
        return -(-self.columns // PANEL_COLUMNS)

    @property
    def size_bytes(self) -> int:
        """Bytes of the packed weight."""
        columns = self.panels * PANEL_COLUMNS
        if self.format in _BLOCK_BYTES:
            return columns * (self.depth // BLOCK_DEPTH) * _BLOCK_BYTES[self.format]
        return columns * self.depth * _ITEM_BYTES[self.format]


def check_depth(format_name: str, depth: int) -> bool:
    """Whether a weight of this depth can be packed so: pairs for BF16, whole blocks for quantised formats."""
    return depth % (BLOCK_DEPTH if format_name in _BLOCK_BYTES else 2 if format_name == "BF16" else 1) == 0


def pack_floats(rows: NDArray[Any], packing: Packing) -> Iterator[NDArray[np.uint8]]:
    """Pack [columns, depth] float32, or bfloat16 as uint16: the bytes of group after group."""
    import numpy as np

    if packing.format == "BF16":
        rows = np.ascontiguousarray(rows).view(np.uint32)  # a pair along the depth is one item
    for group in _groups(rows, packing):
        yield np.ascontiguousarray(group.T).view(np.uint8).reshape(-1)


def pack_q4(scales: NDArray[Any], offsets: NDArray[Any], numbers: NDArray[Any], packing: Packing) -> Iterator[Any]:
    """Pack float16 ``scales`` and ``offsets`` [columns, blocks] and 4-bit ``numbers`` [columns, depth] (uint8)."""
    import numpy as np

    # Number 2 i + j of eight goes to bit 16 j + 4 i of its item.
    eights = numbers.reshape(len(numbers), -1, 4, 2).astype(np.uint32)
    shifts = np.array([[0, 16], [4, 20], [8, 24], [12, 28]], np.uint32)
    items = np.bitwise_or.reduce(eights << shifts, axis=(2, 3))
    groups = (_groups(array, packing) for array in (scales, offsets, items))
    for scale, offset, item in zip(*groups, strict=True):
        yield _blocks(scale.T, offset.T, item.T.reshape(-1, 4 * item.shape[0]))


def pack_q8(scales: NDArray[Any], numbers: NDArray[Any], packing: Packing) -> Iterator[Any]:
    """Pack float16 ``scales`` [columns, blocks] and int8 ``numbers`` [columns, depth]."""
    import numpy as np

    pairs = np.ascontiguousarray(numbers).view(np.uint16)
    for scale, pair in zip(_groups(scales, packing), _groups(pairs, packing), strict=True):
        yield _blocks(scale.T, pair.T.reshape(-1, BLOCK_DEPTH // 2 * pair.shape[0]))


def _groups(rows: NDArray[Any], packing: Packing) -> Iterator[NDArray[Any]]:
    """The rows of group after group, at most 64, missing ones zero."""
    import numpy as np

    if packing.gated:
        half = packing.columns // 2
        filled = np.zeros((2, packing.panels // 2 * PANEL_COLUMNS, rows.shape[1]), rows.dtype)
        filled[:, :half] = rows.reshape(2, half, -1)
        rows = filled.reshape(2, -1, PANEL_COLUMNS, rows.shape[1]).swapaxes(0, 1).reshape(-1, rows.shape[1])
    for start in range(0, packing.panels * PANEL_COLUMNS, GROUP_COLUMNS):
        group = rows[start : start + GROUP_COLUMNS]
        width = min(GROUP_COLUMNS, packing.panels * PANEL_COLUMNS - start)
        if len(group) < width:
            group = np.concatenate([group, np.zeros((width - len(group), rows.shape[1]), rows.dtype)])
        yield group


def _blocks(*fields: NDArray[Any]) -> NDArray[np.uint8]:
    """Fields [blocks, items], one block's after the other's."""
    import numpy as np

    parts: Sequence[Any] = [np.ascontiguousarray(field).view(np.uint8) for field in fields]
    return np.concatenate(parts, axis=1).reshape(-1)
