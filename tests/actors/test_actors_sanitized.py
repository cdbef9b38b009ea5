"""The runtime's native modules under GCC's address and undefined behaviour sanitizers; `make sanitize` runs it longer.

Without a compiler or a sanitizer's runtime these fail: nothing is skipped.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from native_builds import ROOT, build_sanitized, run_sanitized

NATIVE = ROOT / "actors" / "native"


def test_envelopes_and_traffic_leave_the_sanitizers_silent(tmp_path: Path) -> None:
    build_sanitized(tmp_path)
    done = run_sanitized(tmp_path, seed=1, seconds=4)
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    assert re.fullmatch(r"\d+ envelopes, \d+ refused, \d+ handled, \d+ rounds of traffic\n", done.stdout), done.stdout


def test_a_reference_that_is_not_kept_is_reported(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(NATIVE, changed)
    text = (changed / "mailbox.c").read_text()
    old = "self->objects[i] = Py_NewRef(objects[i]);"
    assert text.count(old) == 1
    (changed / "mailbox.c").write_text(text.replace(old, "self->objects[i] = objects[i];"))
    build_sanitized(tmp_path, changed)
    done = run_sanitized(tmp_path, seed=1, seconds=4)
    assert done.returncode != 0 and "AddressSanitizer" in done.stderr
