"""The descriptors that simulated processes sleep on: which are ready, and when that is noticed.

The descriptors are real (eventfds, socket pairs) and so is their readiness; the moment of noticing it is drawn from the
seed, and doorbells may be lost here. Owned by a `World`.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import Strand, World


class Watcher:
    """A strand's interest in one descriptor. Level-triggered: told again while it is ready."""

    def __init__(self, fd: int, events: int, strand: Strand, notice: Callable[[Watcher], None]) -> None:
        self.fd = fd
        self.events = events
        self.strand = strand
        self.notice = notice
        self.notice_at: float | None = None  # it is ready, and will be noticed then
        self.is_told = False  # noticed, and not yet acted upon
        self.cancel: Callable[[], None] = lambda: None  # called when it is not wanted any more


class Descriptors:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._watchers: dict[tuple[int, int], Watcher] = {}
        self._poll = select.poll()
        self._bells: set[int] = set()

    def add_bell(self, fd: int) -> None:
        """This one is a process's own doorbell."""
        self._bells.add(fd)

    def remove_bell(self, fd: int) -> None:
        """It is about to be closed."""
        self._bells.discard(fd)

    def watch(self, watcher: Watcher) -> None:
        """Begin to notice."""
        self._watchers[watcher.fd, watcher.events] = watcher
        self._register(watcher.fd)

    def forget(self, fd: int, events: int) -> Watcher | None:
        """Stop; the watcher that there was."""
        watcher = self._watchers.pop((fd, events), None)
        if watcher is not None:
            self._register(fd)
        return watcher

    def forget_all(self, strand: Strand) -> None:
        """Stop whatever a strand watches."""
        for fd, events in [key for key, watcher in self._watchers.items() if watcher.strand is strand]:
            self.forget(fd, events)

    def is_anything_ready(self) -> bool:
        """Whether something is still to be noticed."""
        return any(w.notice_at is not None or w.is_told for w in self._watchers.values()) or self._look(False)

    def next_notice(self) -> float | None:
        """When a ready one will be noticed next, if none is added."""
        moments = [
            max(watcher.notice_at, watcher.strand.process.frozen_until)
            for watcher in self._watchers.values()
            if watcher.notice_at is not None
        ]
        return min(moments, default=None)

    def look(self) -> None:
        """See what has become ready, and tell the strands whose time to notice has come."""
        self._look(True)

    def _look(self, tell: bool) -> bool:
        ready = {fd: mask for fd, mask in self._poll.poll(0) if not mask & select.POLLNVAL}
        now = self._world.now
        found = False
        for (fd, events), watcher in list(self._watchers.items()):
            if watcher.is_told:
                continue
            if not ready.get(fd, 0) & (events | select.POLLHUP | select.POLLERR):
                watcher.notice_at = None
                continue
            if watcher.notice_at is None:
                if self._is_lost(watcher):
                    continue
                watcher.notice_at = now + self._delay_s(watcher)
            found = True
            if tell and watcher.notice_at <= now and watcher.strand.process.frozen_until <= now:
                watcher.notice_at = None
                watcher.is_told = True
                watcher.notice(watcher)
        return found

    def _is_lost(self, watcher: Watcher) -> bool:
        world = self._world
        if watcher.fd not in self._bells or not world.chance(world.faults.lost_doorbell):
            return False
        os.read(watcher.fd, 8)
        world.note(watcher.strand.process, "FAULT: its doorbell was lost")
        return True

    def _delay_s(self, watcher: Watcher) -> float:
        world = self._world
        probability = world.faults.delayed_doorbell if watcher.fd in self._bells else world.faults.delayed_frame
        if world.chance(probability):
            return world.random.uniform(0, world.faults.delay_s)
        return world.latency_s()

    def _register(self, fd: int) -> None:
        events = 0
        for watched, wanted in self._watchers:
            if watched == fd:
                events |= wanted
        if events:
            self._poll.register(fd, events)
        else:
            self._poll.unregister(fd)
