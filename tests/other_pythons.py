"""Build ringcast for every Python that this machine has, and run tests/channels and tests/actors on each.

`make pythons`, or `python tests/other_pythons.py /path/to/python ...` for certain interpreters. Finds python3.11 to
python3.14 and the free-threaded builds on PATH and among pyenv's versions. Prints a line for each; the exit code is 1
if one failed. A free-threaded build runs with the lock that the import switches on, and must refuse to go without it.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")
TEST_PACKAGES = (
    *("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis"),
    *("numpy", "psutil", "prometheus-client", "typer", "rich"),
)


def find(version: str) -> str | None:
    """An interpreter of that version, if the machine has one."""
    on_path = shutil.which(f"python{version}")
    if on_path and "/shims/" not in on_path:  # pyenv's shims exist for versions that are not switched on
        return on_path
    installed = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version.rstrip('t')}*/bin/python")))
    return next((path for path in installed if ("t/bin" in path) == version.endswith("t")), None)


def describe(python: str) -> tuple[str, bool]:
    """(version, whether it is a free-threaded build)."""
    code = "import platform, sysconfig; print(platform.python_version(), sysconfig.get_config_var('Py_GIL_DISABLED'))"
    version, disabled = subprocess.check_output([python, "-c", code], text=True).split()
    return version, disabled == "1"


def check(python: str) -> str:
    """Build and test; what came of it, in a word or the last line of what failed."""
    version, is_free_threaded = describe(python)
    folder = ROOT / f".venv-{version}{'t' if is_free_threaded else ''}"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    own = str(folder / "bin" / "python")
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT), *TEST_PACKAGES]
    tests = [own, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-c", str(ROOT / "pyproject.toml")]
    tests += ["--rootdir", str(ROOT), "-p", "no:cacheprovider", str(ROOT / "tests" / "channels")]
    tests += [str(ROOT / "tests" / "actors")]
    for command in (install, tests):
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            print(ended.stdout[-20_000:] + ended.stderr[-5_000:])
            return f"FAILED {' '.join(command[1:4])}"
    if is_free_threaded:
        code = [own, "-X", "gil=0", "-c", "import ringcast.channels"]
        refused = subprocess.run(code, cwd=folder, capture_output=True, text=True, check=False)
        if "needs the global interpreter lock" not in refused.stderr:
            return f"FAILED it does not refuse -X gil=0: {refused.stderr[-200:]}"
    return ended.stdout.strip().splitlines()[-1]


def main(given: list[str]) -> int:
    pythons = given or [path for version in VERSIONS if (path := find(version)) is not None]
    outcomes = []
    for python in pythons:
        version, is_free_threaded = describe(python)
        outcomes.append(f"{version}{' free-threaded' if is_free_threaded else ''}: {check(python)}")
        print(outcomes[-1], flush=True)
    return 1 if not outcomes or any("FAILED" in outcome for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
