"""Run the Python blocks of a Markdown page like a notebook: `python tests/run_page.py docs/actors.md`.

All blocks share the namespace of `__main__` and run from top to bottom; `await` works at the top level. A block whose
fence says ``needs-numpy`` is left out where numpy is not installed. Used by test_pages.py and by `make light`.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import re
import sys
import types
from pathlib import Path

BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


async def run_page(path: Path) -> None:
    """Run the page's blocks; an exception's traceback shows the line of the page."""
    text = path.read_text()
    namespace = sys.modules["__main__"].__dict__
    for match in BLOCK.finditer(text):
        if "needs-numpy" in match[1] and importlib.util.find_spec("numpy") is None:
            continue
        lines_before = "\n" * text[: match.start(2)].count("\n")
        code = compile(lines_before + match[2], str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        ended = types.FunctionType(code, namespace)()
        if inspect.iscoroutine(ended):
            await ended


if __name__ == "__main__":
    asyncio.run(run_page(Path(sys.argv[1])))
