"""What the pages in docs/ name is there: files behind links, names behind imports, commands, options, endpoints."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
import typer

from ringcast.frontend.async_llm import AsyncLLM
from ringcast.frontend.cli import main
from ringcast.frontend.engine_args import EngineArgs
from ringcast.frontend.server.app import create_app

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
FOR_USERS = [
    ROOT / "docs" / f"{name}.md"
    for name in ("quickstart", "cli", "embedding", "operations", "troubleshooting", "models")
]
OF_OTHERS = {"--shm-size"}  # docker's


def _commands() -> dict[str, set[str]]:
    """Every command and its options."""
    group = typer.main.get_command(main.app)
    return {
        name: {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        for name, command in group.commands.items()  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert link.startswith("http") or (page.parent / link).exists(), link


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_python_examples_use_names_that_exist(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    assert hasattr(module, name.name), f"{node.module}.{name.name}"


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_options_that_are_named_exist(page: Path) -> None:
    options = set().union(*_commands().values()) | {"--help"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
    assert named <= options | OF_OTHERS


def test_every_command_is_described() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for name in _commands():
        assert f"`{name}`" in text, name


def test_every_endpoint_is_described() -> None:
    text = "".join((ROOT / "docs" / name).read_text() for name in ("server.md", "operations.md"))
    for path in create_app(AsyncLLM(EngineArgs())).openapi()["paths"]:
        assert f"{path}`" in text, path
