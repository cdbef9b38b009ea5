"""A simulated process: its strands, what it holds, and its end. Knows no actor.

It is gone from the moment of its death on, wherever it was: nothing of it runs any more, and what it held is closed as
the kernel would close it. What it had committed to its rings stays.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..node import Node
    from .world import Strand, World

FIRST_PID = (1 << 22) + 1  # beyond what Linux gives out: a signal sent by mistake reaches nobody


class Process:
    """See the module. ``label`` names it in traces; the program's own process is no child."""

    def __init__(self, world: World, name: str, *, is_child: bool) -> None:
        self.world = world
        self.name = name
        self.is_child = is_child
        self.pid = FIRST_PID + len(world.processes)
        number = 1 + sum(process.name == name for process in world.processes if process.is_child)
        self.label = f"{name}#{number}" if is_child else name
        self.weight = 10.0 ** world.random.uniform(-1, 1)  # how often it gets its turn
        self.strands: list[Strand] = []
        self.frozen_until = 0.0
        self._on_thaw: list[Callable[[], None]] = []
        self.exit_code: int | None = None  # None: it runs
        self.nodes: list[Node] = []
        self.bells: list[int] = []  # its doorbells' descriptors
        self.descriptors: list[int] = []  # held by nothing else, closed with it
        self.closers: list[Callable[[], None]] = []  # called when it is gone
        self.on_end: Callable[[], None] = lambda: None
        self.is_ready = False  # its actor is
        self.system = 0  # the number of the system that it belongs to
        self._is_closed = False
        world.processes.append(self)
        world.running.append(self)

    def __repr__(self) -> str:
        return f"<Process {self.label}>"

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None

    def pause(self, seconds: float) -> None:
        """Lose the processor for so long."""
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        if seconds != float("inf"):
            self.world.after(seconds, lambda: None)  # the world is not at rest before

    def freeze(self, seconds: float) -> None:
        """Stand still for so long: slow, or stopped by a signal."""
        self.world.note(self, f"FAULT: stands still for {seconds:.6f} s")
        self.pause(seconds)

    def thaw(self) -> None:
        """Go on."""
        self.frozen_until = 0.0
        self.world.note(self, "goes on")
        self._tell_thawed()

    def after_thaw(self, action: Callable[[], None]) -> None:
        """Call it, in the world's name, when the process goes on or has ended."""
        if self.frozen_until == float("inf"):
            self._on_thaw.append(action)
        else:
            self.world.after(self.frozen_until - self.world.now, action)

    def _tell_thawed(self) -> None:
        for action in self._on_thaw:
            self.world.after(0.0, action)
        self._on_thaw.clear()

    def kill(self) -> None:
        """SIGKILL."""
        self.end(-signal.SIGKILL, "FAULT: killed")

    def signal(self, number: int) -> None:
        """What the kernel does with a signal that has no handler."""
        if self.has_ended:
            raise ProcessLookupError(number, "no such simulated process")
        if number == signal.SIGSTOP:
            self.freeze(float("inf"))
        elif number == signal.SIGCONT:
            self.thaw()
        elif number not in (0, signal.SIGCHLD, signal.SIGWINCH, signal.SIGURG, signal.SIGINT):  # SIGINT: ignored
            self.end(-number, f"killed by {signal.Signals(number).name}")

    def exit(self, code: object) -> None:
        """End as ``sys.exit(code)`` ends a process."""
        number = code if isinstance(code, int) else 0 if code is None else 1
        self.end(number, f"exits with code {number}")

    def end(self, code: int, what: str) -> None:
        """It is gone; again is allowed. If it is in the middle of a step, the rest of that reaches nobody."""
        if self.has_ended:
            return
        self.exit_code = code
        self.world.note(self, what)
        self.world.running.remove(self)
        self.on_end()
        self._tell_thawed()
        if self.world.current is not self:
            self.close()

    def at_once(self, action: Callable[[], None]) -> None:
        """Do something as this process, between its steps."""
        if self.has_ended:
            return
        self.world.current = self
        try:
            action()
        finally:
            self.world.current = None
            self.close_if_ended()

    def close_if_ended(self) -> None:
        """Its step is over."""
        if self.has_ended:
            self.close()

    def close(self) -> None:
        """Close what it held, as the kernel does."""
        if self._is_closed:
            return
        self._is_closed = True
        descriptors = self.world.descriptors
        for strand in self.strands:
            descriptors.forget_all(strand)
        for bell in self.bells:
            descriptors.remove_bell(bell)
        for node in self.nodes:
            for peer in node.peers.values():
                peer.link.close()
                if peer.ring_fd >= 0:
                    os.close(peer.ring_fd)
                    peer.ring_fd = -1
        for closer in self.closers:
            closer()
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors.clear()

    def release(self) -> None:
        """The simulation is over: end what is suspended, let go of the memory."""
        for node in self.nodes:
            for host in list(getattr(node, "hosts", {}).values()):  # of processes whose end nobody will be told
                host._release()
        for strand in self.strands:
            strand.unwind()
        for node in self.nodes:
            for peer in node.peers.values():
                peer.bell.close()
            node.peers.clear()
            if hasattr(node, "bell"):  # a system's root has let go of it
                node.bell.close()
                del node.bell, node.outbox, node.board
        self.nodes.clear()
