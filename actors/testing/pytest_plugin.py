"""Fixtures for pytest. In a top-level conftest.py: ``pytest_plugins = ["ringcast.actors.testing.pytest_plugin"]``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .leaks import no_leaks


@pytest.fixture
def leak_oracle() -> Iterator[None]:
    """Afterwards: no child process, no file descriptor and no shared-memory name more than before."""
    with no_leaks():
        yield
