"""Test builds of the native code: the stress program and the modules under sanitizers, the module with crash points.

`python native_builds.py SECONDS` is `make sanitize`: builds and runs each variant for that long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import native_finder

HERE = Path(__file__).parent
ROOT = HERE.parent
NATIVE = ROOT / "channels" / "native"


@dataclass(frozen=True, slots=True)
class Variant:
    """A build of stress.c and how to run it."""

    name: str
    flags: tuple[str, ...]
    spill: bool


# The thread sanitizer does not see fences; that makes it stricter, since no data is handed on by a fence alone.
_THREAD = ("-fsanitize=thread", "-Wno-tsan", "-fno-builtin")  # a memcpy that is expanded in place would not be seen
_ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
VARIANTS = (
    Variant("address and undefined behaviour", _ADDRESS, spill=False),
    Variant("address and undefined behaviour, spill", _ADDRESS, spill=True),
    Variant("threads", (*_THREAD, "-DRING_PLAIN_COPY"), spill=False),
    Variant("threads, spill", _THREAD, spill=True),
)


def compiler() -> str:
    """The C compiler; an error if there is none: a check that cannot run has not passed."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        raise RuntimeError("no C compiler was found: install gcc to run the sanitizers")
    return found


def build_stress(variant: Variant, folder: Path, native: Path = NATIVE) -> Path:
    """Compile stress.c of ``native``. An error with the compiler's words, as when a sanitizer's runtime is missing."""
    program = folder / f"stress-{VARIANTS.index(variant)}"
    command = [compiler(), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-pthread", *variant.flags]
    _compile([*command, str(native / "stress.c"), "-o", str(program)])
    return program


def run_stress(program: Path, variant: Variant, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run it; the thread sanitizer needs a layout of memory that some kernels' randomisation does not give."""
    command = ["setarch", "-R", str(program), str(seconds), str(int(variant.spill))]
    return subprocess.run(command, capture_output=True, text=True, timeout=120 + 10 * seconds, check=False)


def mutate(folder: Path, edits: Iterable[tuple[str, str, str]]) -> Path:
    """A copy of the native sources with some lines changed: (file, old, new)."""
    copy = folder / "native"
    shutil.copytree(NATIVE, copy)
    for file, old, new in edits:
        text = (copy / file).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file} has {text.count(old)} places like {old!r}")
        (copy / file).write_text(text.replace(old, new))
    return copy


def build_with_crash_points(folder: Path) -> Path:
    """The channels' module _native with crash points (crash_points.h), for processes that shall die; in ``folder``."""
    define = f'-DRINGCAST_CRASH_POINTS="{HERE / "channels" / "crash_points.h"}"'
    _build_module(NATIVE, folder / "channels", ("-O2", define))
    return folder


def build_sanitized(folder: Path, actors: Path = ROOT / "actors" / "native") -> None:
    """Both modules of the runtime under the address and undefined behaviour sanitizers, for `run_sanitized`."""
    for native, layer in ((NATIVE, "channels"), (actors, "actors")):
        _build_module(native, folder / layer, ("-O1", "-g", "-fno-omit-frame-pointer", *_ADDRESS))


def _build_module(native: Path, folder: Path, flags: Iterable[str]) -> None:
    """As native_finder looks for it."""
    folder.mkdir()
    module = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [str(path) for path in native.glob("*.c") if path.name != "stress.c"]
    command = [compiler(), "-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", *flags]
    _compile([*command, "-I", sysconfig.get_paths()["include"], *sources, "-o", str(module), "-lm"])


def run_sanitized(folder: Path, seed: int, seconds: float) -> subprocess.CompletedProcess[str]:
    """tests/actors/sanitized_runtime.py with the modules in ``folder``; leaks are not looked for: CPython has some."""
    runtimes = [_printed(compiler(), f"-print-file-name={name}.so") for name in ("libasan", "libubsan")]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",  # else the sanitizer sees CPython's arenas and not its objects
        native_finder.VARIABLE: str(folder),
    }
    program = str(HERE / "actors" / "sanitized_runtime.py")
    command = ["setarch", "-R", sys.executable, program, str(seed), str(seconds)]  # see run_stress
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120 + 10 * seconds, check=False
    )


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")


def main() -> int:
    seconds, bad = float(sys.argv[1]), 0
    with tempfile.TemporaryDirectory(prefix="ringcast-sanitize-") as folder:
        for variant in VARIANTS:
            done = run_stress(build_stress(variant, Path(folder)), variant, seconds)
            bad += done.returncode != 0
            print(f"{variant.name}: {done.stdout.strip() or f'exit status {done.returncode}'}", flush=True)
            print(done.stderr, file=sys.stderr, end="")
        build_sanitized(Path(folder))
        done = run_sanitized(Path(folder), seed=1, seconds=seconds)
        bad += done.returncode != 0
        print(f"the runtime's modules: {done.stdout.strip() or f'exit status {done.returncode}'}", flush=True)
        print(done.stderr, file=sys.stderr, end="")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
