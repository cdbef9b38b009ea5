"""How each weight of a checkpoint is packed for the matrix products, and its packed bytes. Imports no torch.

`weight_cache` writes them to a file, the loader takes them straight where there is no room for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .checkpoint import Checkpoint
from .errors import ModelFileError, UnsupportedModelError
from .host_tensor import HostTensor, convert
from .packing import BLOCK_DEPTH, PACKED_TYPES, Packing, check_depth, pack_floats, pack_q4, pack_q8
from .weight_table import Weight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def packing_of(checkpoint: Checkpoint, weight: Weight, dtype: str, keep_blocks: bool) -> Packing | None:
    """How ``weight`` is packed as ``dtype`` ("F32" or "BF16"); None for a vector, which stays as it is, in float32.

    ``keep_blocks`` keeps quantised blocks where all parts of the weight have a type that stays packed.
    `UnsupportedModelError` for a shape that the products cannot take.
    """
    if len(weight.shape) == 1:
        return None
    columns, depth = weight.shape
    name = dtype
    if keep_blocks:
        kinds = {PACKED_TYPES.get(checkpoint.type_name(part.name), dtype) for part in weight.parts}
        name = kinds.pop() if len(kinds) == 1 else dtype
    if not check_depth(name, depth):
        raise UnsupportedModelError(
            f"{checkpoint.path}: rows of {weight.name} have {depth} items, which cannot be multiplied as {name}; "
            "use dtype float32"
        )
    return Packing(name, columns, depth, weight.gated)


def packed_bytes(checkpoint: Checkpoint, weight: Weight, packing: Packing | None) -> Iterator[NDArray[np.uint8]]:
    """The packed weight, piece by piece. `ModelFileError` if the checkpoint is at fault."""
    import numpy as np

    if packing is None or packing.format in ("F32", "BF16"):
        rows = _stacked(checkpoint, weight, "F32" if packing is None else packing.format)
        yield from [rows.view(np.uint8)] if packing is None else pack_floats(rows, packing)
        return
    parts = [checkpoint.read_blocks(part.name) for part in weight.parts]
    for part, blocks in zip(weight.parts, parts, strict=True):
        _check_shape(checkpoint, part.name, blocks.numbers.shape, part.shape)
    scales = np.concatenate([part.scales for part in parts])
    numbers = np.concatenate([part.numbers for part in parts])
    if packing.format == "Q8":
        yield from pack_q8(scales, numbers, packing)
    else:
        offsets = np.concatenate([part.offsets for part in parts if part.offsets is not None])
        yield from pack_q4(scales, offsets, numbers, packing)


def random_bytes(packing: Packing, generator: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
    """A packed weight of random values around N(0, 0.02); rows repeat after 512, which no measurement of speed sees."""
    import numpy as np

    rows, repeats = min(packing.columns, 512), -(-packing.columns // 512)

    def repeated(array: NDArray[Any]) -> NDArray[Any]:
        return np.tile(array, (repeats, 1))[: packing.columns]

    if packing.format in ("F32", "BF16"):
        floats = 0.02 * generator.standard_normal((rows, packing.depth), np.float32)
        yield from pack_floats(repeated(convert(HostTensor("F32", floats), packing.format)), packing)
        return
    blocks = (packing.columns, packing.depth // BLOCK_DEPTH)
    if packing.format == "Q8":
        numbers = generator.integers(-127, 128, (rows, packing.depth), np.int8)
        yield from pack_q8(np.full(blocks, 0.02 / 73, np.float16), repeated(numbers), packing)
    else:
        scales = np.full(blocks, 0.02 / 4.6, np.float16)
        numbers = generator.integers(0, 16, (rows, packing.depth), np.uint8)
        yield from pack_q4(scales, scales * np.float16(-7.5), repeated(numbers), packing)


def _stacked(checkpoint: Checkpoint, weight: Weight, dtype: str) -> NDArray[Any]:
    """The parts of a weight: read, checked against the config, converted and stacked."""
    import numpy as np

    parts: list[HostTensor] = []
    for part in weight.parts:
        tensor = checkpoint.read(part.name)
        _check_shape(checkpoint, part.name, tensor.array.shape, part.shape)
        parts.append(tensor)
    if len(parts) == 1:
        return np.ascontiguousarray(convert(parts[0], dtype))
    return np.concatenate([convert(part, dtype) for part in parts])


def _check_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ModelFileError(
            f"{checkpoint.path}: tensor {name} has the shape {list(shape)}, but the model's config "
            f"promises {list(expected)}; get the model again"
        )
