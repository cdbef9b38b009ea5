"""What the root tells a child process in its first frame, and how an actor's class gets there.

A class that can be imported travels by name. One that cannot (defined in `__main__`, in a notebook, inside a
function) travels by value through cloudpickle, so `__main__` is never run a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringcast.channels import importable
from ringcast.channels.codec import message

ROOT_SLOT = 0
BOARD_FREE, BOARD_STARTING, BOARD_READY, BOARD_SPARE, BOARD_CONNECTED = range(5)  # a slot's state on the board
CPUS_VARIABLE = "RINGCAST_CPUS"  # in a child's environment: the processors that it keeps to


@message(22)
@dataclass(frozen=True, slots=True)
class Boot:
    """Everything a child needs before its first message.

    The frame's fds: board, bell, ring, root bell, root ring, abort, and large arguments if there are any.
    """

    slot: int
    epoch: int
    system_name: str
    actor_id: int
    name: str
    incarnation: int
    class_name: str  # module:qualname, or what to call it if it travels by value
    class_bytes: bytes  # empty if the name is enough
    arguments: bytes  # encoded (args, kwargs, hand-off), decoded after the class's module is imported; or empty:
    sys_path: list[str]
    log_level: int
    logging: bytes = b""  # how to set up logging, see `child_logging`
    large_arguments: int = 0  # then they are in the memory of the last fd, so many bytes
    is_spare: bool = False  # prepare, and wait for PROMOTE before the actor is started


def class_for_travel(cls: type) -> tuple[str, bytes]:
    """(name, b"") of an importable class, or (name, its definition). ``TypeError`` if neither is possible."""
    name = importable.name_of(cls)
    if importable.is_importable(cls):
        return name, b""
    from ringcast.channels import by_value

    return name, by_value.dump(cls)


def load_class(name: str, data: bytes) -> type[Any]:
    """The class that `class_for_travel` described."""
    if data:
        from ringcast.channels import by_value

        loaded: type[Any] = by_value.load(data)
        return loaded
    found = importable.find(name)
    if not isinstance(found, type):
        raise ImportError(f"{name} is not a class")
    return found
