"""Whether the packages of the ``llm`` extra are here. Looks for them without importing any."""

from __future__ import annotations

import importlib.util
import sys

ENGINE_PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "jinja2", "huggingface_hub", "typer", "rich")
SERVER_PACKAGES = ("fastapi", "uvicorn", "pydantic")


def missing(packages: tuple[str, ...]) -> list[str]:
    """Those of ``packages`` that cannot be imported."""
    return [name for name in packages if name not in sys.modules and importlib.util.find_spec(name) is None]


def missing_line(names: list[str]) -> str:
    """One line for the user."""
    return f"this command needs packages that are not installed ({', '.join(names)}): pip install 'ringcast[llm]'"
