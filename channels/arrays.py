"""numpy arrays and torch tensors in messages: what travels for each, and how it becomes one again.

Called by the codec. Imports neither library: whoever sends an array has imported its own, whoever receives one needs
it anyway.
"""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from .errors import DecodeError, EncodeError

if TYPE_CHECKING:
    from typing_extensions import Buffer

TAG: Final = 0
BYTES, NUMPY, SCALAR, TORCH, MASKED, MATRIX, PARAMETER, TRAINABLE = range(8)
# What travels: [BYTES, where], or [kind, dtype, shape, where]; [MASKED, data, mask, fill value, whether it is hard].
# ``where`` is the number of a buffer behind the message, or the bytes themselves.

_PLAIN: Final = (NUMPY, SCALAR, TORCH, MATRIX, TRAINABLE)
_MAX_DIMENSIONS: Final = 64

Packer = Callable[[Any, "list[Buffer] | None", int], list[Any]]


def packer_of(cls: type) -> Packer | None:
    """What packs arrays of exactly that type; bytes of more than the number go to the list, if there is one.

    None if they are no arrays. `EncodeError` for other kinds of arrays, which would arrive as plain ones.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, (numpy.ndarray, numpy.generic)):
        return _numpy_packer(numpy, cls)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(cls, torch.Tensor):
        if cls is torch.Tensor:
            return _pack_tensor
        if cls is torch.nn.Parameter:
            return _pack_parameter
        raise EncodeError(
            f"a {_name(cls)} cannot travel: it would arrive as a plain tensor; "
            "send tensor.detach().as_subclass(torch.Tensor)"
        )
    return None


def _numpy_packer(numpy: Any, cls: type) -> Packer:
    if cls is numpy.ndarray:
        return lambda value, attached, inside_bytes: _pack_array(NUMPY, value, attached, inside_bytes)
    if cls is numpy.ma.MaskedArray:
        return _pack_masked
    if cls is type(numpy.ma.masked):
        return lambda value, attached, inside_bytes: [MASKED]
    if cls is numpy.matrix:
        return lambda value, attached, inside_bytes: _pack_array(MATRIX, value, attached, inside_bytes)
    if issubclass(cls, numpy.generic) and cls.__module__ == "numpy":
        return lambda value, attached, inside_bytes: _pack_array(SCALAR, value, attached, inside_bytes)
    raise EncodeError(f"a {_name(cls)} cannot travel: it would arrive as a plain array; send numpy.asarray(value)")


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _pack_array(kind: int, value: Any, attached: list[Buffer] | None, inside_bytes: int) -> list[Any]:
    numpy = sys.modules["numpy"]
    array = numpy.asarray(value)
    dtype = array.dtype
    if (
        dtype.hasobject
        or dtype.fields is not None
        or (dtype.itemsize == 0 and not (kind == SCALAR and dtype.kind in "US"))
    ):
        raise EncodeError(f"a numpy array of dtype {dtype} cannot travel: plain numbers can")
    flat = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8) if dtype.itemsize else numpy.empty(0, "u1")
    return [kind, dtype.str, list(array.shape), _place(flat.data, attached, inside_bytes)]


def _pack_masked(value: Any, attached: list[Buffer] | None, inside_bytes: int) -> list[Any]:
    numpy: Any = sys.modules["numpy"]
    mask = None if value.mask is numpy.ma.nomask else value.mask
    return [MASKED, numpy.asarray(value.data), mask, value.fill_value, bool(value.hardmask)]


def _pack_tensor(value: Any, attached: list[Buffer] | None, inside_bytes: int) -> list[Any]:
    if value.requires_grad:
        if not value.is_leaf or value.grad is not None:
            raise EncodeError(
                "a tensor with a gradient, or that is part of a computation of one, cannot travel: send tensor.detach()"
            )
        return _pack_dense(TRAINABLE, value, attached, inside_bytes)
    return _pack_dense(TORCH, value, attached, inside_bytes)


def _pack_parameter(value: Any, attached: list[Buffer] | None, inside_bytes: int) -> list[Any]:
    if value.grad is not None:
        raise EncodeError("a Parameter with a gradient cannot travel: send parameter.detach() and parameter.grad")
    return [PARAMETER, value.detach(), bool(value.requires_grad)]


def _pack_dense(kind: int, value: Any, attached: list[Buffer] | None, inside_bytes: int) -> list[Any]:
    torch: Any = sys.modules["torch"]
    if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
        raise EncodeError(
            f"a {value.layout} tensor of {value.dtype} on {value.device} cannot travel: make it dense, on the CPU"
        )
    flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    dtype = str(value.dtype).removeprefix("torch.")
    return [kind, dtype, list(value.shape), _place(flat.numpy().data, attached, inside_bytes)]


def _place(data: memoryview, attached: list[Buffer] | None, inside_bytes: int) -> int | memoryview:
    if attached is None or data.nbytes <= inside_bytes:
        return data
    attached.append(data)
    return len(attached) - 1


def unpack(packed: object, attached: Sequence[memoryview] | None, copies: bool) -> Any:
    """The array again; a view of what is attached unless ``copies``. `DecodeError` for whatever makes no sense.

    What lay in the message itself is always a copy, and writable.
    """
    match packed:
        case [0, int(where)]:
            view = _find(where, attached)
            return bytes(view) if copies or not view.readonly else view  # writable: the message's own memory
        case [int(kind), str(dtype), list(shape), (int() | bytes()) as where] if kind in _PLAIN:
            if isinstance(where, int):
                data = _find(where, attached)
            else:
                data, copies = memoryview(bytearray(where)), False  # as writable as a large one, and copied once
            if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
                raise DecodeError(f"an array of shape {shape}")
            if kind in (TORCH, TRAINABLE):
                return _tensor(dtype, shape, data, copies).requires_grad_(kind == TRAINABLE)
            return _array(kind, dtype, shape, data, copies)
        case [int(kind)] if kind == MASKED:
            return importlib.import_module("numpy").ma.masked
        case [int(kind), data, mask, fill, bool(hard)] if kind == MASKED:
            numpy = importlib.import_module("numpy")
            if type(data) is numpy.ndarray and (mask is None or type(mask) is numpy.ndarray):
                mask = numpy.ma.nomask if mask is None else mask
                return numpy.ma.array(data, mask=mask, fill_value=fill, hard_mask=hard, copy=False)
        case [int(kind), data, bool(trainable)] if kind == PARAMETER:
            torch = importlib.import_module("torch")
            if type(data) is torch.Tensor:
                return torch.nn.Parameter(data, trainable)
    raise DecodeError("an extension of tag 0 is neither an array nor a buffer")


def _find(where: int, attached: Sequence[memoryview] | None) -> memoryview:
    if attached is None or not 0 <= where < len(attached):
        raise DecodeError(f"buffer {where} is not among the {len(attached or ())} behind the message")
    return attached[where]


def _array(form: int, dtype: str, shape: list[int], data: memoryview, copies: bool) -> Any:
    numpy = importlib.import_module("numpy")
    kind = numpy.dtype(dtype)
    if form == SCALAR and not shape and kind.itemsize == 0 and kind.kind in "US" and not data.nbytes:
        return kind.type()
    if kind.hasobject or kind.fields is not None or kind.itemsize == 0:
        raise DecodeError(f"an array of dtype {dtype!r}")
    _check_size(shape, kind.itemsize, data)
    array = numpy.frombuffer(data, kind).reshape(shape)
    if form == SCALAR:
        return array.copy()[()]
    if copies:
        array = array.copy()
    return numpy.asmatrix(array) if form == MATRIX else array


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
