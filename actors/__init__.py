"""Supervised actors over shared-memory rings: the public names.

>>> import ringcast.actors as rt
"""

from typing import TYPE_CHECKING

from .actor import Actor, BlockingActor, Mailbox, Msg, call, stream
from .call_scope import current_trace, deadline, trace
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
from .retry import retry

if TYPE_CHECKING:
    from . import testing as testing
    from .child_command import set_executable
    from .child_logging import ChildLogging
    from .child_output import Output
    from .connection import Remote, connect
    from .context import Context, Watch
    from .events import Died, Event, GaveUp, Ready, Restarting, Stalled, Stopped
    from .figures import Metric, metrics, prometheus_text
    from .group import Err, Group, Ok
    from .placement import Restart, Spec, Where, here, process, spec
    from .pools import Pool, PoolMember, PoolStatistics, pool
    from .portal import Portal
    from .program import run
    from .serving import Serving, serve
    from .statistics import MailboxStatistics, NodeStatistics
    from .supervisor import Supervisor
    from .system import System
    from .thread_system import ThreadPortal, start_in_thread
    from .timers import Timer
else:
    _MODULE_OF = {
        "ChildLogging": "child_logging",
        "Context": "context",
        "Died": "events",
        "Err": "group",
        "Event": "events",
        "GaveUp": "events",
        "Group": "group",
        "MailboxStatistics": "statistics",
        "Metric": "figures",
        "NodeStatistics": "statistics",
        "Ok": "group",
        "Output": "child_output",
        "Pool": "pools",
        "PoolMember": "pools",
        "PoolStatistics": "pools",
        "Portal": "portal",
        "Ready": "events",
        "Remote": "connection",
        "Restart": "placement",
        "Restarting": "events",
        "Serving": "serving",
        "Spec": "placement",
        "Stalled": "events",
        "Stopped": "events",
        "Supervisor": "supervisor",
        "System": "system",
        "Timer": "timers",
        "ThreadPortal": "thread_system",
        "Watch": "context",
        "Where": "placement",
        "connect": "connection",
        "here": "placement",
        "metrics": "figures",
        "pool": "pools",
        "process": "placement",
        "prometheus_text": "figures",
        "run": "program",
        "serve": "serving",
        "set_executable": "child_command",
        "spec": "placement",
        "start_in_thread": "thread_system",
    }

    def __getattr__(name: str) -> object:
        """Load what is used for the first time: a module that only defines actors needs no system."""
        from importlib import import_module

        if name == "testing":
            return import_module(".testing", __name__)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Actor",
    "ActorDied",
    "ActorError",
    "BlockingActor",
    "CallCancelled",
    "CallCycle",
    "Cause",
    "ChildLogging",
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
    "Metric",
    "Msg",
    "NodeStatistics",
    "NotInSystem",
    "Ok",
    "Output",
    "Pool",
    "PoolMember",
    "PoolStatistics",
    "Portal",
    "Ready",
    "Remote",
    "RemoteError",
    "Restart",
    "Restarting",
    "Serving",
    "Spec",
    "Stalled",
    "StartFailed",
    "Stopped",
    "Supervisor",
    "System",
    "ThreadPortal",
    "Timer",
    "Watch",
    "Where",
    "call",
    "connect",
    "current_trace",
    "deadline",
    "here",
    "metrics",
    "pool",
    "process",
    "prometheus_text",
    "retry",
    "run",
    "serve",
    "set_executable",
    "spec",
    "start_in_thread",
    "stream",
    "trace",
]
