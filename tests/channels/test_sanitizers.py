"""The native core under GCC's sanitizers, threads in one mapping (native/stress.c); `make sanitize` runs it longer.

Without a compiler or a sanitizer's runtime these fail: nothing is skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from native_builds import VARIANTS, Variant, build_stress, mutate, run_stress

THREADS = VARIANTS[2]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_threads_in_one_mapping_leave_the_sanitizers_silent(variant: Variant, tmp_path: Path) -> None:
    done = run_stress(build_stress(variant, tmp_path), variant, 1)
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    assert "all in order" in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("writer.h", "STORE_RELEASE(&writer->header->head,", "STORE_RELAXED(&writer->header->head,"),
        ("reader.h", "*head = LOAD_ACQUIRE(&reader->header->head)", "*head = LOAD_RELAXED(&reader->header->head)"),
        ("reader.h", "moved->position, false, __ATOMIC_RELEASE", "moved->position, false, __ATOMIC_RELAXED"),
    ],
    ids=["head without release", "head without acquire", "cursor without release"],
)
def test_the_thread_sanitizer_reports_a_missing_order(file: str, old: str, new: str, tmp_path: Path) -> None:
    # Without views, whose pins release as well and would cover for the cursor.
    edits = [
        (file, old, new),
        ("stress.c", "read_some(&streams[i], rand_r(&seed) % 4 == 0)", "read_some(&streams[i], false)"),
    ]
    done = run_stress(build_stress(THREADS, tmp_path, mutate(tmp_path, edits)), THREADS, 1)
    assert done.returncode != 0 and "data race" in done.stderr
