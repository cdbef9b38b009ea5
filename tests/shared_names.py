"""Who made which name in /dev/shm: tests run beside each other, so each looks at its own processes' names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ringcast.channels.name_claim import owner_of


def shared_names_of(pids: Iterable[int]) -> list[str]:
    """What these processes made in /dev/shm and that is still there; a name that says nothing of its owner, too."""
    wanted = set(pids)
    names = [name for name in os.listdir("/dev/shm") if name.startswith("ringcast")]
    return [name for name in names if (owner := owner_of(name)) is None or owner.pid in wanted]
