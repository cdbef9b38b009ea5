"""Names and block layouts of GGUF's tensor types: the table that `gguf_file` checks sizes with. Data only."""

from __future__ import annotations

from typing import NamedTuple


class TensorType(NamedTuple):
    """``block_items`` values are stored in ``block_bytes`` bytes."""

    name: str
    block_items: int
    block_bytes: int


# Number in the file -> layout, for the types that can be read (ggml.h, enum ggml_type, and ggml-common.h).
TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}

# Types that exist but cannot be read: only named, so that the refusal says what the file holds.
_OTHER_NAMES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


def type_name(type_id: int) -> str:
    """The type's name as llama.cpp spells it, or its number."""
    if type_id in TENSOR_TYPES:
        return TENSOR_TYPES[type_id].name
    return _OTHER_NAMES.get(type_id, f"number {type_id} (unknown)")
