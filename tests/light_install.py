"""What the bare install (`pip install ringcast`) must run. `make light` calls this in an environment without extras.

README's actor example, the blocks of the pages about the runtime, the examples that need no other package, and
`ringcast top`. Prints a line for each; the exit code is 1 if one failed.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from run_page import runnable_pages

ROOT = Path(__file__).parent.parent
# The packages of extras: were one of them here, this would not be the bare install.
FORBIDDEN = ("numpy", "torch", "typer", "fastapi", "pytest", "transformers")
OTHER_EXAMPLES = ("fastapi_pool",)  # they need more than the bare install has; the tests run them elsewhere


def readme_example() -> str:
    """README's program that uses the actor runtime."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (program,) = [block for block in blocks if "ringcast.actors" in block]
    return program


def modules_of(page: Path) -> dict[str, str]:
    """The files that docs/testing.md shows: each block that begins with `# name.py`."""
    blocks = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", page.read_text(), re.DOTALL)
    return {name: text for text, name in blocks}


def commands(folder: Path) -> dict[str, list[str]]:
    """What is run, by what it is called."""
    readme = folder / "readme_example.py"
    readme.write_text(readme_example())
    found = {"README.md": [str(readme)]}
    for name, text in modules_of(ROOT / "docs" / "testing.md").items():
        (folder / name).write_text(text)
        found[f"docs/testing.md {name}"] = ["-c", f"import {name.removesuffix('.py')}"]
    for page in runnable_pages():
        found[f"docs/{page.name}"] = [str(ROOT / "tests" / "run_page.py"), str(page)]
    for example in sorted((ROOT / "examples").glob("*.py")):
        if example.stem not in OTHER_EXAMPLES:
            found[f"examples/{example.name}"] = [str(example)]
    found["ringcast top"] = ["-c", TOP]
    found["ringcast generate"] = ["-c", GENERATE]
    return found


# A system with a child, seen by the command.
TOP = """
import asyncio, subprocess, sys
from pathlib import Path
import ringcast.actors as rt

class Idle(rt.Actor):
    pass

async def main():
    async with rt.System() as system:
        await system.spawn(rt.spec(Idle), name="idler", where=rt.process())
        command = [str(Path(sys.executable).parent / "ringcast"), "top", "--count", "1", "--interval", "0.1"]
        shown = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        assert "idler" in shown.stdout, shown.stdout

asyncio.run(main())
"""
# A command of the engine says what to install.
GENERATE = """
import subprocess, sys
from pathlib import Path
command = [str(Path(sys.executable).parent / "ringcast"), "generate", "hi"]
ended = subprocess.run(command, capture_output=True, text=True)
assert ended.returncode == 1 and ended.stderr.count("\\n") == 1 and "pip install 'ringcast[llm]'" in ended.stderr, ended
"""


def main() -> int:
    present = [name for name in FORBIDDEN if importlib.util.find_spec(name) is not None]
    if present:
        print(f"this is no bare install: {', '.join(present)} can be imported; run `make light`")
        return 1
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in commands(Path(folder)).items():
            ended = subprocess.run(
                [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
            )
            is_well = ended.returncode == 0 and "Traceback" not in ended.stderr
            print(f"{'ok    ' if is_well else 'FAILED'} {name}", flush=True)
            if not is_well:
                failed += 1
                print(ended.stdout + ended.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
