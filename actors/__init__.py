"""Supervised actors over shared-memory rings: the public names.

>>> import ringcast.actors as rt
"""

from .actor import Actor, BlockingActor, Mailbox, call
from .context import Context, Watch
from .errors import (
    ActorDied,
    ActorError,
    CallCancelled,
    Cause,
    MailboxFull,
    NotInSystem,
    RemoteError,
    StartFailed,
)
from .events import Died, Event, GaveUp, Ready, Restarting, Stopped
from .spec import Restart, Spec, Where, here, process, spec
from .statistics import NodeStatistics
from .system import System

__all__ = [
    "Actor",
    "ActorDied",
    "ActorError",
    "BlockingActor",
    "CallCancelled",
    "Cause",
    "Context",
    "Died",
    "Event",
    "GaveUp",
    "Mailbox",
    "MailboxFull",
    "NodeStatistics",
    "NotInSystem",
    "Ready",
    "RemoteError",
    "Restart",
    "Restarting",
    "Spec",
    "StartFailed",
    "Stopped",
    "System",
    "Watch",
    "Where",
    "call",
    "here",
    "process",
    "spec",
]
