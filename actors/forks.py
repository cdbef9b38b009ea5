"""What remains of a system in a forked process: nothing that could be used, and nothing that touches the parent's.

Nodes, and what else depends on threads or processes of ours, ask here to be told of a fork in the new process. Their
memory of rings is not inherited (native/module.c of the channels); here their uses become an error that says so.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from .errors import NotInSystem

if TYPE_CHECKING:
    import asyncio

FORKED: Final = 114  # exit status of a forked process that came back into the loop of an actor or a system
FORKED_TEXT: Final = (
    "this process was forked from the one that the system belongs to, and cannot use it: fork before the system "
    "starts, or start another one here"
)


class Forkable(Protocol):
    """An object that is notified in a forked process."""

    def was_forked(self) -> None:
        """This is the new process, and this object a copy: it takes no part in anything any more."""


_things: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: list[int] = []


def tell_of_forks(thing: Forkable) -> None:
    """Call ``thing.was_forked`` in forked processes, while it lives."""
    if not _registered:
        _registered.append(1)
        os.register_at_fork(after_in_child=_tell_all)
    _things.add(thing)


def _tell_all() -> None:
    for thing in list(_things):
        thing.was_forked()


def forget_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """In the new process: the tasks of that loop are copies that go without a word, though they have not ended."""
    handle = loop.get_exception_handler() or type(loop).default_exception_handler

    def forget(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        task = context.get("task")
        if task is None or task.done() or "exception" in context:
            handle(loop, context)

    loop.set_exception_handler(forget)


class LeftBehind:
    """Stands in a forked process where something of the parent's was: `NotInSystem` whatever is done with it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotInSystem(FORKED_TEXT)


class NoWayBack:
    """Stands where a node sends: a forked process that gets there is running its parent's loop or mailbox."""

    def __getattr__(self, name: str) -> NoReturn:
        end_forked_process()


def end_forked_process() -> NoReturn:
    """It would do its parent's work a second time. Ends it at once, without the parent's clean-up."""
    os.write(
        2,
        b"ringcast: process %d was forked by a handler or task of process %d and came back into its loop, where it can "
        b"do nothing. It ends here; end it with os._exit() or os.exec*() before that.\n" % (os.getpid(), os.getppid()),
    )
    os._exit(FORKED)
