"""Supervised actors over shared-memory rings: the public names.

>>> import ringcast.actors as rt
"""

from typing import TYPE_CHECKING

from .actor import Actor, BlockingActor, Mailbox, Msg, call, stream
from .call_context import current_trace, deadline, trace
from .context import Context, Watch
from .errors import (
    ActorDied,
    ActorError,
    CallCancelled,
    CallCycle,
    Cause,
    DeadlineExceeded,
    MailboxFull,
    NotInSystem,
    RemoteError,
    StartFailed,
)
from .events import Died, Event, GaveUp, Ready, Restarting, Stalled, Stopped
from .group import Err, Group, Ok
from .mailbox_meter import MailboxStatistics
from .retry import retry
from .run import run
from .spec import Restart, Spec, Where, here, process, spec
from .statistics import NodeStatistics
from .supervisor import Supervisor
from .system import System

if TYPE_CHECKING:
    from . import testing as testing
else:

    def __getattr__(name: str) -> object:
        """``rt.testing`` is loaded when it is first used: programs do without."""
        if name != "testing":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return import_module(".testing", __name__)


__all__ = [
    "Actor",
    "ActorDied",
    "ActorError",
    "BlockingActor",
    "CallCancelled",
    "CallCycle",
    "Cause",
    "Context",
    "DeadlineExceeded",
    "Died",
    "Err",
    "Event",
    "GaveUp",
    "Group",
    "Mailbox",
    "MailboxFull",
    "MailboxStatistics",
    "Msg",
    "NodeStatistics",
    "NotInSystem",
    "Ok",
    "Ready",
    "RemoteError",
    "Restart",
    "Restarting",
    "Spec",
    "Stalled",
    "StartFailed",
    "Stopped",
    "Supervisor",
    "System",
    "Watch",
    "Where",
    "call",
    "current_trace",
    "deadline",
    "here",
    "process",
    "retry",
    "run",
    "spec",
    "stream",
    "trace",
]
