"""From a model's name to files on this machine: a built-in name, a GGUF file, a folder, or a hub id.

Called before an engine starts. Decides by the name alone what kind it is (`classify`), then finds the
files, and downloads them where that is possible. Opens no weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .builtin_models import BUILTIN_MODELS, Progress, find_builtin, pull_builtin
from .errors import ModelNotFound, ModelUnusable

NameKind = Literal["builtin", "path", "hub"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
_HUB_NOT = ["consolidated*", "original/*", "onnx/*"]  # the same weights again, in other formats
_REMEDY = (
    f"use a built-in name ({', '.join(BUILTIN_MODELS)}), the path of a .gguf file, the path of a folder in "
    "Hugging Face format, or a hub id such as org/name"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's files. ``name`` is what the user wrote, ``path`` a .gguf file or a folder in HF format."""

    name: str
    path: Path
    format: Literal["gguf", "hf"]


def classify(name: str) -> NameKind:
    """What ``name`` is: built-in names first, then what exists or looks like a path, then ``org/name``.

    A path starts with ``/``, ``./``, ``../`` or ``~``, ends in ``.gguf``, or exists. `ModelNotFound`
    otherwise.
    """
    if not isinstance(name, str):
        raise ModelNotFound(f"model is a {type(name).__name__}, not a string: {_REMEDY}")
    if name in BUILTIN_MODELS:
        return "builtin"
    if name.startswith(("/", "./", "../", "~")) or name in (".", "..") or name.lower().endswith(".gguf"):
        return "path"
    if name and Path(name).exists():
        return "path"
    if _HUB_ID.fullmatch(name):
        return "hub"
    raise ModelNotFound(f"unknown model {name!r}: {_REMEDY}")


def resolve_model(name: str, progress: Progress | None = None) -> ModelSource:
    """The files of ``name``, downloaded if need be. Raises `ModelNotFound` or `ModelUnusable` in one line."""
    kind = classify(name)
    if kind == "builtin":
        model = BUILTIN_MODELS[name]
        return ModelSource(name, find_builtin(model) or pull_builtin(model, progress), "gguf")
    if kind == "hub":
        return ModelSource(name, _from_hub(name), "hf")
    return _from_path(name)


def _from_path(name: str) -> ModelSource:
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise ModelNotFound(f"no model at {name!r}: {error}; give a path without ~") from error
    if not path.exists():
        raise ModelNotFound(f"no model at {name!r}: there is no such file or folder; {_REMEDY}")
    from ringcast.gpu.gguf_shards import is_later_shard

    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ModelUnusable(f"{name!r} is not a GGUF file (it starts with {magic!r}): {_REMEDY}")
        return ModelSource(name, path.resolve(), "gguf")
    _refuse_adapter(path)
    if (path / "config.json").is_file():
        return ModelSource(name, path.resolve(), "hf")
    files = sorted(item.name for item in path.glob("*.gguf") if not is_later_shard(item))
    hint = f"name one of its files: {', '.join(files)}" if files else _REMEDY
    raise ModelNotFound(f"the folder {name!r} has no config.json: {hint}")


def _refuse_adapter(folder: Path) -> None:
    from ringcast.gpu.adapters import refuse_adapter
    from ringcast.gpu.errors import UnsupportedModelError

    try:
        refuse_adapter(folder)
    except UnsupportedModelError as error:
        raise ModelUnusable(str(error)) from error


def _from_hub(name: str) -> Path:
    """A snapshot in the hub's own cache; offline mode and an unreachable hub use what is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_NOT))
    except GatedRepoError as error:
        raise ModelNotFound(
            f"the hub model {name!r} is gated: accept its terms there and log in with `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(f"the hub has no model {name!r} that you may see: {_REMEDY}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelNotFound(
            f"the hub model {name!r} is not in the hub's cache and could not be downloaded "
            f"({_first_line(error)}): check the network and HF_HUB_OFFLINE, or give a local path"
        ) from error
    _refuse_adapter(folder)
    if not (folder / "config.json").is_file():
        raise ModelUnusable(f"the hub model {name!r} has no config.json: it is not in Hugging Face format")
    return folder


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
