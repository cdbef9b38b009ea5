"""A supervisor at work: its members in order, what the death of one means, how they are stopped. OTP's model.

`Supervisor` is what users see of it. A branch is itself a member of the branch above it; the root's has none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal

from . import platform
from .directory import Directory
from .errors import ActorError, Cause, ResourcesExhausted, StartFailed
from .events import Restarting
from .failure import summary_of, type_name_of
from .host import Child
from .member import Budget, Member, State
from .placement import Restart
from .record import Record
from .root_node import RootNode
from .tasks import awaited, ended, settled

log = logging.getLogger("ringcast.actors")

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
RESTART_STOP_TIMEOUT_S: Final = 5.0  # for members that are stopped because another one died
FIRST_SCARCITY_DELAY_S, MAX_SCARCITY_DELAY_S = 0.1, 5.0  # before a start that found no resources is tried again


class Branch(Member):
    """See the module. ``parent`` is the branch above."""

    def __init__(
        self,
        name: str,
        root: RootNode,
        directory: Directory,
        *,
        parent: Branch | None,
        strategy: Strategy = "one_for_one",
        max_restarts: int = 5,
        within_s: float = 60.0,
        restart: Restart = Restart(),  # noqa: B008 (a frozen value)
    ) -> None:
        super().__init__(name, restart)
        self.root = root
        self.directory = directory
        self.parent = parent
        self._strategy = strategy
        self._budget = Budget(max_restarts, within_s)  # of restarts of members
        self._members: dict[Member, None] = {}  # in the order of their first start
        self._repairs: dict[int, asyncio.Task[None]] = {}
        self._broken: list[Member] = []
        self._ending: asyncio.Task[None] | None = None
        self._random = platform.current().random()  # jitter only
        self.incarnation = 1
        self._tell_ready()

    def check_open(self) -> None:
        """`ActorError` if it takes no new members, `NotInSystem` on another loop than the system's."""
        self.root.check_usable()
        if self.state is not State.READY:
            raise ActorError(f"supervisor {self.name!r} has {'stopped' if self.state is State.STOPPED else 'failed'}")

    def __contains__(self, member: Member) -> bool:
        return member in self._members

    # Members.

    async def spawn(self, make_child: Callable[[int], Child]) -> Record:
        """Start an actor; see `Supervisor.spawn`. A caller that is cancelled leaves nothing behind."""
        self.check_open()
        record = self.directory.enter(lambda actor_id: Record(make_child(actor_id), self.root, self.directory, self))
        self._members[record] = None
        start = self.root.tasks.start(self._start_new(record), f"{record.name}: spawn")
        cancellation = await ended(start, start.cancel)
        if cancellation is not None:
            if not start.cancelled() and start.exception() is None:  # it was up a moment before
                await settled(self.root.tasks.start(record.discard(_CANCELLED), f"{record.name}: discard"))
            raise cancellation
        return start.result()

    async def _start_new(self, record: Record) -> Record:
        try:
            await record.start()
            if record.state is State.STOPPED:
                raise StartFailed(record.name, record.cause)
        except BaseException as error:
            cause = error.cause if isinstance(error, StartFailed) else _CANCELLED
            await settled(self.root.tasks.start(record.discard(cause), f"{record.name}: discard"))
            raise
        return record

    def add(self, below: Branch) -> None:
        """A supervisor becomes a member."""
        self._members[below] = None

    def forget(self, member: Member) -> None:
        """The actor has ended for good: it is removed from the members."""
        self._members.pop(member, None)

    async def restart_member(self, record: Record, reason: str, timeout_s: float) -> None:
        """Stop one actor in order and start it again, even if the caller does not wait for it."""
        await awaited(self.root.tasks.start(self._restart(record, reason, timeout_s), f"{record.name}: restart"))

    async def _restart(self, record: Record, reason: str, timeout_s: float) -> None:
        plan = Restarting(0, 0.0, planned=True, reason=reason)
        try:
            await record.stop_for_restart(reason, timeout_s, plan)
        except Exception as error:  # its thread did not end, say: it is down all the same
            record.cause = Cause(summary_of(error))
            self.member_died(record, clean=False)
            raise
        await self._start_asked_for(record)
        if record.has_ended:
            raise ActorError(f"{record.name!r} was stopped while it was being restarted")

    async def revive_member(self, member: Member) -> None:
        """Start a member that was given up again, with a fresh budget."""
        if self.state is not State.READY:
            raise ActorError(
                f"{member.name!r} cannot be revived alone: its supervisor {self.name!r} has "
                + ("stopped" if self.state is State.STOPPED else "failed; revive that")
            )
        member.revive()
        await awaited(self.root.tasks.start(self._start_asked_for(member), f"{member.name}: revival"))

    async def _start_asked_for(self, member: Member) -> None:
        """Start a member. If that fails, the strategy goes on as after a death, and the exception is raised."""
        try:
            await member.start()
        except ResourcesExhausted:
            self._repair(member, counts=False)
            raise
        except Exception:
            self.member_died(member, clean=False)
            raise

    # Life.

    async def start(self) -> None:
        if self.state is not State.DOWN:
            return
        self.incarnation += 1
        self._budget.renew()  # a supervisor that is started anew forgets what its members had used up
        for member in self._members:
            member.budget.renew()
        broken = await self._start_members(list(self._members))
        if broken is None:
            if self.state is State.DOWN:
                self._tell_ready()
            return
        member, error = broken
        if error is not None:
            _tell_failed_restart(member, error, set())
        self.cause = member.cause
        if isinstance(error, ResourcesExhausted):
            self.incarnation -= 1
            raise ResourcesExhausted(self.name, self.cause)
        self._tell_died(self.cause)
        raise StartFailed(self.name, self.cause)

    async def stop(self, reason: str, timeout_s: float) -> None:
        if self.state is not State.STOPPED or (self._members and self._ending is None):
            self.state = State.STOPPED
            self.cause = Cause(f"it was stopped: {reason}")
            self._ending = self.root.tasks.start(self._end_for_good(reason, timeout_s), f"{self.name}: stop")
        if self._ending is not None:
            await awaited(self._ending)

    async def _end_for_good(self, reason: str, timeout_s: float) -> None:
        try:
            await self._cancel_repairs()
            await self._stop_members(list(self._members), timeout_s, lambda m, left_s: m.stop(reason, left_s))
        finally:
            self._ending = None
            self._tell_stopped(reason)
            if self.parent is not None:
                self.parent.forget(self)

    async def stop_for_restart(self, reason: str, timeout_s: float, plan: Restarting | None) -> None:
        was_ready = self.state is State.READY
        if was_ready:
            self.state = State.DOWN
            self.cause = Cause(f"it was stopped: {reason}")
        await self._cancel_repairs()
        # Of one that could not be brought back, some members may be up.
        await self._stop_for_restart(list(self._members), reason, timeout_s, plan)
        if was_ready and plan is not None:
            super().announce(plan)
        elif was_ready and not self.has_ended:
            self._tell_died(self.cause)

    def announce(self, event: Restarting, *, again: bool = False) -> None:
        for member in self._members:
            if member.state is State.DOWN:
                member.announce(event, again=again)
        super().announce(event, again=again)

    def give_up(self, cause: Cause) -> None:
        for member in list(self._members):
            member.give_up(cause)
        super().give_up(cause)

    def revive(self) -> None:
        super().revive()
        for member in self._members:
            if member.state is State.FAILED:
                member.revive()

    async def _stop_members(
        self, members: Sequence[Member], timeout_s: float, stop: Callable[[Member, float], Coroutine[Any, Any, None]]
    ) -> None:
        """Stop members, the last started first, within one deadline. What one raises keeps no other from its turn."""
        deadline = time.monotonic() + timeout_s
        raised: list[BaseException] = []
        for member in reversed(members):
            try:
                await stop(member, max(0.0, deadline - time.monotonic()))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                log.error("the stop of %r was cancelled from outside", member.name)  # as asyncio.run does at its end
            except Exception:
                log.exception("stopping %r failed", member.name)
            except BaseException as error:  # an actor's, from its on_stop: it is for the application
                log.error("on_stop of %r raised %s", member.name, type_name_of(error))
                raised.append(error)
        if len(raised) == 1:
            raise raised[0]
        if raised:
            raise BaseExceptionGroup(f"on_stop of {len(raised)} members of supervisor {self.name!r} raised", raised)

    async def _stop_for_restart(
        self, members: Sequence[Member], reason: str, timeout_s: float, plan: Restarting | None
    ) -> None:
        try:
            await self._stop_members(members, timeout_s, lambda m, left_s: m.stop_for_restart(reason, left_s, plan))
        except asyncio.CancelledError:
            raise
        except BaseException:
            log.exception("members of %r were stopped to be started again, which goes on", self.name)

    async def _cancel_repairs(self) -> None:
        for task in list(self._repairs.values()):
            if task is not asyncio.current_task():
                task.cancel()
                cancellation = await ended(task, lambda: None)
                if cancellation is not None:
                    raise cancellation

    # Deaths.

    def member_died(self, member: Member, clean: bool) -> None:
        """It ended by itself; ``member.cause`` says why, ``clean`` whether with exit code 0."""
        kind = member.restart.kind
        if kind == "permanent" or (kind == "transient" and not clean):
            self._repair(member)
        else:
            member.give_up(member.cause)

    def _repair(self, member: Member, *, counts: bool = True) -> None:
        """Begin to bring a dead member back, or let the repair under way take it along.

        If this branch is not up itself, whoever starts it starts the member, too.
        """
        if self.state is not State.READY or member.has_ended:
            return
        key = id(member) if self._strategy == "one_for_one" else 0
        if key in self._repairs:
            self._broken.append(member)
            return
        task = self.root.tasks.start(self._bring_back(member, counts), f"{self.name}: repair of {member.name}")
        self._repairs[key] = task

        def repaired(_: asyncio.Task[None]) -> None:
            del self._repairs[key]
            broken, self._broken = self._broken, []
            for other in broken:  # died when the repair was as good as over
                if other.state is State.DOWN:
                    self._repair(other)

        task.add_done_callback(repaired)

    async def _bring_back(self, member: Member, counts: bool) -> None:
        """Restart a dead member, and those that its death concerns, until all are READY or a budget is exhausted.

        A start that found no resources ``counts`` against no budget: it is tried again later.
        """
        attempt, num_scarce = 0, 0
        told: set[str] = set()
        while True:
            if counts and member.is_excused:
                attempt = member.budget.num_spent() + 1
                delay_s = self._delay_s(member.restart, attempt)
            elif counts:
                attempt = member.budget.spend()
                if attempt > member.budget.max_deaths:
                    await self._exhausted(member, _too_often(member, attempt))
                    return
                spent = self._budget.spend()
                if self.parent is not None and spent > self._budget.max_deaths:
                    await self._fail(self._too_many(member, spent))
                    return
                delay_s = self._delay_s(member.restart, attempt)
            else:
                delay_s = _doubled(FIRST_SCARCITY_DELAY_S, num_scarce, MAX_SCARCITY_DELAY_S)
                num_scarce += 1
                log.warning("%r is started again in %.1f s: %s", member.name, delay_s, member.cause.summary)
            affected = self._affected(member)
            reason = f"{member.name!r} died"
            plan = Restarting(attempt, delay_s, planned=True, reason=reason)
            restarting = Restarting(attempt, delay_s, reason=member.cause.summary)
            if member.state is State.DOWN:
                member.announce(restarting, again=not counts)
            others = [other for other in affected if other is not member or isinstance(other, Branch)]
            await self._stop_for_restart(others, reason, RESTART_STOP_TIMEOUT_S, plan)
            while any(other.state is State.READY for other in affected):
                # Somebody was starting it, and it came up while others were being stopped.
                await self._stop_for_restart(affected, reason, RESTART_STOP_TIMEOUT_S, plan)
            for other in affected:
                other.announce(restarting)
            await asyncio.sleep(delay_s)
            broken = await self._start_members(affected)
            if broken is None:
                return
            member, error = broken
            if error is not None:
                _tell_failed_restart(member, error, told)
            counts = not isinstance(error, ResourcesExhausted)

    async def _start_members(self, members: Sequence[Member]) -> tuple[Member, Exception | None] | None:
        """Start in order; the member that did not start, or did not stay up meanwhile, if there is one, and why."""
        for member in members:
            try:
                await member.start()
            except Exception as error:  # StartFailed; or e.g. arguments that do not travel any more
                return member, error
        return next(((member, None) for member in members if member.state is State.DOWN), None)

    def _affected(self, member: Member) -> list[Member]:
        members = list(self._members)
        if self._strategy == "one_for_one" or member not in self._members:
            return [member]
        first = 0 if self._strategy == "one_for_all" else members.index(member)
        return [
            other
            for other in members[first:]
            if other is member
            or not (other.has_ended or (isinstance(other, Record) and other.restart.kind == "temporary"))
        ]

    def _delay_s(self, policy: Restart, attempt: int) -> float:
        return _doubled(policy.backoff_s, attempt - 1, policy.max_backoff_s) * (1 + 0.2 * self._random.random())

    def _too_many(self, member: Member, spent: int) -> Cause:
        text = (
            f"supervisor {self.name!r} restarted members {spent} times within {self._budget.within_s:g} s, "
            f"the last time because of {member.name!r}: {member.cause.one_line()}"
        )
        return Cause(text, member.cause.exit_code, stderr_tail=str(member.cause))

    async def _exhausted(self, member: Member, cause: Cause) -> None:
        """A member's own budget is used up."""
        if self.parent is not None:
            await self._fail(cause)
            return
        if isinstance(member, Branch):  # what of it could be started is up
            await member.stop_for_restart("it is given up", RESTART_STOP_TIMEOUT_S, None)
        member.give_up(cause)

    async def _fail(self, cause: Cause) -> None:
        """This supervisor fails: its members are stopped, and its own supervisor decides."""
        assert self.parent is not None
        log.error("supervisor %r fails: %s", self.name, cause.summary)
        self.state = State.DOWN
        self.cause = cause
        await self._cancel_repairs()
        await self._stop_for_restart(
            list(self._members), f"supervisor {self.name!r} failed", RESTART_STOP_TIMEOUT_S, None
        )
        if self.has_ended:
            return
        self._tell_died(cause)
        self.parent.member_died(self, clean=False)


def _tell_failed_restart(member: Member, error: Exception, told: set[str]) -> None:
    """Log it, but not again for the same reason: ``told`` are those of this repair."""
    reason = f"{member.name}: {member.cause.error_line() or member.cause.exit_code}"
    known, is_expected = reason in told, isinstance(error, StartFailed)
    told.add(reason)
    log.log(
        logging.DEBUG if known else logging.WARNING if is_expected else logging.ERROR,
        "restart of %r failed: %s",
        member.name,
        member.cause.one_line(),
        exc_info=None if is_expected else error,
    )


def _doubled(first_s: float, times: int, max_s: float) -> float:
    """A delay that was doubled so many times, and is no longer than ``max_s``."""
    return min(first_s * 2.0 ** min(times, 64), max_s)  # a float ends at 2 to the 1,024th


_CANCELLED: Final = Cause("its start was cancelled")


def _too_often(member: Member, attempt: int) -> Cause:
    cause = member.cause
    text = f"it died {attempt} times within {member.budget.within_s:g} s, the last time: {cause.one_line()}"
    return Cause(text, cause.exit_code, stderr_tail=str(cause))
