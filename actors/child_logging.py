"""How child processes set up their logging: the configuration's way to them, and its use there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from .failure import summary_of

# A dictionary for `logging.config.dictConfig`, or a function that is called with the actor's name.
ChildLogging = Mapping[str, Any] | Callable[[str], object]


def pack_logging(configuration: ChildLogging | None) -> bytes:
    """The configuration as it travels to children. ``TypeError`` if it is none, or cannot travel."""
    if configuration is None:
        return b""
    if not callable(configuration) and not isinstance(configuration, Mapping):
        raise TypeError(
            f"child_logging is {configuration!r}: use a dictionary for logging.config.dictConfig, or a function that "
            "takes the actor's name"
        )
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(configuration)
    except Exception as error:
        raise TypeError(f"child_logging cannot travel to child processes: {summary_of(error)}") from error
    return packed


def set_up_logging(packed: bytes, name: str, level: int) -> None:
    """In a child: do what `pack_logging` was given; without, log to stderr from ``level`` on."""
    if not packed:
        logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
        return
    import pickle

    configuration = pickle.loads(packed)  # from our parent
    if callable(configuration):
        configuration(name)
    else:
        import logging.config as config

        config.dictConfig(dict(configuration))
