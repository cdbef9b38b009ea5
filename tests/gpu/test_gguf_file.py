"""GGUF files are read as the gguf package reads them; damaged ones end in ModelFileError, whatever the damage."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import random_llama, save_gguf

from ringcast.gpu import Checkpoint, GGUFFile, GpuError, ModelFileError, UnsupportedModelError
from ringcast.gpu.weight_cache import plan_of
from ringcast.gpu.weight_packing import packed_bytes


def write_small(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_float64("a.double", 0.25)
    writer.add_int8("a.negative", -3)
    writer.add_bool("a.flag", True)
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_array("a.words", ["", "Grüße", "你好"])
    writer.add_tensor("first", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("second", np.arange(8, dtype=np.float16))
    quantised = gguf.quants.quantize(
        np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("third", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    save_gguf(random_llama(tie=True), path)
    return path.read_bytes()


def read_everything(path: Path) -> None:
    file = GGUFFile(path)
    for key in file.metadata:
        file.metadata[key]
    for name in file.tensors:
        file.read(name)


def test_metadata_of_every_kind_are_read(small: Path) -> None:
    metadata = GGUFFile(small).metadata
    assert dict(metadata) == {
        "general.architecture": "llama", "a.count": 7, "a.double": 0.25, "a.negative": -3, "a.flag": True,
        "a.numbers": [1, -2, 3], "a.flags": [True, False], "a.words": ["", "Grüße", "你好"],
    }  # fmt: skip
    assert metadata.get("missing") is None


def test_tensors_come_as_float32_in_numpys_order(small: Path) -> None:
    file = GGUFFile(small)
    np.testing.assert_array_equal(file.read("first"), np.arange(12, dtype=np.float32).reshape(3, 4))
    np.testing.assert_array_equal(file.read("second"), np.arange(8, dtype=np.float32))
    np.testing.assert_allclose(file.read("third"), np.linspace(-1, 1, 64).reshape(2, 32), atol=1 / 127)
    with pytest.raises(KeyError):
        file.read("fourth")


def test_the_real_model_is_read_like_the_reference_reader_reads_it(gguf_path: Path) -> None:
    ours, theirs = GGUFFile(gguf_path), gguf.GGUFReader(gguf_path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for key in (
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
        "tokenizer.chat_template",
        "llama.rope.freq_base",
    ):
        assert ours.metadata[key] == theirs.fields[key].contents()
    for tensor in theirs.tensors[:12]:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours.read(tensor.name), expected)


def test_opening_does_not_decode_the_vocabulary(gguf_path: Path) -> None:
    started = time.process_time()
    GGUFFile(gguf_path)
    assert time.process_time() - started < 0.2  # 0.007 s measured; the reference reader takes 1.9 s


def test_every_truncation_is_an_error_that_names_the_file(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    path = tmp_path / "cut.gguf"
    # The last tensor is padded to the alignment: only its own bytes are needed.
    for size in range(0, len(data) - 32, 3):
        path.write_bytes(data[:size])
        with pytest.raises(ModelFileError, match=r"cut\.gguf: not a usable GGUF file: .*download the file again"):
            read_everything(path)


def test_truncations_of_the_real_file(gguf_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with open(gguf_path, "rb") as file:
        head = file.read(2_500_000)
    for size in (24, 1000, 50_000, 400_000, 900_000, 1_500_000, 2_500_000):
        path.write_bytes(head[:size])
        with pytest.raises(ModelFileError, match="truncated"):
            GGUFFile(path)


@settings(max_examples=400, deadline=2000)
@given(st.data())
def test_flipped_bytes_never_crash_or_hang(small: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = small.with_name("flipped.gguf")
    path.write_bytes(content)
    try:
        read_everything(path)
    except GpuError as error:
        assert "flipped.gguf" in str(error)


@settings(max_examples=150, deadline=2000)
@given(st.data())
def test_flipped_bytes_of_a_model_never_crash_or_hang(
    model_bytes: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped_model.gguf"
    content = bytearray(model_bytes)
    header = model_bytes.index(b"token_embd.weight") + 2000
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        checkpoint = Checkpoint.open(path)
        for weight, packing in plan_of(checkpoint, "F32", keep_blocks=True).items():
            assert all(len(piece) for piece in packed_bytes(checkpoint, weight, packing))
    except GpuError as error:
        assert "flipped_model.gguf" in str(error)


@settings(max_examples=200, deadline=2000)
@given(st.binary(max_size=400))
def test_random_bytes_behind_a_valid_start_never_crash(small: Path, tail: bytes) -> None:
    path = small.with_name("random.gguf")
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 3) + tail)
    with pytest.raises(ModelFileError):
        read_everything(path)


def test_other_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for content, reason in (
        (b"", "too short"),
        (b"PK\x03\x04" + bytes(100), "begins with"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), "truncated"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=reason):
            GGUFFile(path)
    with pytest.raises(ModelFileError, match="no such file"):
        GGUFFile(tmp_path / "missing.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        GGUFFile(tmp_path)


def test_an_unknown_tensor_type_is_refused_by_name(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    # In the tensor table: name, two dimensions, then the type of "third".
    place = content.index(b"third") + len(b"third") + 4 + 16
    assert struct.unpack_from("<I", content, place) == (8,)
    path = tmp_path / "other.gguf"
    path.write_bytes(content[:place] + struct.pack("<I", 16) + content[place + 4 :])
    file = GGUFFile(path)
    assert file.read("first").shape == (3, 4)
    with pytest.raises(UnsupportedModelError, match=r"tensor third has type IQ2_XXS.*readable: .*Q4_K"):
        file.read("third")


def test_the_fingerprint_tells_files_apart(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.gguf")
    first = GGUFFile(path).fingerprint()
    assert GGUFFile(path).fingerprint() == first
    content = bytearray(path.read_bytes())
    content[-60] ^= 1
    path.write_bytes(content)
    assert GGUFFile(path).fingerprint() != first
