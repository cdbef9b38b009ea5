"""The examples of docs/testing.md are a module and its tests, and they pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "testing.md"


def test_the_examples_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module, *tests = blocks
    assert module.startswith("# jobs.py\n")
    (tmp_path / "jobs.py").write_text(module)
    plugin = 'pytest_plugins = ["ringcast.actors.testing.pytest_plugin"]'
    source = "\n\n".join(tests)
    assert source.count(plugin) == 1
    (tmp_path / "conftest.py").write_text(plugin + "\n")
    (tmp_path / "test_jobs.py").write_text(source.replace(plugin, ""))
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "6 passed" in run.stdout
