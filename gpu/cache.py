"""Where ringcast keeps files of its own: the user's cache folder. Used by the weight cache and by `ringcast pull`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$RINGCAST_CACHE``, else ``$XDG_CACHE_HOME/ringcast``, else ``~/.cache/ringcast``. It may not exist yet."""
    own = os.environ.get("RINGCAST_CACHE")
    if own:
        return Path(own).expanduser()
    # The XDG specification says that a relative path here is to be ignored.
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if os.path.isabs(shared) else Path("~/.cache").expanduser()
    return base / "ringcast"
