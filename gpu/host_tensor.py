"""A tensor in host memory, as numpy holds it, and its conversion between the float types. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# U8 is only known as bytes: packed weights.
# Type in the file -> numpy type; numpy has no bfloat16, so its bits travel as uint16.
NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_COMPARED_ROWS = 4096
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}


class HostTensor(NamedTuple):
    """An array and what its items mean: "F32", "F16" or "BF16" (as uint16)."""

    dtype: str
    array: NDArray[Any]


def convert(tensor: HostTensor, dtype: str) -> NDArray[Any]:
    """The items as "F32" or "BF16" (round to nearest, ties to even, as hardware does), without a copy if they are."""
    if tensor.dtype == dtype:
        return tensor.array
    floats = _to_float32(tensor)
    return floats if dtype == "F32" else _to_bfloat16(floats)


def same_items(one: HostTensor, other: HostTensor) -> bool:
    """Whether both hold the same numbers, whatever their types. It stops at the first rows that differ."""
    import numpy as np

    if one.array.shape != other.array.shape:
        return False
    for start in range(0, len(one.array), _COMPARED_ROWS):
        rows = slice(start, start + _COMPARED_ROWS)
        ours, theirs = (_to_float32(tensor._replace(array=tensor.array[rows])) for tensor in (one, other))
        if not np.array_equal(ours, theirs):
            return False
    return True


def _to_float32(tensor: HostTensor) -> NDArray[np.float32]:
    import numpy as np

    if tensor.dtype == "BF16":
        return (tensor.array.astype(np.uint32) << 16).view(np.float32)
    return tensor.array.astype(np.float32)


def _to_bfloat16(floats: NDArray[np.float32]) -> NDArray[np.uint16]:
    import numpy as np

    bits = np.ascontiguousarray(floats).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    # Rounding would turn some NaNs into infinity: keep them NaN.
    return np.where(np.isnan(floats), np.uint16(0x7FC0), rounded)
