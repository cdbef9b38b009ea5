"""The converted copy of a quantised model: a safetensors file under the user's cache folder. Imports no torch.

The loader asks for it; the first time it is written (about a second for a small model), afterwards it is mapped.
Writers may run at the same time, die at any moment and run out of space: what stands under the final name is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .cache import cache_folder
from .checkpoint import Checkpoint
from .errors import ModelFileError, WeightCacheError
from .host_tensor import HostTensor, convert
from .safetensors_file import SafetensorsFile, lay_out
from .weight_table import Weight, weight_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Part of every name: raise it when the content of converted files changes.
_FORMAT = 1
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def cached_weights(checkpoint: Checkpoint, dtype: str) -> SafetensorsFile:
    """The model's weights as "F32" or "BF16" under the names of its weight table, converted now if need be.

    A damaged copy is noticed and replaced. `WeightCacheError` if the folder cannot be written or is full;
    `ModelFileError` if the checkpoint itself is at fault.
    """
    path = cached_path(checkpoint, dtype)
    found = _open_if_sound(path, checkpoint, dtype)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        return _write(path, checkpoint, dtype)
    except OSError as error:
        raise WeightCacheError(
            f"the converted weights of {checkpoint.path} cannot be kept in {path.parent}: {error}; "
            "free some space there or point RINGCAST_CACHE to another folder"
        ) from error


def cached_path(checkpoint: Checkpoint, dtype: str) -> Path:
    """Where the converted copy of this very file stands or would stand."""
    if checkpoint.gguf is None:
        raise ValueError(f"{checkpoint.path} is not quantised: there is nothing to convert")
    key = hashlib.sha256(f"{_FORMAT} {checkpoint.gguf.fingerprint()}".encode()).hexdigest()[:16]
    return cache_folder() / "weights" / f"{checkpoint.path.stem}-{dtype.lower()}-{key}.safetensors"


def stacked(checkpoint: Checkpoint, weight: Weight, dtype: str) -> NDArray[Any]:
    """One weight of the table: its parts read, checked against the config, converted and stacked."""
    import numpy as np

    parts = [_read_checked(checkpoint, part.name, part.shape) for part in weight.parts]
    if len(parts) == 1:
        return convert(parts[0], dtype)
    return np.concatenate([convert(part, dtype) for part in parts])


def _read_checked(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> HostTensor:
    tensor = checkpoint.read(name)
    if tensor.array.shape != shape:
        raise ModelFileError(
            f"{checkpoint.path}: tensor {name} has the shape {list(tensor.array.shape)}, but the model's config "
            f"promises {list(shape)}; get the model again"
        )
    return tensor


def _open_if_sound(path: Path, checkpoint: Checkpoint, dtype: str) -> SafetensorsFile | None:
    if not path.exists():
        return None
    try:
        file = SafetensorsFile(path)
    except ModelFileError as error:
        logger.warning("converting the weights again: %s", error)
        return None
    head, _ = _lay_out(checkpoint, dtype, file.metadata.get("check", ""))
    if file.data[: len(head)] == head and file.metadata["check"] == _check(file.data, len(head)):
        return file
    logger.warning("converting the weights again: the cached copy %s is damaged", path)
    return None


def _write(path: Path, checkpoint: Checkpoint, dtype: str) -> SafetensorsFile:
    """Write beside ``path`` under a lock, then rename: other processes see nothing or the whole."""
    with _temporary_file(path) as file:
        temporary = Path(file.name)
        try:
            head, offsets = _lay_out(checkpoint, dtype, "0" * 64)
            for weight in weight_table(checkpoint.config):
                file.seek(offsets[weight.name])
                file.write(stacked(checkpoint, weight, dtype).data)
            file.flush()
            # The head comes last: it carries the check of the data. Its length does not depend on that.
            head, _ = _lay_out(checkpoint, dtype, _check_file(file, len(head)))
            file.seek(0)
            file.write(head)
            file.flush()
            os.fsync(file.fileno())
            # Opened before it gets its name: from then on another process may remove it.
            written = SafetensorsFile(temporary)
            temporary.rename(path)
            written.path = path
            return written
        except BaseException:
            with suppress(FileNotFoundError):
                temporary.unlink()
            raise


def _temporary_file(path: Path) -> IO[bytes]:
    """A locked file beside ``path``. The lock says that its writer lives; it ends with the process."""
    while True:
        file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=".writing-", delete=False)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process took it for abandoned before it was locked


def _remove_abandoned(folder: Path) -> None:
    """Remove what writers left behind that died: their locks are gone."""
    for leftover in folder.glob(".writing-*"):
        with suppress(OSError), open(leftover, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def _lay_out(checkpoint: Checkpoint, dtype: str, check: str) -> tuple[bytes, dict[str, int]]:
    tensors = [(weight.name, dtype, weight.shape) for weight in weight_table(checkpoint.config)]
    return lay_out(tensors, {"format": f"ringcast {_FORMAT}", "check": check})


def _check_file(file: IO[bytes], start: int) -> str:
    import mmap

    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _check(data, start)


def _check(data: Any, start: int) -> str:
    """Digest of 64 pages spread over the weights: finds lost or zeroed data at the cost of a few milliseconds."""
    size = len(data) - start
    digest = hashlib.sha256(str(size).encode())
    for index in range(_SAMPLES):
        offset = start + index * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1)
        digest.update(data[offset : offset + _SAMPLE_BYTES])
    return digest.hexdigest()
