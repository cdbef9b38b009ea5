"""Where ringcast keeps files of its own: the user's cache folder. Used by the weight cache and by `ringcast pull`."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from .errors import CacheFolderError

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """``$RINGCAST_CACHE``, else ``$XDG_CACHE_HOME/ringcast``, else ``~/.cache/ringcast``. It may not exist yet.

    A user without a home folder gets one for himself alone among the temporary files, which exists, and a warning.
    `CacheFolderError` if that cannot be had either.
    """
    own = os.environ.get("RINGCAST_CACHE")
    try:
        if own:
            return Path(own).expanduser()
        # The XDG specification says that a relative path here is to be ignored.
        shared = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(shared) if os.path.isabs(shared) else Path("~/.cache").expanduser()
    except RuntimeError as error:  # HOME is not set, and nothing is known of the user
        if own:
            raise CacheFolderError(f"RINGCAST_CACHE={own!r}: {error}; give a path without ~") from error
        return _temporary(os.getuid())
    return base / "ringcast"


@cache
def _temporary(user: int) -> Path:
    """A folder that no other user can have put there or look into."""
    path = Path(tempfile.gettempdir()) / f"ringcast-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise CacheFolderError(
            f"there is no home folder, and {path} cannot be made ({error.strerror}): set RINGCAST_CACHE to a folder"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise CacheFolderError(
            f"there is no home folder, and {path} is open to others: remove it, or set RINGCAST_CACHE to a folder"
        )
    logger.warning("there is no home folder: files are kept in %s; RINGCAST_CACHE names another folder", path)
    return path
