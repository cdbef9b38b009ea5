"""Whether files that a command was told to use can be: asked before it reads, loads or writes anything."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import FrontendError


class PathUnusable(FrontendError):
    """The caller's fault, or the file system's: a file cannot be read or written."""


def check_readable(path: Path, option: str) -> None:
    """`PathUnusable` in one line unless ``path`` is something to read from."""
    if path.is_dir():
        raise PathUnusable(f"cannot read {path}: it is a folder; give a file as {option}")
    if not path.exists():
        raise PathUnusable(f"cannot read {path}: there is no such file; give another as {option}")
    if not os.access(path, os.R_OK):
        raise PathUnusable(f"cannot read {path}: you may not; change its permissions, or give another as {option}")


def check_writable(path: Path, option: str) -> None:
    """`PathUnusable` in one line unless ``path`` can be made or written. It is not touched."""
    if path.is_dir():
        raise PathUnusable(f"cannot write {path}: it is a folder; give a file as {option}")
    if not path.parent.is_dir():
        raise PathUnusable(f"cannot write {path}: there is no folder {path.parent}; make it, or give another {option}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PathUnusable(f"cannot write {path}: you may not; change the permissions, or give another {option}")
