"""Keeps every actor of a system alive by its policy, and knows where each is. Owned by `System`.

One for one: an actor's death concerns that actor. Its record outlives its incarnations; references go through it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .actor import Actor
from .context import Watch
from .errors import ActorError, Cause, StartFailed
from .events import Died, Event, GaveUp, Ready, Restarting, Stopped
from .host import Child, Host
from .local_host import TaskHost, ThreadHost
from .process_host import ProcessHost
from .ref import Ref
from .root_node import RootNode
from .spec import Restart, Spec, Where, process

log = logging.getLogger("ringcast.actors")


class State(Enum):
    """Where an actor is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class Record:
    """All that is known of one actor."""

    child: Child
    state: State = State.STARTING
    incarnation: int = 0
    host: Host | None = None
    capacity_bytes: int = 0
    cause: Cause = field(default_factory=lambda: Cause("it has not started"))
    deaths: deque[float] = field(default_factory=deque)  # monotonic times within the policy's period
    last_event: Event | None = None
    watchers: list[Callable[[Event], None]] = field(default_factory=list)
    restart: asyncio.Task[None] | None = None
    early_exit: tuple[Cause, bool] | None = None  # it died between READY and our hearing of that


class Supervisor:
    """See the module. `bind` gives it the root's node before the first spawn."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._root: RootNode | None = None
        self._last_actor_id = 0
        self._random = random.Random()  # jitter only

    def bind(self, root: RootNode) -> None:
        self._root = root

    @property
    def root(self) -> RootNode:
        assert self._root is not None
        return self._root

    # What the node asks.

    def locate(self, actor_id: int) -> tuple[str, int, int] | Cause:
        record = self._records.get(actor_id)
        if record is None:
            return Cause(f"there is no actor #{actor_id} in this system")
        if record.state is not State.READY or record.host is None:
            return record.cause
        return record.child.name, record.host.slot, record.capacity_bytes

    def subscribe(self, actor_id: int, tell: Callable[[Event], None]) -> Callable[[], None]:
        record = self._records.get(actor_id)
        if record is None:
            tell(GaveUp(Cause(f"there is no actor #{actor_id} in this system")))
            return lambda: None
        record.watchers.append(tell)
        if record.last_event is not None:
            tell(record.last_event)
        return lambda: record.watchers.remove(tell)

    def watch(self, ref: Ref) -> Watch:
        """The events of an actor, for a watcher in this process."""
        watch = Watch()
        watch.unsubscribe = self.subscribe(ref._actor_id, watch.put)
        return watch

    # Starting and stopping.

    async def spawn(self, spec: Spec[Any], name: str | None, where: Where, restart: Restart) -> Ref:
        """Start an actor and wait until it is READY; `StartFailed` if it does not get there."""
        self._last_actor_id += 1
        actor_id = self._last_actor_id
        name = name or f"{spec.cls.__name__}-{actor_id}"
        if any(r.child.name == name and r.state is not State.STOPPED for r in self._records.values()):
            raise ActorError(f"there is an actor named {name!r} already: choose another name")
        record = self._records[actor_id] = Record(Child(actor_id, name, spec, where, restart))
        try:
            await self._start(record)
        except BaseException:
            del self._records[actor_id]  # nobody has a reference yet
            raise
        return Ref(actor_id, name, self.root)

    async def spawn_group(
        self, specs: Sequence[Spec[Any]], name: str | None, where: Where, restart: Restart
    ) -> list[Ref]:
        """Start actors in parallel: all become READY, or the first failure is raised and none is left."""
        names: list[str | None] = [None if name is None else f"{name}-{rank}" for rank in range(len(specs))]
        starts = [
            asyncio.ensure_future(self.spawn(spec, member, where, restart))
            for spec, member in zip(specs, names, strict=True)
        ]
        try:
            return list(await asyncio.gather(*starts))
        except BaseException:
            for start in starts:
                start.cancel()
            for ended in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(ended, Ref):
                    await self.stop(ended, "another member of its group did not start", 1.0)
            raise

    async def stop(self, ref: Ref, reason: str, timeout_s: float) -> None:
        """Stop one actor in order."""
        record = self._records.get(ref._actor_id)
        if record is not None:
            await self._stop(record, reason, timeout_s)

    async def stop_all(self, reason: str, timeout_s: float) -> None:
        """Stop every actor, the last started first, within one deadline."""
        deadline = time.monotonic() + timeout_s
        for record in reversed(list(self._records.values())):
            try:
                await self._stop(record, reason, max(0.0, deadline - time.monotonic()))
            except Exception:  # the others must be stopped all the same
                log.exception("stopping %r failed", record.child.name)

    def hosts(self) -> dict[str, ProcessHost]:
        """The living processes by their actor's name."""
        return {
            r.child.name: r.host
            for r in self._records.values()
            if isinstance(r.host, ProcessHost) and r.state is State.READY
        }

    async def _start(self, record: Record) -> None:
        record.incarnation += 1
        incarnation = record.incarnation

        def on_exit(cause: Cause, clean: bool) -> None:
            if record.incarnation != incarnation:
                return
            if record.state in (State.STARTING, State.RESTARTING):
                record.early_exit = (cause, clean)
            else:
                self._on_exit(record, cause, clean)

        host = record.host = self._make_host(record.child, incarnation, on_exit)
        record.capacity_bytes = await host.start()
        record.state = State.READY
        self._tell(record, Ready(incarnation))
        if record.early_exit is not None:
            early, record.early_exit = record.early_exit, None
            self._on_exit(record, *early)

    def _make_host(self, child: Child, incarnation: int, on_exit: Callable[[Cause, bool], None]) -> Host:
        if isinstance(child.where, process):
            return ProcessHost(self.root, child, incarnation, on_exit)
        if issubclass(child.spec.cls, Actor):
            return TaskHost(self.root, self, child, incarnation, on_exit)
        return ThreadHost(self.root, self, child, incarnation)

    async def _stop(self, record: Record, reason: str, timeout_s: float) -> None:
        if record.restart is not None:
            record.restart.cancel()
            await asyncio.wait([record.restart])
        if record.state is State.READY and record.host is not None:
            record.cause = Cause(f"it was stopped: {reason}")
            record.state = State.STOPPED
            self.root.route_down(record.child.actor_id, record.cause)
            try:
                await record.host.stop(reason, timeout_s)
            finally:
                self._tell(record, Stopped())
        elif record.state is not State.FAILED:
            record.state = State.STOPPED
            record.cause = Cause(f"it was stopped: {reason}")

    # Deaths.

    def _on_exit(self, record: Record, cause: Cause, clean: bool) -> None:
        if record.state is not State.READY:
            return
        log.warning("actor %r died: %s", record.child.name, cause.summary)
        record.cause = cause
        record.host = None
        record.state = State.RESTARTING
        self.root.route_down(record.child.actor_id, cause)
        self._tell(record, Died(record.incarnation, cause))
        kind = record.child.restart.kind
        if kind == "permanent" or (kind == "transient" and not clean):
            record.restart = asyncio.create_task(self._restart(record), name=f"{record.child.name}: restart")
        else:
            self._give_up(record, cause)

    async def _restart(self, record: Record) -> None:
        """Start again until it is READY or the policy's intensity is exceeded."""
        policy = record.child.restart
        while True:
            now = time.monotonic()
            record.deaths.append(now)
            while record.deaths and record.deaths[0] < now - policy.within_s:
                record.deaths.popleft()
            attempt = len(record.deaths)
            if attempt > policy.max_restarts:
                text = f"it died {attempt} times within {policy.within_s:g} s, the last time: {record.cause.summary}"
                self._give_up(record, Cause(text, record.cause.exit_code, stderr_tail=str(record.cause)))
                return
            delay_s = min(policy.backoff_s * 2 ** (attempt - 1), policy.max_backoff_s)
            delay_s *= 1 + 0.2 * self._random.random()
            self._tell(record, Restarting(attempt, delay_s))
            await asyncio.sleep(delay_s)
            try:
                await self._start(record)
            except StartFailed as error:
                log.warning("restart of %r failed: %s", record.child.name, error.cause.summary)
                record.cause = error.cause
            except Exception as error:  # e.g. no memory for its ring: as much a failed start
                log.exception("restart of %r failed", record.child.name)
                record.cause = Cause(f"{type(error).__name__}: {error}")
            else:
                if record.restart is asyncio.current_task():
                    record.restart = None
                return

    def _give_up(self, record: Record, cause: Cause) -> None:
        record.state = State.FAILED
        record.cause = cause
        record.restart = None
        if record.child.restart.kind != "temporary":
            log.error("actor %r is given up: %s", record.child.name, cause.summary)
        self._tell(record, GaveUp(cause))

    def _tell(self, record: Record, event: Event) -> None:
        record.last_event = event
        for tell in list(record.watchers):
            tell(event)
