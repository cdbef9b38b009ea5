"""Cheap digests of large files of weights: tell one from another, and find damage. Imports no torch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

_SAMPLES = 64
_SAMPLE_BYTES = 4096


def fingerprint(path: Path, data: Any, data_start: int) -> str:
    """Hex digest that tells this file from others: size, time of change, header, and 64 pages of the weights.

    ``data`` is the mapped file. Cheap (a few ms) where hashing gigabytes would not be; a file edited in place changes
    its time.
    """
    status = os.stat(path)
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} ".encode())
    digest.update(data[:data_start])
    digest.update(sampled(data, data_start).encode())
    return digest.hexdigest()


def sampled(data: Any, start: int) -> str:
    """Hex digest of 64 pages spread over ``data`` from ``start``: finds lost or zeroed data in a few milliseconds."""
    size = len(data) - start
    digest = hashlib.sha256(str(size).encode())
    for index in range(_SAMPLES):
        offset = start + index * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1)
        digest.update(data[offset : offset + _SAMPLE_BYTES])
    return digest.hexdigest()
