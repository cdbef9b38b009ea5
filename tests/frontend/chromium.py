"""A headless Chromium for tests of web pages, driven by playwright. It is never left out in silence: without it the
tests fail and say what to install; who wants none of them says so (``-m 'not browser'``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a fresh profile. RINGCAST_CHROMIUM names its program."""
    path = os.environ.get("RINGCAST_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("this test needs playwright: pip install 'ringcast[dev]', or leave it out by -m 'not browser'")
    if path is None:
        pytest.fail(
            "this test needs a Chromium (`apt-get install chromium`, or RINGCAST_CHROMIUM=/path/to/one); "
            "leave it out by -m 'not browser'"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()
