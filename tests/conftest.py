"""For every layer: nothing that a test starts may be left behind, and to look for it is quick."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest

from ringcast.actors.testing.pytest_plugin import leak_oracle

__all__ = ["leak_oracle"]


@pytest.fixture(scope="module", autouse=True)
def older_objects_are_no_garbage() -> Iterator[None]:
    """The oracles collect garbage after each test: among what this file's tests made, not in a million objects of
    imported modules (0.25 s)."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A shell starts what it runs in the background deaf to it, and every process that tests start would be, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
