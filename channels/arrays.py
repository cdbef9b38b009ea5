"""numpy arrays and torch tensors in messages: what travels for each, and how it becomes one again.

Called by the codec. Imports neither library: whoever sends an array has imported its own, whoever receives one needs
it anyway.
"""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ._native import MAX_INSIDE
from .errors import DecodeError, EncodeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

TAG: Final = 0
BYTES, NUMPY, SCALAR, TORCH = range(4)
# What travels: [BYTES, where], or [kind, dtype, shape, where]. ``where`` is the number of a buffer behind the message,
# or the bytes themselves.

_MAX_DIMENSIONS: Final = 64


def pack(value: object, attached: list[Buffer] | None) -> list[object] | None:
    """What stands for an array in a message; its bytes go to ``attached`` if they are many and there is one.

    None if it is no array. `EncodeError` for arrays of objects or with fields, and for tensors that are not plain CPU
    memory.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        kind = NUMPY if isinstance(value, numpy.ndarray) else SCALAR
        array = numpy.asarray(value)
        if array.dtype.hasobject or array.dtype.fields is not None or array.dtype.itemsize == 0:
            raise EncodeError(f"a numpy array of dtype {array.dtype} cannot travel: plain numbers can")
        flat = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
        return [kind, array.dtype.str, list(array.shape), _place(flat.data, attached)]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            raise EncodeError(
                f"a {value.layout} tensor of {value.dtype} on {value.device} cannot travel: make it dense, on the CPU"
            )
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        dtype = str(value.dtype).removeprefix("torch.")
        return [TORCH, dtype, list(value.shape), _place(flat.numpy().data, attached)]
    return None


def _place(data: memoryview, attached: list[Buffer] | None) -> int | bytes:
    if attached is None or data.nbytes <= MAX_INSIDE:
        return bytes(data)
    attached.append(data)
    return len(attached) - 1


def unpack(packed: object, attached: Sequence[memoryview] | None, copies: bool) -> Any:
    """The array again; a view of what is attached unless ``copies``. `DecodeError` for whatever makes no sense."""
    match packed:
        case [0, int(where)]:
            view = _find(where, attached)
            return bytes(view) if copies else view
        case [int(kind), str(dtype), list(shape), (int() | bytes()) as where] if NUMPY <= kind <= TORCH:
            data = _find(where, attached) if isinstance(where, int) else memoryview(where)
            if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
                raise DecodeError(f"an array of shape {shape}")
            if kind == TORCH:
                return _tensor(dtype, shape, data, copies)
            array = _array(dtype, shape, data, copies or kind == SCALAR)
            return array[()] if kind == SCALAR else array
    raise DecodeError("an extension of tag 0 is neither an array nor a buffer")


def _find(where: int, attached: Sequence[memoryview] | None) -> memoryview:
    if attached is None or not 0 <= where < len(attached):
        raise DecodeError(f"buffer {where} is not among the {len(attached or ())} behind the message")
    return attached[where]


def _array(dtype: str, shape: list[int], data: memoryview, copies: bool) -> Any:
    numpy = importlib.import_module("numpy")
    kind = numpy.dtype(dtype)
    if kind.hasobject or kind.fields is not None or kind.itemsize == 0:
        raise DecodeError(f"an array of dtype {dtype!r}")
    _check_size(shape, kind.itemsize, data)
    array = numpy.frombuffer(data, kind).reshape(shape)
    return array.copy() if copies else array


def _tensor(dtype: str, shape: list[int], data: memoryview, copies: bool) -> Any:
    torch = importlib.import_module("torch")
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise DecodeError(f"a tensor of dtype {dtype!r}")
    _check_size(shape, kind.itemsize, data)
    if data.nbytes == 0:
        return torch.empty(shape, dtype=kind)
    if copies:
        return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is read-only is what was asked for
        return torch.frombuffer(data, dtype=kind).reshape(shape)


def _check_size(shape: list[int], item_bytes: int, data: memoryview) -> None:
    if math.prod(shape) * item_bytes != data.nbytes:
        raise DecodeError(f"an array of shape {shape} and {item_bytes} bytes an element came in {data.nbytes} bytes")
