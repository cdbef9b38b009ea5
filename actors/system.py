"""A system: one supervisor, its actors, and the node through which this process takes part.

Library mode: no globals, no signal handlers; several systems may live in one process. Everything runs on the loop
that entered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar, cast

from .actor import Actor, BlockingActor
from .branch import Branch, Strategy
from .child_logging import ChildLogging, pack_logging
from .child_output import Output, check_output
from .child_settings import ChildSettings
from .context import Watch
from .directory import Directory, watching
from .errors import ActorError, NotInSystem
from .forks import FORKED_TEXT
from .group import Group
from .import_guard import check_not_loading
from .member import State
from .placement import Restart, Spec, Where, here, process
from .pools import Pool, check_bounds
from .process_host import ProcessHost
from .record import Record
from .ref import Ref
from .root_node import RootNode
from .standard_streams import open_standard_streams
from .statistics import NodeStatistics, node_statistics
from .supervisor import Supervisor
from .tasks import ended

if TYPE_CHECKING:
    from .portal import Portal

A = TypeVar("A", bound=Actor | BlockingActor)
HURRIED_STOP_S: Final = 0.5  # of a system whose stop is cancelled


class System:
    """``async with System() as system:`` actors live inside it; leaving it stops them all, the last started first.

    Everything has ended when the block is left, whatever way. A cancellation meanwhile shortens the stop to half a
    second, and is raised afterwards. A system is used and left on the loop that entered it: elsewhere everything raises
    `NotInSystem`.

    ``ring_bytes`` is the capacity of each process's ring, a power of two; messages over an eighth of it overflow into
    memory of their own. ``stop_timeout_s`` is the deadline for leaving: what has not ended by then is killed.

    ``output`` is where the lines go that child processes write to stdout and stderr: ``"stderr"``, with the actor's
    name in front; ``"logging"``, to the logger ``ringcast.actors.output``, with the name as the record's ``actor``;
    a function of (name, line), called on the loop; ``"drop"``; or ``"inherit"``: the processes write to our stdout and
    stderr themselves. The last lines of a process are part of its cause of death, except with ``"inherit"``.

    ``child_logging`` sets up the `logging` module of child processes before they import their actor's class: a
    dictionary for `logging.config.dictConfig`, or a function of the actor's name. Without, they log to their stderr
    from the level of our logger ``ringcast`` on.
    """

    def __init__(
        self,
        name: str = "ringcast",
        *,
        ring_bytes: int = 2 << 20,
        stop_timeout_s: float = 5.0,
        output: Output = "stderr",
        child_logging: ChildLogging | None = None,
    ) -> None:
        if ring_bytes < 4096 or ring_bytes & (ring_bytes - 1):
            raise ValueError(f"ring_bytes is {ring_bytes}: it must be a power of two, 4096 or more")
        if stop_timeout_s <= 0:
            raise ValueError(f"stop_timeout_s is {stop_timeout_s}: it must be positive seconds")
        check_output(output, "System()")
        self._children = ChildSettings(output, pack_logging(child_logging))
        self.name = name
        self._ring_bytes = ring_bytes
        self._stop_timeout_s = stop_timeout_s
        self._directory = Directory()
        self._root: RootNode | None = None
        self._supervisor: Supervisor | None = None
        self._stopped = False
        self.portals: list[Portal] = []  # they are shut when it stops

    async def __aenter__(self) -> System:
        if self._root is not None or self._stopped:
            raise ActorError(f"system {self.name!r} was entered before: make a new one")
        check_not_loading()
        open_standard_streams()
        self._root = RootNode(self.name, self._directory, self._ring_bytes, self._children)
        self._supervisor = Supervisor(Branch(self.name, self._root, self._directory, parent=None))
        self._root.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._root is not None and self._root.has_forked:
            return  # it is our parent's to stop
        root = self._running()
        cancellation = None
        while True:
            closing = asyncio.create_task(self._close(root), name=f"{self.name}: the system stops")
            try:
                cancellation = await ended(closing, lambda: root.patience.cut(HURRIED_STOP_S)) or cancellation
            except GeneratorExit:  # this coroutine is closed, with its loop: nothing can be waited for any more
                root.kill_all()
                if not root.hosts:
                    root.close()
                raise
            if not closing.cancelled():
                break
            root.patience.cut(HURRIED_STOP_S)  # cancelled itself, as asyncio.run does with all tasks at its end
        try:
            closing.result()
            if cancellation is not None:
                raise cancellation
        finally:
            del cancellation  # it holds this frame

    async def _close(self, root: RootNode) -> None:
        """End everything, in order. Again is allowed, if it was interrupted."""
        root.patience.cut(self._stop_timeout_s)
        try:
            await self._branch.stop("the system stops", self._stop_timeout_s)
        finally:
            await root.tasks.all_ended()
            await root.end_stragglers()
            self._stopped = True
            self._root = None
            for portal in self.portals:
                portal.shut()
            root.close()

    def portal(self) -> Portal:
        """The way in for threads: ``portal.call(counter.add, 2)`` waits in the calling thread. See docs/threads.md."""
        from .portal import Portal

        loop = self._entered().loop
        return self.portals[0] if self.portals else Portal(self, loop)

    @property
    def is_up(self) -> bool:
        """It was entered and has not stopped."""
        return self._root is not None

    @property
    def supervisor(self) -> Supervisor:
        """The root of the supervision tree."""
        self._running()
        assert self._supervisor is not None
        return self._supervisor

    @property
    def _branch(self) -> Branch:
        assert self._supervisor is not None
        return self._supervisor._branch

    async def spawn(
        self,
        spec: Spec[A],
        *,
        name: str | None = None,
        where: Where = here,
        restart: Restart = Restart(),  # noqa: B008 (a frozen value)
    ) -> A:
        """Start an actor; its reference, typed as the actor, when it is READY. See `Supervisor.spawn`."""
        return await self.supervisor.spawn(spec, name=name, where=where, restart=restart)

    async def spawn_group(
        self,
        specs: Iterable[Spec[A]],
        *,
        name: str | None = None,
        where: Where = process(),  # noqa: B008 (a frozen value)
        restart: Restart = Restart(),  # noqa: B008
    ) -> Group[A]:
        """Start several actors in parallel: all READY, or none. See `Supervisor.spawn_group`."""
        return await self.supervisor.spawn_group(specs, name=name, where=where, restart=restart)

    def find(self, name: str, cls: type[A] | None = None) -> A:
        """The reference of the actor of that name, typed as ``cls``; the actor is up, or is being started again.

        >>> counter = system.find("counter", Counter)

        `ActorError` with the names that are like it if no such actor is alive, ``TypeError`` if it is no ``cls``.
        (Of one that an actor in another process spawned the class is not known here, and not checked.)
        """
        root = self._running()
        record = self._directory.named(name)
        spec = record.child.spec
        if cls is not None and isinstance(spec, Spec) and not issubclass(spec.cls, cls):
            raise TypeError(f"actor {name!r} is a {spec.cls.__qualname__}, not a {cls.__qualname__}")
        known = spec.cls if isinstance(spec, Spec) else None
        return cast(A, Ref(record.child.actor_id, record.name, root, known))

    async def spawn_pool(
        self,
        specs: Iterable[Spec[A]],
        *,
        name: str | None = None,
        where: Where = process(),  # noqa: B008 (a frozen value)
        restart: Restart = Restart("permanent"),  # noqa: B008
        max_pending: int = 16,
        max_waiting: int | None = None,
    ) -> Pool[A]:
        """Start several actors in parallel, all READY or none, and put them behind one reference. See `pool`.

        Members are named ``name-0``, ``name-1``, ...; unless ``restart`` says otherwise they are started again.
        """
        check_bounds(max_pending, max_waiting)
        listed = list(specs)
        if not listed:
            raise ValueError("a pool needs one or more members: spawn_pool was given no specs")
        group = await self.supervisor.spawn_group(listed, name=name, where=where, restart=restart)
        return Pool(list(group), name or listed[0].cls.__name__, max_pending, max_waiting)

    def supervise(
        self,
        name: str,
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: int = 5,
        within_s: float = 60.0,
        restart: Restart = Restart("permanent"),  # noqa: B008 (a frozen value)
    ) -> Supervisor:
        """A supervisor below the root's, with a strategy of its own. Spawn its members through it."""
        return self.supervisor.supervise(
            name, strategy=strategy, max_restarts=max_restarts, within_s=within_s, restart=restart
        )

    def watch(self, ref: object) -> Watch:
        """The life of an actor, or of a `Supervisor`, as events; the first tells its present state."""
        self._running()
        if isinstance(ref, Supervisor):
            return watching(self._member(ref).subscribe)
        return self._directory.watch(self._ref(ref))

    async def stop(self, ref: object, reason: str = "asked to stop", timeout_s: float | None = None) -> None:
        """Stop one actor in order: its handler in progress, ``on_stop``, then SIGTERM and SIGKILL at the deadline.

        It ends even if the caller does not wait for it. One that has ended is left as it is; one that was given up is
        forgotten, and cannot be revived any more.
        """
        self._running()
        record = self._directory.record(self._ref(ref))
        if record is not None:
            await record.stop(reason, self._stop_timeout_s if timeout_s is None else timeout_s)

    async def restart(self, ref: object, reason: str = "asked to restart", timeout_s: float | None = None) -> None:
        """Stop one actor in order and start it again; what ``on_stop`` returns is its successor's ``handoff``.

        Watchers get ``Restarting(planned=True)`` and no `Died`. If the caller is cancelled, the restart goes on:
        otherwise the actor would stay down.
        """
        self._running()
        record = self._directory.record(self._ref(ref))
        if record is None or record.state is not State.READY:
            raise ActorError(f"{ref!r} cannot be restarted: it is not up")
        await self._branch.restart_member(record, reason, self._stop_timeout_s if timeout_s is None else timeout_s)

    async def revive(self, ref: object) -> None:
        """Start an actor that was given up again, or the members of a `Supervisor` that was, with a fresh budget.

        Returns when it is READY. `StartFailed` if it does not get there; its supervisor then decides as after a death.
        `ActorError` if it is not given up, or if its supervisor is: then revive that. (A temporary actor that died has
        left nothing to revive: spawn it anew.)
        """
        self._running()
        member = self._member(ref)
        parent = member.parent
        if parent is None:
            raise ActorError("the system's own supervisor is never given up")
        await parent.revive_member(member)

    def _member(self, ref: object) -> Record | Branch:
        if isinstance(ref, Supervisor):
            if ref._branch.root is not self._root:
                raise NotInSystem(f"{ref!r} is of another system than {self.name!r}")
            return ref._branch
        record = self._directory.record(self._ref(ref))
        if record is None:
            raise ActorError(f"{ref!r} has ended for good: {self._directory.end_of(self._ref(ref)).summary}")
        return record

    async def ping(self, ref: object) -> float:
        """Seconds until the actor's process answered, from a native thread: also in the middle of a handler that
        holds the interpreter. Nothing comes from a stopped process, so wait with a time-out.
        """
        return await self._process_of(ref, "pinged").ping()

    def progress(self, ref: object) -> tuple[int, str]:
        """A number that changes whenever an actor in a process of its own begins or ends a handler or calls
        `Context.progress`, and the handler that runs now ("" if none does). It is read without disturbing the actor.
        """
        return self._process_of(ref, "looked at").progress()

    async def stacks(self, ref: object) -> str:
        """The stacks of all threads of the actor's process, even while a handler holds the interpreter.

        If the process cannot write them (it is stopped, or waits in the kernel), the result is its state.
        """
        written: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process_of(ref, "looked at").dump_stacks(
            lambda text: None if written.done() else written.set_result(text)
        )
        return await written

    def kill(self, ref: object, reason: str) -> None:
        """End the actor's process by SIGKILL, in whatever state it is; its policy decides what follows, as in a crash.

        ``reason`` becomes part of the cause. `stop` and `restart` are the orderly ways.
        """
        self._process_of(ref, "killed").kill(f"it was killed: {reason}")

    def _process_of(self, ref: object, what: str) -> ProcessHost:
        self._running()
        record = self._directory.record(self._ref(ref))
        if record is None or not isinstance(record.host, ProcessHost):
            raise ActorError(f"{ref!r} cannot be {what}: it is down, or in this process")
        return record.host

    async def statistics(self, timeout_s: float | None = None) -> dict[str, NodeStatistics]:
        """The figures of every process by its actor's name; this process's stand under the system's name.

        A process busy in a blocking handler answers after it. Left out are processes that end instead of answering,
        and those that have not answered in time. `metrics` and `prometheus_text` make flat figures of it.
        """
        asked = {name: asyncio.ensure_future(host.statistics()) for name, host in self._hosts(self._running()).items()}
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=timeout_s)
        finally:
            for answer in asked.values():
                answer.cancel()
        figures = {self.name: node_statistics(self._running())}
        for name, answer in asked.items():
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                figures[name] = answer.result()
        return figures

    def pids(self) -> dict[str, int]:
        """The process ids of the living children by their actor's name. Any thread may ask."""
        return {name: host.pid for name, host in self._hosts(self._entered()).items()}

    def _hosts(self, root: RootNode) -> dict[str, ProcessHost]:
        return {host.child.name: host for host in list(root.hosts.values()) if host.is_ready}

    def _running(self) -> RootNode:
        """The root's node, for who is on its loop."""
        root = self._entered()
        self._check_loop(root)
        return root

    def _entered(self) -> RootNode:
        if self._root is None:
            state = "has stopped" if self._stopped else "was not entered: use `async with`"
            raise NotInSystem(f"system {self.name!r} {state}")
        if self._root.has_forked:
            raise NotInSystem(FORKED_TEXT)
        return self._root

    def _check_loop(self, root: RootNode) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is root.loop:
            return
        if not root.loop.is_closed():
            raise NotInSystem(f"system {self.name!r} was used outside the event loop that entered it: use it there")
        self._root, self._stopped = None, True
        root.forsake()
        raise NotInSystem(
            f"system {self.name!r} was not left before its event loop was closed: its processes have been killed. "
            "Leave it on the loop that entered it"
        )

    def _ref(self, ref: object) -> Ref:
        if not isinstance(ref, Ref):
            raise TypeError(f"a reference that spawn returned is needed, not {type(ref).__name__}")
        if self._root is not None and ref._sender is not self._root:
            raise NotInSystem(f"{ref!r} is of another system than {self.name!r}, or of none")
        return ref
