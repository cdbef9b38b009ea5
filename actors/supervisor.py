"""A supervisor: starts its members in order, decides what a death means, stops them in reverse. OTP's model.

Members are actors and further supervisors. A supervisor lives in the root's process and is no process of its own, so
it cannot die by itself; it fails when its members die too often, and then its own supervisor decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar, cast

from . import platform
from .actor import Actor, BlockingActor
from .directory import Directory
from .errors import ActorError, Cause, NotInSystem, StartFailed
from .forks import FORKED_TEXT
from .group import Group
from .host import Child
from .placement import Restart, Spec, Where, here, process
from .record import Budget, Record, State
from .ref import Ref, number_of
from .root_node import RootNode

log = logging.getLogger("ringcast.actors")

A = TypeVar("A", bound=Actor | BlockingActor)
Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
RESTART_STOP_TIMEOUT_S = 5.0  # for members that are stopped because another one died


class Supervisor:
    """Made by `System.supervise` or `Supervisor.supervise`; a system has one at its root.

    When a member dies and its policy wants it back, ``one_for_one`` restarts it alone, ``one_for_all`` all members,
    ``rest_for_one`` it and those started after it. A member that exhausts its own budget (`Restart`), or more than
    ``max_restarts`` restarts within ``within_s`` seconds here, and this supervisor fails: it stops what it has, and
    its own ``restart`` policy says whether its supervisor starts it again. The root's supervisor never fails as a
    whole: there, only the member is given up.
    """

    def __init__(
        self,
        name: str,
        root: RootNode,
        directory: Directory,
        *,
        parent: Supervisor | None = None,
        strategy: Strategy = "one_for_one",
        max_restarts: int = 5,
        within_s: float = 60.0,
        restart: Restart = Restart(),  # noqa: B008 (a frozen value)
    ) -> None:
        if strategy not in ("one_for_one", "one_for_all", "rest_for_one"):
            raise ValueError(f"strategy is {strategy!r}: use 'one_for_one', 'one_for_all' or 'rest_for_one'")
        self.name = name
        self.restart = restart
        self._root = root
        self._directory = directory
        self._parent = parent
        self._strategy = strategy
        self._budget = Budget(max_restarts, within_s)
        self._own_budget = Budget(restart.max_restarts, restart.within_s)
        self._members: list[Record | Supervisor] = []
        self._repairs: dict[int, asyncio.Task[None]] = {}
        self._restarts: set[asyncio.Task[None]] = set()  # that were asked for
        self._broken: list[Record | Supervisor] = []
        self._stopped = False
        self.failure: Cause | None = None
        self._random = platform.current().random()  # jitter only

    # Starting.

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
        if not isinstance(where, Where):
            raise TypeError(f"where is {where!r}: use rt.here or rt.process(...)")
        if not isinstance(restart, Restart):
            raise TypeError(f"restart is {restart!r}: use rt.Restart('permanent' | 'transient' | 'temporary')")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {name!r}: give a string")
        if name is not None and not _is_text(name):
            raise ValueError(f"name is {name!r}: it can hold neither NUL nor half a surrogate pair")
        if self._root.has_forked:
            raise NotInSystem(FORKED_TEXT)
        if self._stopped or self.failure is not None:
            raise ActorError(f"supervisor {self.name!r} has {'stopped' if self._stopped else 'failed'}")

        def make(actor_id: int) -> Record:
            child = Child(actor_id, name or f"{spec.cls.__name__}-{number_of(actor_id)}", spec, where, restart)
            return Record(child, self._root, self._directory, self)

        record = self._directory.enter(make)
        self._members.append(record)
        try:
            await record.start()
            if record.state is State.STOPPED:
                raise StartFailed(record.name, record.cause)
        except BaseException:
            self._members.remove(record)
            self._directory.remove(record)  # nobody has a reference yet
            raise
        return cast(A, Ref(record.child.actor_id, record.name, self._root))

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
        names: Sequence[str | None] = [None if name is None else f"{name}-{rank}" for rank in range(len(listed))]
        starts = [
            asyncio.ensure_future(self.spawn(spec, name=member, where=where, restart=restart))
            for spec, member in zip(listed, names, strict=True)
        ]
        try:
            return Group(await asyncio.gather(*starts))
        except BaseException:
            for start in starts:
                start.cancel()
            outcomes: list[object] = list(await asyncio.gather(*starts, return_exceptions=True))
            for ended in outcomes:
                if isinstance(ended, Ref):
                    await self.stop_member(ended, "another member of its group did not start", 1.0)
            raise

    def supervise(
        self,
        name: str,
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: int = 5,
        within_s: float = 60.0,
        restart: Restart = Restart("permanent"),  # noqa: B008 (a frozen value)
    ) -> Supervisor:
        """A supervisor below this one. It has no members yet: spawn them through it."""
        below = Supervisor(
            name,
            self._root,
            self._directory,
            parent=self,
            strategy=strategy,
            max_restarts=max_restarts,
            within_s=within_s,
            restart=restart,
        )
        self._members.append(below)
        return below

    # Stopping.

    async def stop_member(self, ref: Ref, reason: str, timeout_s: float) -> None:
        """Stop one actor in order, wherever it is below."""
        record = self._directory.record(ref)
        if record is not None:
            await record.stop(reason, timeout_s)  # a repair under way leaves it out from now on

    async def restart_member(self, ref: Ref, reason: str, timeout_s: float) -> None:
        """Stop one actor in order and start it again with what its ``on_stop`` returned.

        It is started again even if the caller does not wait for it: stopped only, it would be down for ever.
        """
        record = self._directory.record(ref)
        if record is None or record.state is not State.READY:
            raise ActorError(f"{ref!r} cannot be restarted: it is not up")
        restart = asyncio.create_task(self._restart(record, ref, reason, timeout_s), name=f"{record.name}: restart")
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)
        try:
            await asyncio.shield(restart)
        except asyncio.CancelledError:
            restart.add_done_callback(_log_failure)
            raise

    async def _restart(self, record: Record, ref: Ref, reason: str, timeout_s: float) -> None:
        try:
            await record.stop_for_restart(reason, timeout_s)
            record.tell_restarting(0, 0.0)
            await record.start()
        except StartFailed as error:
            record.start_failed(error.cause)
            raise
        except Exception as error:  # its on_stop failed, or there is no memory for its ring: down all the same
            record.start_failed(Cause(f"{type(error).__name__}: {error}"))
            raise
        if record.has_ended:
            raise ActorError(f"{ref!r} was stopped while it was being restarted")

    async def stop(self, reason: str = "its supervisor was stopped", timeout_s: float = 5.0) -> None:
        """Stop every member, the last started first, within one deadline."""
        self._stopped = True
        await self._cancel_repairs()
        await self._stop_members(self._members, reason, timeout_s, for_good=True)

    async def _stop_members(
        self, members: Sequence[Record | Supervisor], reason: str, timeout_s: float, *, for_good: bool
    ) -> None:
        deadline = time.monotonic() + timeout_s
        for member in reversed(list(members)):
            left_s = max(0.0, deadline - time.monotonic())
            try:
                if isinstance(member, Supervisor) and not for_good:
                    await member._cancel_repairs()
                    await member._stop_members(member._members, reason, left_s, for_good=False)
                elif isinstance(member, Record) and not for_good:
                    await member.stop_for_restart(reason, left_s)
                else:
                    await member.stop(reason, left_s)
            except Exception:  # the others must be stopped all the same
                log.exception("stopping %r failed", member.name)

    async def _cancel_repairs(self) -> None:
        for task in list(self._repairs.values()):
            if task is not asyncio.current_task():
                task.cancel()
                await asyncio.wait([task])

    # Deaths.

    def child_died(self, record: Record, clean: bool) -> None:
        kind = record.child.restart.kind
        if kind == "permanent" or (kind == "transient" and not clean):
            self._repair(record)
        else:
            record.give_up(record.cause)

    def _repair(self, member: Record | Supervisor) -> None:
        """Begin to bring a dead member back, or let the repair under way take it along."""
        if self._stopped:
            return
        key = id(member) if self._strategy == "one_for_one" else 0
        if key in self._repairs:
            self._broken.append(member)
            return
        task = asyncio.create_task(self._bring_back(member), name=f"{self.name}: repair of {member.name}")
        self._repairs[key] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._repairs[key]
            broken, self._broken = self._broken, []
            for other in broken:  # died when the repair was as good as over
                if not isinstance(other, Record) or other.state is State.DOWN:
                    self._repair(other)

        task.add_done_callback(ended)

    async def _bring_back(self, member: Record | Supervisor) -> None:
        """Restart a dead member, and those that its death concerns, until all are READY or a budget is exhausted."""
        while True:
            budget = member.budget if isinstance(member, Record) else member._own_budget
            cause = member.cause if isinstance(member, Record) else (member.failure or Cause("it failed"))
            counts = not (isinstance(member, Record) and member.is_excused)
            attempt = budget.spend() if counts else budget.num_spent() + 1
            if counts and attempt > budget.max_deaths:
                text = f"it died {attempt} times within {budget.within_s:g} s, the last time: {cause.summary}"
                await self._exhausted(member, Cause(text, cause.exit_code, stderr_tail=str(cause)))
                return
            spent = self._budget.spend() if counts else 0
            if self._parent is not None and spent > self._budget.max_deaths:
                text = (
                    f"supervisor {self.name!r} restarted members {spent} times within {self._budget.within_s:g} s, "
                    f"the last time because of {member.name!r}: {cause.summary}"
                )
                await self._fail(Cause(text, cause.exit_code, stderr_tail=str(cause)))
                return
            affected = self._affected(member)
            # Of a supervisor that could not be brought back, some members may be up.
            others = [other for other in affected if other is not member or isinstance(other, Supervisor)]
            reason = f"{member.name!r} died"
            await self._stop_members(others, reason, RESTART_STOP_TIMEOUT_S, for_good=False)
            while any(isinstance(other, Record) and other.state is State.READY for other in affected):
                # Somebody was starting it, and it came up while others were being stopped.
                await self._stop_members(affected, reason, RESTART_STOP_TIMEOUT_S, for_good=False)
            delay_s = self._delay_s(member.child.restart if isinstance(member, Record) else member.restart, attempt)
            for other in affected:
                if isinstance(other, Record):
                    other.tell_restarting(attempt, delay_s)
            await asyncio.sleep(delay_s)
            broken = await self._start_members(affected)
            if broken is None:
                return
            member = broken

    async def _start_members(self, members: Sequence[Record | Supervisor]) -> Record | Supervisor | None:
        """Start in order; the member that did not start, or did not stay up meanwhile, if there is one."""
        for member in members:
            if isinstance(member, Supervisor):
                member.failure = None
                member._reset_budgets()
                broken = await member._start_members(member._members)
                if broken is not None:
                    member.failure = broken.cause if isinstance(broken, Record) else broken.failure
                    return member
                continue
            if member.state is State.STOPPED:
                continue
            try:
                await member.start()
            except StartFailed as error:
                log.warning("restart of %r failed: %s", member.name, error.cause.summary)
                member.cause = error.cause
                return member
            except Exception as error:  # e.g. no memory for its ring: as much a failed start
                log.exception("restart of %r failed", member.name)
                member.cause = Cause(f"{type(error).__name__}: {error}")
                return member
        return next((m for m in members if isinstance(m, Record) and m.state is State.DOWN), None)

    def _reset_budgets(self) -> None:
        """A supervisor that is started anew forgets what its members had used up."""
        self._budget = Budget(self._budget.max_deaths, self._budget.within_s)
        for member in self._members:
            if isinstance(member, Record):
                member.budget = Budget(member.budget.max_deaths, member.budget.within_s)
            else:
                member._own_budget = Budget(member._own_budget.max_deaths, member._own_budget.within_s)

    def _affected(self, member: Record | Supervisor) -> list[Record | Supervisor]:
        if self._strategy == "one_for_one":
            return [member]
        first = 0 if self._strategy == "one_for_all" else self._members.index(member)
        return [
            m
            for m in self._members[first:]
            if m is member or not isinstance(m, Record) or not (m.has_ended or m.child.restart.kind == "temporary")
        ]

    def _delay_s(self, policy: Restart, attempt: int) -> float:
        delay_s: float = min(policy.backoff_s * 2.0 ** (attempt - 1), policy.max_backoff_s)
        return delay_s * (1 + 0.2 * self._random.random())

    async def _exhausted(self, member: Record | Supervisor, cause: Cause) -> None:
        """A member's own budget is used up."""
        if self._parent is not None:
            if isinstance(member, Record):
                member.cause = cause
            await self._fail(cause)
        elif isinstance(member, Supervisor):
            member._give_up_members(cause)
        else:
            member.give_up(cause)

    async def _fail(self, cause: Cause) -> None:
        """This supervisor fails: its members are stopped, and its own supervisor decides."""
        assert self._parent is not None
        log.error("supervisor %r fails: %s", self.name, cause.summary)
        self.failure = cause
        await self._cancel_repairs()
        await self._stop_members(self._members, f"supervisor {self.name!r} failed", 5.0, for_good=False)
        if self.restart.kind == "temporary":
            self._give_up_members(cause)
        else:
            self._parent._repair(self)

    def _give_up_members(self, cause: Cause) -> None:
        self.failure = cause
        for member in self._members:
            if isinstance(member, Supervisor):
                member._give_up_members(cause)
            elif not member.has_ended:
                member.give_up(cause)


def _log_failure(restart: asyncio.Task[None]) -> None:
    """Of a restart whose caller has gone."""
    if not restart.cancelled() and (error := restart.exception()) is not None:
        log.warning("%s failed: %s", restart.get_name(), error)


def _is_text(name: str) -> bool:
    """Whether it can travel, and be a process's title."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False
