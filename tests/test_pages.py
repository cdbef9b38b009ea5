"""The pages about the actor runtime run as they stand: every Python block of each, from top to bottom."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_page import runnable_pages

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.usefixtures("leak_oracle")


@pytest.mark.parametrize("page", runnable_pages(), ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "run_page.py"), str(page)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


def test_a_block_that_fails_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    command = [sys.executable, str(ROOT / "tests" / "run_page.py"), str(page)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert 'page.md", line 8' in ended.stderr


USE_OF_CONTINUE = """
from fastapi.testclient import TestClient

with TestClient(app) as client:
    print(client.get("/continue", params={"text": "The capital of France is"}).json()["text"])
"""
USE_OF_SERVER = """
import time
from fastapi.testclient import TestClient

with TestClient(app) as client:
    while client.get("/health/ready").status_code != 200:
        time.sleep(0.05)
    body = {"model": "mine", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    print(client.post("/v1/completions", json=body, headers={"Authorization": "Bearer secret"}).json())
"""


@pytest.mark.parametrize(("number", "use"), [(0, ""), (1, ""), (2, USE_OF_CONTINUE), (3, USE_OF_SERVER)])
def test_the_programs_of_embedding_run(number: int, use: str) -> None:
    """A1: each block of docs/embedding.md is a program of its own, with the real model."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "embedding.md").read_text(), re.DOTALL | re.MULTILINE
    )
    command = [sys.executable, "-c", blocks[number] + use]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Paris" in ended.stdout
