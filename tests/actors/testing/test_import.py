"""The kit costs programs nothing, and needs nothing but the runtime."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ringcast.actors as rt
from ringcast.actors import testing


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("ringcast.actors", ["ringcast.actors.testing"]),
        ("ringcast.actors.testing", ["pytest", "psutil", "hypothesis", "numpy", "torch", "unittest"]),
    ],
)
def test_importing_brings_nothing_more(module: str, forbidden: list[str]) -> None:
    code = f"import sys, {module}; print(sorted(set({forbidden}) & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_kit_is_reached_from_the_runtime() -> None:
    assert rt.testing is testing
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        rt.nothing  # type: ignore[attr-defined] # noqa: B018


def test_the_public_names_are_listed() -> None:
    assert sorted(testing.__all__) == sorted(set(testing.__all__))
    assert all(hasattr(testing, name) for name in testing.__all__)


def test_a_name_that_is_loaded_when_used_is_not_hidden_by_its_module() -> None:
    """Whoever imports a submodule first would put the module in the name's place."""
    assert [name for name in rt._MODULE_OF if name in set(rt._MODULE_OF.values())] == []
