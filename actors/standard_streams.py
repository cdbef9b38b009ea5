"""Descriptors 0 to 2 are the standard streams: what the runtime opens must not get one of these numbers."""

from __future__ import annotations

import os


def open_standard_streams() -> None:
    """Open what is closed of descriptors 0, 1 and 2 on /dev/null, as daemons should have done.

    Otherwise the next file, socket or ring gets the number, and whatever writes to stdout writes into it; event loops
    abort over it.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)
