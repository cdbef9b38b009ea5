"""A system: one supervisor, its actors, and the node through which this process takes part.

Library mode: no globals, no signal handlers; several systems may live in one process. Everything runs on the loop
that entered it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar, cast

from .actor import Actor, BlockingActor
from .context import Watch
from .errors import ActorError, NotInSystem
from .group import Group
from .ref import Ref
from .root_node import RootNode
from .spec import Restart, Spec, Where, here, process
from .statistics import NodeStatistics, node_statistics
from .supervisor import Supervisor

A = TypeVar("A", bound=Actor | BlockingActor)


class System:
    """``async with System() as system:`` actors live inside it; leaving it stops them all, the last started first.

    ``ring_bytes`` is the capacity of each process's ring, a power of two; messages over an eighth of it overflow into
    memory of their own. ``stop_timeout_s`` is the deadline for leaving: what has not ended by then is killed.
    """

    def __init__(self, name: str = "ringcast", *, ring_bytes: int = 2 << 20, stop_timeout_s: float = 5.0) -> None:
        if ring_bytes < 4096 or ring_bytes & (ring_bytes - 1):
            raise ValueError(f"ring_bytes is {ring_bytes}: it must be a power of two, 4096 or more")
        if stop_timeout_s <= 0:
            raise ValueError(f"stop_timeout_s is {stop_timeout_s}: it must be positive seconds")
        self.name = name
        self._ring_bytes = ring_bytes
        self._stop_timeout_s = stop_timeout_s
        self._supervisor = Supervisor()
        self._root: RootNode | None = None
        self._stopped = False

    async def __aenter__(self) -> System:
        if self._root is not None or self._stopped:
            raise ActorError(f"system {self.name!r} was entered before: make a new one")
        self._root = RootNode(self.name, self._supervisor, self._ring_bytes)
        self._supervisor.bind(self._root)
        self._root.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        root = self._running()
        try:
            await self._supervisor.stop_all("the system stops", self._stop_timeout_s)
        finally:
            self._stopped = True
            self._root = None
            root.close()

    async def spawn(
        self,
        spec: Spec[A],
        *,
        name: str | None = None,
        where: Where = here,
        restart: Restart = Restart(),  # noqa: B008 (a frozen value)
    ) -> A:
        """Start an actor; its reference, typed as the actor, when it is READY.

        `StartFailed` with its traceback if it does not get there. There is no time limit on a start as long as the
        process lives; cancelling ends it. ``name`` is unique among the living.
        """
        if not isinstance(spec, Spec):
            raise TypeError(f"spawn needs rt.spec(Class, ...), not {spec!r}")
        self._running()
        return cast(A, await self._supervisor.spawn(spec, name, where, restart))

    async def spawn_group(
        self,
        specs: Iterable[Spec[A]],
        *,
        name: str | None = None,
        where: Where = process(),  # noqa: B008 (a frozen value)
        restart: Restart = Restart(),  # noqa: B008
    ) -> Group[A]:
        """Start several actors in parallel: all READY, or the first failure is raised and none is left.

        Members are named ``name-0``, ``name-1``, ... in rank order.
        """
        listed = list(specs)
        if not listed or not all(isinstance(spec, Spec) for spec in listed):
            raise TypeError("spawn_group needs one or more of rt.spec(Class, ...)")
        self._running()
        return Group([cast(A, ref) for ref in await self._supervisor.spawn_group(listed, name, where, restart)])

    def watch(self, ref: object) -> Watch:
        """The life of an actor as events; the first tells its present state."""
        self._running()
        return self._supervisor.watch(self._ref(ref))

    async def stop(self, ref: object, reason: str = "asked to stop", timeout_s: float | None = None) -> None:
        """Stop one actor in order: its handler in progress, ``on_stop``, then SIGTERM and SIGKILL at the deadline."""
        self._running()
        limit_s = self._stop_timeout_s if timeout_s is None else timeout_s
        await self._supervisor.stop(self._ref(ref), reason, limit_s)

    async def statistics(self) -> dict[str, NodeStatistics]:
        """The figures of every process by its actor's name; this process's stand under the system's name.

        A process busy in a blocking handler answers after it.
        """
        figures = {self.name: node_statistics(self._running())}
        for name, host in self._supervisor.hosts().items():
            figures[name] = await host.statistics()
        return figures

    def pids(self) -> dict[str, int]:
        """The process ids of the living children by their actor's name."""
        self._running()
        return {name: host.pid for name, host in self._supervisor.hosts().items()}

    def _running(self) -> RootNode:
        if self._root is None:
            state = "has stopped" if self._stopped else "was not entered: use `async with`"
            raise NotInSystem(f"system {self.name!r} {state}")
        return self._root

    def _ref(self, ref: object) -> Ref:
        if not isinstance(ref, Ref):
            raise TypeError(f"a reference that spawn returned is needed, not {type(ref).__name__}")
        return ref
