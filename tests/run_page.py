"""Run the Python blocks of a Markdown page like a notebook: `python tests/run_page.py docs/actors.md`.

All blocks share the namespace of `__main__` and run from top to bottom; `await` works at the top level. A block whose
fence says ``needs-numpy`` is left out where numpy is not installed. Used by test_pages.py and light_install.py,
which take the list of such pages from here.
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

DOCS = Path(__file__).parent.parent / "docs"
# Pages with Python blocks that are no such notebook: these need the engine or a server,
ENGINE_PAGES = ("embedding", "server", "quickstart", "operations", "models")
# and this one is a module and its tests: see actors/testing/test_documentation.py.
MODULE_PAGES = ("testing",)
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def runnable_pages() -> list[Path]:
    """The pages of docs/ whose Python blocks run from top to bottom, in the order of their names."""
    others = (*ENGINE_PAGES, *MODULE_PAGES)
    return [page for page in sorted(DOCS.glob("*.md")) if page.stem not in others and BLOCK.search(page.read_text())]


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
