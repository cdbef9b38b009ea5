"""The arrows between the layers go one way, and each layer imports only what it may."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What each layer may import of the others. scheduler and gpu share the message types and nothing else.
MAY_IMPORT = {
    "channels": set(),
    "actors": {"channels"},
    "scheduler": {"channels", "actors"},
    "gpu": {"channels", "actors", "scheduler.messages"},
    "frontend": {"channels", "actors", "scheduler", "gpu"},
}


def _imported(path: Path) -> set[str]:
    """The ringcast modules that a file imports anywhere, as dotted names below ringcast; and other top names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level > len(path.relative_to(ROOT).parts) - 1:
            found.add(f"relative import beyond its package in {path}")
    return found


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_arrows_between_layers_go_one_way(layer: str) -> None:
    allowed = MAY_IMPORT[layer]
    for path in (ROOT / layer).rglob("*.py"):
        for name in _imported(path):
            if not name.startswith("ringcast."):
                assert "relative import" not in name, name
                continue
            below = name.removeprefix("ringcast.")
            is_own = below.split(".")[0] == layer
            ok = is_own or any(below == a or below.startswith(a + ".") for a in allowed)
            prefix_of_allowed = any(a.startswith(below + ".") for a in allowed)
            assert ok or prefix_of_allowed, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("layer", ["channels", "actors", "scheduler", "frontend"])
def test_only_gpu_imports_torch(layer: str) -> None:
    for path in (ROOT / layer).rglob("*.py"):
        assert not any(name.split(".")[0] == "torch" for name in _imported(path)), path


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("ringcast", ["torch", "numpy", "transformers", "tokenizers", "fastapi", "typer", "rich"]),
        ("ringcast.channels", ["torch", "numpy", "transformers", "fastapi", "asyncio"]),
        ("ringcast.actors", ["torch", "numpy", "transformers", "fastapi", "cloudpickle", "asyncio", "msgpack"]),
        ("ringcast.scheduler.engine_core", ["torch", "numpy", "transformers", "fastapi"]),
        ("ringcast.gpu", ["torch", "transformers", "fastapi"]),
        ("ringcast.gpu.worker", ["torch", "transformers", "fastapi"]),
        ("ringcast.frontend", ["torch", "transformers", "fastapi"]),
    ],
)
def test_importing_a_layer_brings_nothing_heavy(module: str, forbidden: list[str]) -> None:
    code = f"import sys, {module}; print(sorted(set({forbidden}) & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_nothing_is_installed_under_a_bare_name() -> None:
    """A wheel holds ringcast/ only (an editable install adds the checkout to sys.path besides)."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert {target.split("/")[0] for target in build["wheel"]["packages"]} == {"ringcast"}
    for_wheels, _, _ = (ROOT / "CMakeLists.txt").read_text().partition('if(SKBUILD_STATE STREQUAL "editable")')
    install_lines = [line for line in for_wheels.splitlines() if "install(" in line]
    assert install_lines
    assert all(" DESTINATION ringcast/" in line for line in install_lines)


def test_no_two_files_of_the_tests_have_one_name() -> None:
    """Their folders are on sys.path together: the second of a name would not be found, and no suite start."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
