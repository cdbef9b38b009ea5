"""Every dequantiser gives what the reference implementation of the gguf package gives, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ringcast.gpu.gguf_quants import DEQUANTIZERS, dequantize
from ringcast.gpu.gguf_types import TENSOR_TYPES, type_name


def random_blocks(type_id: int, count: int) -> np.ndarray:
    """Random bytes are valid blocks of any type; scales come out as any half-precision number, infinities included."""
    rng = np.random.default_rng(type_id)
    return rng.integers(0, 256, (count, TENSOR_TYPES[type_id].block_bytes), dtype=np.uint8)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the reference multiplies infinite scales by zero, too
@pytest.mark.parametrize("type_id", sorted(DEQUANTIZERS), ids=lambda type_id: TENSOR_TYPES[type_id].name)
def test_it_equals_the_reference(type_id: int) -> None:
    raw = random_blocks(type_id, 9001)  # more than one piece, and no multiple of one
    kind = gguf.GGMLQuantizationType(type_id)
    if kind == gguf.GGMLQuantizationType.F32:
        expected = raw.view(np.float32)
    elif kind == gguf.GGMLQuantizationType.F16:
        expected = raw.view(np.float16).astype(np.float32)
    else:
        expected = gguf.quants.dequantize(raw, kind)
    np.testing.assert_array_equal(dequantize(raw.reshape(-1), type_id), expected.reshape(-1))


def test_the_table_of_layouts_is_that_of_ggml() -> None:
    for type_id, layout in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(type_id)
        assert layout == (kind.name, *gguf.GGML_QUANT_SIZES[kind])
        assert DEQUANTIZERS[type_id][1].itemsize == layout.block_bytes


def test_every_type_of_ggml_has_its_name() -> None:
    for kind in gguf.GGMLQuantizationType:
        if kind.name != "Q1_0":  # newer than the table; its number is told instead
            assert type_name(int(kind)) == kind.name
    assert type_name(99) == "number 99 (unknown)"
