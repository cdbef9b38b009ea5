"""Dequantisation of GGUF blocks to float32, vectorised with numpy. `gguf_file` calls it; it knows no file.

Each function fills ``out`` [blocks, items] from the raw blocks, laid out as in ggml-common.h; the results equal those
of `gguf.quants.dequantize` bit for bit. Fields are named as there: ``d`` is a scale, ``m`` and ``dmin`` are offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .gguf_types import TENSOR_TYPES

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# What `split_blocks` takes apart, by name.
SPLIT_TYPES = ("Q4_0", "Q4_1", "Q8_0")
# Items handled at a time: the temporaries of one piece stay in the second-level cache.
_PIECE_ITEMS = 1 << 18


def dequantize(raw: Bytes, type_id: int) -> Floats:
    """``raw`` [bytes, whole blocks] -> float32 [items]. `KeyError` for a type without a dequantiser."""
    fill, layout = DEQUANTIZERS[type_id]
    tensor_type = TENSOR_TYPES[type_id]
    blocks = raw.view(layout)
    out = np.empty((len(blocks), tensor_type.block_items), np.float32)
    step = max(1, _PIECE_ITEMS // tensor_type.block_items)
    # A scale may be infinite or NaN in a damaged file: that is the reader's to notice, not numpy's to print.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            fill(blocks[start : start + step], out[start : start + step])
    return out.reshape(-1)


class Blocks(NamedTuple):
    """Blocks of 32 whole numbers, unscaled: value = scale * number + offset."""

    scales: NDArray[np.float16]
    offsets: NDArray[np.float16] | None  # None: there are none
    numbers: NDArray[Any]  # uint8 from 0 to 15, or int8 where there are no offsets


def split_blocks(raw: Bytes, type_id: int) -> Blocks:
    """``raw`` of a type in `SPLIT_TYPES`, unpacked but not scaled: scales and offsets [blocks], numbers [items]."""
    blocks = raw.view(DEQUANTIZERS[type_id][1])
    if TENSOR_TYPES[type_id].name == "Q8_0":
        return Blocks(blocks["d"], None, blocks["qs"].reshape(-1))
    numbers = np.empty((len(blocks), 32), np.uint8)
    _nibbles(blocks["qs"], numbers)
    # Q4_0 means d * (number - 8); the product with -8 is exact, short of overflow.
    with np.errstate(over="ignore"):
        offsets = blocks["m"] if TENSOR_TYPES[type_id].name == "Q4_1" else blocks["d"] * np.float16(-8)
    return Blocks(blocks["d"], offsets, numbers.reshape(-1))


def _f32(blocks: NDArray[Any], out: Floats) -> None:
    out[:, 0] = blocks


def _bf16(blocks: NDArray[Any], out: Floats) -> None:
    out.view(np.uint32)[:, 0] = blocks.astype(np.uint32) << 16


def _q4_0(blocks: NDArray[Any], out: Floats) -> None:
    _nibbles(blocks["qs"], out)
    out -= 8
    out *= _column(blocks["d"])


def _q4_1(blocks: NDArray[Any], out: Floats) -> None:
    _nibbles(blocks["qs"], out)
    out *= _column(blocks["d"])
    out += _column(blocks["m"])


def _q5_0(blocks: NDArray[Any], out: Floats) -> None:
    _nibbles(blocks["qs"], out)
    _add_fifth_bits(blocks["qh"], out)
    out -= 16
    out *= _column(blocks["d"])


def _q5_1(blocks: NDArray[Any], out: Floats) -> None:
    _nibbles(blocks["qs"], out)
    _add_fifth_bits(blocks["qh"], out)
    out *= _column(blocks["d"])
    out += _column(blocks["m"])


def _q8_0(blocks: NDArray[Any], out: Floats) -> None:
    out[:] = blocks["qs"]
    out *= _column(blocks["d"])


def _q2_k(blocks: NDArray[Any], out: Floats) -> None:
    scales = blocks["scales"]
    groups = out.reshape(-1, 16, 16)
    # Byte j of each half holds items j, j+32, j+64 and j+96 of that half, two bits each.
    for shift in range(4):
        out.reshape(-1, 2, 4, 32)[:, :, shift] = (blocks["qs"].reshape(-1, 2, 32) >> (2 * shift)) & 3
    groups *= (_column(blocks["d"]) * (scales & 15))[:, :, None]
    groups -= (_column(blocks["dmin"]) * (scales >> 4))[:, :, None]


def _q3_k(blocks: NDArray[Any], out: Floats) -> None:
    packed = blocks["scales"]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = np.concatenate([(packed[:, 8:] >> (2 * part)) & 3 for part in range(4)], axis=1)
    scales = (low | (high << 4)).astype(np.float32) - 32
    view = out.reshape(-1, 2, 4, 32)
    for shift in range(4):
        view[:, :, shift] = (blocks["qs"].reshape(-1, 2, 32) >> (2 * shift)) & 3
    # The third bit of item i of group g of 32 is bit g of mask byte i; a clear bit subtracts 4.
    for group in range(8):
        out.reshape(-1, 8, 32)[:, group] -= (~(blocks["hmask"] >> group) & 1) << 2
    out.reshape(-1, 16, 16)[:] *= (_column(blocks["d"]) * scales)[:, :, None]


def _q4_k(blocks: NDArray[Any], out: Floats) -> None:
    _nibbles(blocks["qs"].reshape(-1, 32), out.reshape(-1, 64))
    _scale_k(blocks, out)


def _q5_k(blocks: NDArray[Any], out: Floats) -> None:
    _nibbles(blocks["qs"].reshape(-1, 32), out.reshape(-1, 64))
    for group in range(8):
        out.reshape(-1, 8, 32)[:, group] += ((blocks["qh"] >> group) & 1) << 4
    _scale_k(blocks, out)


def _q6_k(blocks: NDArray[Any], out: Floats) -> None:
    view = out.reshape(-1, 2, 4, 32)
    low = blocks["ql"].reshape(-1, 2, 2, 32)
    view[:, :, :2] = low & 15
    view[:, :, 2:] = low >> 4
    for shift in range(4):
        view[:, :, shift] += ((blocks["qh"].reshape(-1, 2, 32) >> (2 * shift)) & 3) << 4
    out -= 32
    out.reshape(-1, 16, 16)[:] *= (_column(blocks["d"]) * blocks["scales"])[:, :, None]


def _column(halves: NDArray[Any]) -> Floats:
    return halves.astype(np.float32)[:, None]


def _nibbles(packed: Bytes, out: NDArray[Any]) -> None:
    """First half of ``out``'s row from the low nibbles, second half from the high ones."""
    half = packed.shape[1]
    out[:, :half] = packed & 15
    out[:, half:] = packed >> 4


def _add_fifth_bits(packed: Bytes, out: Floats) -> None:
    out += np.unpackbits(packed, axis=1, bitorder="little") << 4


def _scale_k(blocks: NDArray[Any], out: Floats) -> None:
    """Q4_K and Q5_K: eight groups of 32, each with a 6-bit scale and a 6-bit minimum packed into 12 bytes."""
    first, second, rest = (blocks["scales"][:, start : start + 4] for start in (0, 4, 8))
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 48)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 48)], axis=1)
    groups = out.reshape(-1, 8, 32)
    groups *= (_column(blocks["d"]) * scales)[:, :, None]
    groups -= (_column(blocks["dmin"]) * minima)[:, :, None]


def _layout(*fields: tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype([(name, kind, (count,)) if count > 1 else (name, kind) for name, kind, count in fields])


_D, _M, _DMIN = ("d", "<f2", 1), ("m", "<f2", 1), ("dmin", "<f2", 1)

DEQUANTIZERS: dict[int, tuple[Callable[[NDArray[Any], Floats], None], np.dtype[Any]]] = {
    0: (_f32, np.dtype("<f4")),
    1: (_f32, np.dtype("<f2")),
    2: (_q4_0, _layout(_D, ("qs", "u1", 16))),
    3: (_q4_1, _layout(_D, _M, ("qs", "u1", 16))),
    6: (_q5_0, _layout(_D, ("qh", "u1", 4), ("qs", "u1", 16))),
    7: (_q5_1, _layout(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16))),
    8: (_q8_0, _layout(_D, ("qs", "i1", 32))),
    10: (_q2_k, _layout(("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN)),
    11: (_q3_k, _layout(("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D)),
    12: (_q4_k, _layout(_D, _DMIN, ("scales", "u1", 12), ("qs", "u1", 128))),
    13: (_q5_k, _layout(_D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128))),
    14: (_q6_k, _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D)),
    30: (_bf16, np.dtype("<u2")),
}
