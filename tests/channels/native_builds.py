"""Test builds of the native core: the stress program under sanitizers, and the module with crash points.

`python native_builds.py SECONDS` is `make sanitize`: builds and runs each variant for that long.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "channels" / "native"


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


def build_module(folder: Path) -> Path:
    """The module _native with crash points (crash_points.h), for processes that shall die."""
    module = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources: Iterable[Path] = (path for path in NATIVE.glob("*.c") if path.name != "stress.c")
    define = f'-DRINGCAST_CRASH_POINTS="{HERE / "crash_points.h"}"'
    command = [compiler(), "-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread", define]
    command += ["-I", sysconfig.get_paths()["include"], *map(str, sources), "-o", str(module), "-lm"]
    _compile(command)
    return module


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
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
