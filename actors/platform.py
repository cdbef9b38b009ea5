"""What the runtime asks of the machine beyond memory and sockets: processes, threads, chance.

The real machine is the default. `ringcast.actors.testing` puts a simulated one in its place, for the code that runs in
a simulation's context and no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from .child_output import Output
    from .launch import ChildProcess
    from .node import Node


class Platform:
    """The real machine."""

    def start_process(
        self,
        name: str,
        link_fd: int,
        env: Mapping[str, str],
        output: Output,
        on_exit: Callable[[ChildProcess], None],
    ) -> ChildProcess:
        """Start an actor's process, which inherits the link; `ActorError` or ``OSError`` if that is not possible."""
        from .launch import ChildProcess

        return ChildProcess(name, link_fd, env, output, on_exit)

    def show_title(self, title: str) -> None:
        """Name this process in process tables."""
        import setproctitle

        setproctitle.setproctitle(title)

    def start_thread(self, target: Callable[[], None], name: str) -> None:
        """Run ``target`` on a thread that does not keep the process alive."""
        from .system_calls import start_thread

        start_thread(target, name)

    def large_bytes(self, ring_bytes: int) -> int:
        """Messages above that size are copied once, on a thread; the ring takes messages of ``ring_bytes``."""
        return max(ring_bytes, 128 * 1024)

    def condition(self) -> threading.Condition:
        """A condition with a re-entrant lock, for threads that `start_thread` started."""
        return threading.Condition(threading.RLock())

    def random(self) -> random.Random:
        """A source of chance, for jitter."""
        import random

        return random.Random()

    def node_made(self, node: Node) -> None:
        """A node is complete and has not yet met another one."""


_current: ContextVar[Platform] = ContextVar("ringcast_platform", default=Platform())  # noqa: B039 (it has no state)


def current() -> Platform:
    """The machine of the code that runs."""
    return _current.get()


def use(platform: Platform) -> None:
    """From here on, in this context, this machine."""
    _current.set(platform)
