"""Types survive the way through references, messages, streams and groups: `mypy --strict` with no plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TYPED = ROOT / "tests" / "typed"


def mypy(*files: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", *map(str, files)]
    env = {**os.environ, "MYPYPATH": str(TYPED)}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert not result.stderr, result.stderr
    return result.stdout


def marked_lines(path: Path, marker: str) -> dict[int, str]:
    """The remarks behind the marker, by line number."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if marker in line:
            found[number] = line.rpartition("  # ")[2]
    return found


def test_results_are_inferred() -> None:
    output = mypy(TYPED / "accepted.py")
    assert "error" not in output, output
    revealed = {
        int(number): re.sub(r"\b(?:builtins|accepted|\w+(?:\.\w+)*)\.(\w+)", r"\1", kind)
        for number, kind in re.findall(r'accepted\.py:(\d+): note: Revealed type is "(.*)"', output)
    }
    assert revealed == marked_lines(TYPED / "accepted.py", "reveal_type(")


def test_mistakes_are_rejected() -> None:
    output = mypy(TYPED / "rejected.py")
    errors = {int(number) for number in re.findall(r"rejected\.py:(\d+): error", output)}
    assert errors == set(marked_lines(TYPED / "rejected.py", "# error")), output


def test_the_examples_are_typed() -> None:
    output = mypy(*sorted((ROOT / "examples").glob("*.py")))
    assert "error" not in output, output


def test_types_are_visible_in_an_editable_install(tmp_path: Path) -> None:
    """A type checker that knows only the environment, not this checkout's settings, finds the types."""
    program = tmp_path / "program.py"
    program.write_text(
        "import ringcast.actors as rt\n"
        "class Counter(rt.Actor):\n"
        "    @rt.call\n"
        "    async def add(self, k: int) -> int:\n"
        "        return k\n"
        "async def use(system: rt.System) -> None:\n"
        "    reveal_type(await (await system.spawn(rt.spec(Counter))).add(1))\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)]
    env = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert re.search(r'Revealed type is "(builtins\.)?int"', result.stdout), result.stdout
