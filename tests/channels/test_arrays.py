"""Promises of arrays in messages: dtype, shape and values survive; large ones are not copied; no bytes do harm."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import subprocess
import sys
from dataclasses import dataclass

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.channels import Codec, DecodeError, EncodeError, message

LARGE = 5000  # bytes: over the 4 KiB that stay within a message
DTYPES = ["<f4", "<f8", ">i4", "<u2", "|i1", "|b1", "<c8", "<f2", "<U3", "|S4", "<M8[ns]"]


@message(120)
@dataclass
class Batch:
    name: str
    data: object


def through(value, copy=True, parts=True):
    codec = Codec()
    data = b"".join(codec.encode_parts(value)) if parts else codec.encode(value)
    return codec.decode(data, copy=copy)


def same(one, other):
    assert type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (7,), (40, 50), (2, 3, 400)])
def test_every_dtype_and_shape_survives_both_ways(dtype, shape):
    raw = np.frombuffer(os.urandom(math.prod(shape) * np.dtype(dtype).itemsize) or b"", "|u1")
    array = (raw % 2 if dtype == "|b1" else raw if "U" not in dtype else raw * 0 + 0).view(dtype).reshape(shape)
    for parts in (False, True):
        for copy in (False, True):
            same(through(array, copy, parts), array)


def test_views_that_are_not_contiguous_travel_as_what_they_show():
    base = np.arange(10_000).reshape(100, 100)
    for array in (
        base[::2, ::3],
        base.T,
        base[5],
        base[:, 5],
        np.broadcast_to(np.arange(5), (1000, 5)),
        np.asfortranarray(base),
    ):
        same(through(array), np.ascontiguousarray(array))


def test_numpy_scalars_stay_scalars_of_their_type():
    for value in (np.float32(1.5), np.int64(-3), np.bool_(True), np.datetime64("2024-01-02")):
        got = through(value)
        assert type(got) is type(value) and got == value


def test_large_buffers_lie_behind_the_message_aligned_and_uncopied():
    array, text, small = np.arange(LARGE, dtype="<f4"), b"t" * LARGE, b"s" * 4096
    parts = Codec().encode_parts(Batch("b", [array, text, small, array[:1025]]))
    assert len(parts) == 6  # head, array, pad, text, pad, array
    assert np.shares_memory(np.frombuffer(parts[1], "<f4"), array)
    assert memoryview(parts[3]).obj is text
    offset = 0
    for part in parts:
        if memoryview(part).nbytes > 4000:
            assert offset % 64 == 0
        offset += memoryview(part).nbytes
    decoded = Codec().decode(b"".join(parts))
    assert (decoded.name, decoded.data[1:3]) == ("b", [text, small])
    same(decoded.data[0], array)
    same(decoded.data[3], array[:1025])


def test_message_without_large_buffers_is_one_ordinary_part():
    assert Codec().encode_parts(["x", b"y" * 4096]) == [msgpack.packb(["x", b"y" * 4096])]


def test_copies_are_the_receivers_own_and_views_are_read_only_and_keep_the_bytes_alive():
    array = np.arange(LARGE)
    own = through(array)
    assert own.flags.writeable and own.flags.owndata
    data = b"".join(Codec().encode_parts([array, b"z" * LARGE]))
    view, buffer = Codec().decode(data, copy=False)
    assert np.shares_memory(view, np.frombuffer(data, "|u1")) and not view.flags.writeable
    assert isinstance(buffer, memoryview) and buffer.readonly and buffer == b"z" * LARGE
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    del data
    gc.collect()
    assert view[-1] == LARGE - 1


def test_ring_carries_the_parts_and_a_view_of_the_ring_gives_arrays_without_a_copy(lane):
    x = lane(capacity=1 << 20)
    codec = Codec()
    array = np.arange(8000, dtype="<i8")
    assert x.outbox.try_send(codec.encode_parts(Batch("inline", array)), 1)
    with x.inboxes[0].view() as record:
        batch = codec.decode(record.payload, copy=False)
        assert batch.data.sum() == array.sum()
        assert batch.data.ctypes.data % 32 == 0
        with pytest.raises(BufferError, match="in use"):
            record.release()
        del batch
    assert x.outbox.ring.lag(0) == 0


@pytest.mark.parametrize("count", [20_000, 1_000_000])
def test_oversized_arrays_come_over_the_link_and_out_of_shared_memory(lane, count):
    x = lane(capacity=4096)
    codec = Codec()
    array = np.arange(count, dtype="<f4")
    assert x.outbox.try_send(codec.encode_parts(array), 1)
    x.carry(0)
    ((_, payload),) = x.inboxes[0].poll()
    view = codec.decode(payload, copy=False)
    del payload
    same(view, array)
    assert not view.flags.owndata


@pytest.mark.parametrize(
    "value",
    [np.array([object()]), np.zeros(3, [("a", "i4")]), np.zeros((2, 2), "V0")],
    ids=["objects", "fields", "void"],
)
def test_arrays_that_are_not_plain_numbers_are_refused(value):
    with pytest.raises(EncodeError, match="plain numbers"):
        Codec().encode([value])


def array_message(*packed):
    return msgpack.packb(msgpack.ExtType(0, msgpack.packb(list(packed))))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (array_message(), "neither an array nor a buffer"),
        (array_message(0, 0), "buffer 0 is not among the 0"),
        (array_message(1, "<f4", [2], 5), "buffer 5"),
        (array_message(1, "<f4", [2], b"short"), "in 5 bytes"),
        (array_message(1, "<f4", [-1], b"1234"), r"shape \[-1\]"),
        (array_message(1, "<f4", [True], b"1234"), r"shape \[True\]"),
        (array_message(1, "<f4", [2**62, 4], b""), "in 0 bytes"),
        (array_message(1, "|O", [1], b"12345678"), "dtype"),
        (array_message(1, "nonsense", [1], b"1"), "nonsense"),
        (array_message(1, "i4,i4", [1], b"12345678"), "dtype"),
        (array_message(1, "<f4", [1] * 65, b"1234"), "shape"),
        (array_message(4, "<f4", [1], b"1234"), "neither"),
        (array_message(1, 5, [1], b"1234"), "neither"),
        (b"\xc1\x01", "table is cut off"),
        (b"\xc1\x01\x01\x00\x01\x00\x00\x00", "in all"),
        (b"\xc1\x02\x00\x00\x01\x00\x00\x00\xc0", "format 2"),
        (b"\xc1\x01\x00\x00\x01\x00\x00\x00\xc0x", "9 bytes in all"),
        (b"\xc1\x01\x01\x00\x01\x00\x00\x00" + (2**63).to_bytes(8, "little") + b"\xc0", "in all"),
    ],
)
def test_undecodable_arrays_are_a_decode_error(data, named):
    with pytest.raises(DecodeError, match=named):
        Codec().decode(data)


GOOD = b"".join(Codec().encode_parts([np.arange(1000), b"x" * LARGE, np.float32(1), Batch("b", np.zeros(3))]))


@given(
    st.lists(st.tuples(st.integers(0, 200) | st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4),
    st.booleans(),
)
def test_changed_bytes_do_no_worse_than_decode_error(changes, copy):
    data = bytearray(GOOD)
    for position, byte in changes:
        data[position] = byte
    with contextlib.suppress(DecodeError):
        Codec().decode(bytes(data), copy=copy)


@given(st.integers(0, len(GOOD)), st.binary(max_size=20))
def test_cut_and_prolonged_bytes_do_no_worse_than_decode_error(cut, tail):
    with contextlib.suppress(DecodeError):
        Codec().decode(GOOD[:cut] + tail)


SCRIPT = """
import sys
from ringcast.channels import Codec, DecodeError, EncodeError
codec = Codec()
assert codec.decode(codec.encode_parts([1])[0]) == [1]
assert not {"numpy", "torch"} & set(sys.modules)
import torch
for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64, torch.float16):
    for shape in ((), (0, 3), (5,), (60, 70)):
        tensor = (torch.rand(shape) * 3).to(dtype)
        for copy in (False, True):
            for data in (codec.encode(tensor), b"".join(codec.encode_parts(tensor))):
                got = codec.decode(data, copy=copy)
                assert got.dtype == dtype and got.shape == tensor.shape and torch.equal(got, tensor), (dtype, shape)
big = torch.arange(5000.0, requires_grad=True)
parts = codec.encode_parts({"t": big, "v": big.detach().reshape(50, 100).T})
assert memoryview(parts[1]).nbytes == 20000
data = b"".join(parts)
got = codec.decode(data, copy=False)
assert torch.equal(got["v"], big.detach().reshape(50, 100).T)
assert torch.equal(codec.decode(data)["t"], big) and codec.decode(data)["t"].requires_grad
own = codec.decode(data)["t"]
own.detach()[0] = 7.0
for wrong, words in ((torch.zeros(3).to_sparse(), "on the CPU"), (torch.empty(3, device="meta"), "on the CPU"),
                     (big * 2, "detach")):
    try:
        codec.encode(wrong)
    except EncodeError as error:
        assert words in str(error)
    else:
        raise AssertionError
for dtype in ("Tensor", "nothing", "float32"):
    try:
        import msgpack
        codec.decode(msgpack.packb(msgpack.ExtType(0, msgpack.packb([3, dtype, [3], b"12345678"]))))
    except DecodeError:
        pass
    else:
        raise AssertionError
print("fine")
"""


def test_tensors_survive_and_plain_messages_import_neither_library():
    pytest.importorskip("torch")
    result = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, timeout=100)
    assert result.stdout == "fine\n", result.stderr
