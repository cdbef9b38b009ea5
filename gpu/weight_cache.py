"""The packed copy of a model's weights: a safetensors file under the user's cache folder. Imports no torch.

The loader asks for it; the first time it is written (about a second for a small model), afterwards it is mapped.
Writers may run at the same time, die at any moment and run out of space: what stands under the final name is whole.
A new copy takes the place of older ones of the same source.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from .cache import cache_folder
from .checkpoint import Checkpoint
from .errors import ModelFileError, WeightCacheError
from .fingerprint import sampled
from .packing import Packing
from .safetensors_file import SafetensorsFile, lay_out
from .weight_packing import packed_bytes, packing_of
from .weight_table import Weight, weight_table

logger = logging.getLogger(__name__)

# Part of every name: raise it when the content of packed files changes.
_FORMAT = 2
Plan = Mapping[Weight, Packing | None]


def plan_of(checkpoint: Checkpoint, dtype: str, keep_blocks: bool) -> Plan:
    """How each weight of the table is packed, in the order of the file: matrices first, so that they are aligned."""
    plan = {weight: packing_of(checkpoint, weight, dtype, keep_blocks) for weight in weight_table(checkpoint.config)}
    return dict(sorted(plan.items(), key=lambda item: item[1] is None))


def cached_weights(checkpoint: Checkpoint, plan: Plan) -> SafetensorsFile:
    """The model's weights under the names of its table, packed now if need be: matrices as "U8", vectors as "F32".

    A damaged copy is noticed and replaced. `WeightCacheError` if the folder cannot be written or is full;
    `ModelFileError` if the checkpoint itself is at fault.
    """
    path = cached_path(checkpoint, plan)
    found = _open_if_sound(path, plan)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        written = _write(path, checkpoint, plan)
        _remove_older(path)
        return written
    except OSError as error:
        raise WeightCacheError(
            f"the packed weights of {checkpoint.path} cannot be kept in {path.parent}: {error}; "
            "free some space there or point RINGCAST_CACHE to another folder"
        ) from error


def cached_path(checkpoint: Checkpoint, plan: Plan) -> Path:
    """Where the packed copy of this very checkpoint stands or would stand: NAME-FORMATS-SOURCE-CONTENT.safetensors."""
    place = checkpoint.path.resolve()
    # A snapshot of the hub's cache: its revisions are one source.
    source = place.parent.parent if place.parent.name == "snapshots" else place
    formats = "-".join(sorted({packing.format.lower() for packing in plan.values() if packing is not None}))
    key = f"{_FORMAT} {checkpoint.fingerprint()} {sorted((weight.name, str(how)) for weight, how in plan.items())}"
    name = f"{source.stem}-{formats}-{_digest(str(source))[:8]}-{_digest(key)[:16]}.safetensors"
    return cache_folder() / "weights" / name


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _open_if_sound(path: Path, plan: Plan) -> SafetensorsFile | None:
    if not path.exists():
        return None
    try:
        file = SafetensorsFile(path)
    except ModelFileError as error:
        logger.warning("packing the weights again: %s", error)
        return None
    head, _ = _lay_out(plan, file.metadata.get("check", ""))
    if file.data[: len(head)] == head and file.metadata["check"] == sampled(file.data, len(head)):
        return file
    logger.warning("packing the weights again: the cached copy %s is damaged", path)
    return None


def _write(path: Path, checkpoint: Checkpoint, plan: Plan) -> SafetensorsFile:
    """Write beside ``path`` under a lock, then rename: other processes see nothing or the whole."""
    with _temporary_file(path) as file:
        temporary = Path(file.name)
        try:
            head, offsets = _lay_out(plan, "0" * 64)
            for weight, packing in plan.items():
                file.seek(offsets[weight.name])
                for piece in packed_bytes(checkpoint, weight, packing):
                    file.write(piece.data)
            file.flush()
            # The head comes last: it carries the check of the data. Its length does not depend on that.
            head, _ = _lay_out(plan, _check_file(file, len(head)))
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


def _remove_older(path: Path) -> None:
    """Remove the copies of the same source and formats that an earlier content left; who maps one keeps it."""
    kept, _, _ = path.name.rpartition("-")
    for older in path.parent.glob(f"{glob.escape(kept)}-*.safetensors"):
        if older != path:
            with suppress(FileNotFoundError):
                older.unlink()
                logger.info("removed the older copy %s", older)


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


def _lay_out(plan: Plan, check: str) -> tuple[bytes, dict[str, int]]:
    tensors = [
        (weight.name, "F32", weight.shape) if packing is None else (weight.name, "U8", (packing.size_bytes,))
        for weight, packing in plan.items()
    ]
    return lay_out(tensors, {"format": f"ringcast {_FORMAT}", "check": check})


def _check_file(file: IO[bytes], start: int) -> str:
    import mmap

    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return sampled(data, start)
