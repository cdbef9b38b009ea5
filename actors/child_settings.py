"""What a system gives all of its child processes: where their output goes, and how they set up logging."""

from __future__ import annotations

from dataclasses import dataclass

from .child_output import Output


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """See `System`."""

    output: Output = "stderr"
    logging: bytes = b""  # from `child_logging.pack_logging`


DEFAULT_SETTINGS = ChildSettings()
