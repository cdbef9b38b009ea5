"""A supervisor as its users see it: starts members, and supervisors below it. What deaths mean is `branch`'s work.

A supervisor lives in the root's process and is no process of its own, so it cannot die by itself; it fails when its
members die too often, and then its own supervisor decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from .actor import Actor, BlockingActor
from .branch import Branch, Strategy
from .group import Group
from .host import Child
from .placement import Restart, Spec, Where, check_budget, check_spawn, here, process
from .ref import Ref, number_of
from .tasks import ended, settled

A = TypeVar("A", bound=Actor | BlockingActor)


class Supervisor:
    """Made by `System.supervise` or `Supervisor.supervise`; a system has one at its root.

    When a member dies and its policy wants it back, ``one_for_one`` restarts it alone, ``one_for_all`` all members,
    ``rest_for_one`` it and those started after it. A member that exhausts its own budget (`Restart`), or more than
    ``max_restarts`` restarts within ``within_s`` seconds here, and this supervisor fails: it stops what it has, and
    its own ``restart`` policy says whether its supervisor starts it again. The root's supervisor never fails as a
    whole: there, only the member is given up. `System.watch` shows its life.
    """

    def __init__(self, branch: Branch) -> None:
        self._branch = branch

    @property
    def name(self) -> str:
        return self._branch.name

    def __repr__(self) -> str:
        return f"<Supervisor {self.name!r}>"

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
        process lives. Cancelling ends the start, and its process, before the cancellation leaves. ``name`` is unique
        among the living.
        """
        check_spawn(spec, name, where, restart)

        def make(actor_id: int) -> Child:
            called = name or f"{spec.cls.__name__}-{number_of(actor_id)}"
            return Child(actor_id, called, spec, where, restart)

        record = await self._branch.spawn(make)
        return cast(A, Ref(record.child.actor_id, record.name, self._branch.root, spec.cls))

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
        self._branch.check_open()
        names: Sequence[str | None] = [None if name is None else f"{name}-{rank}" for rank in range(len(listed))]
        tasks = self._branch.root.tasks
        starts = [
            tasks.start(self.spawn(spec, name=member, where=where, restart=restart), f"{member}: spawn")
            for spec, member in zip(listed, names, strict=True)
        ]
        group = tasks.start(self._all_or_none(starts), f"{self.name}: spawn of a group")
        cancellation = await ended(group, group.cancel)
        if cancellation is not None:
            if not group.cancelled() and group.exception() is None:  # it was up a moment before
                await settled(tasks.start(self._end_group(group.result()), f"{self.name}: end of a group"))
            raise cancellation
        return group.result()

    async def _all_or_none(self, starts: Sequence[asyncio.Task[A]]) -> Group[A]:
        try:
            return Group(await asyncio.gather(*starts))
        except BaseException:
            for start in starts:
                start.cancel()
            await settled(self._branch.root.tasks.start(self._undo(starts), f"{self.name}: end of a group"))
            raise

    async def _undo(self, starts: Sequence[asyncio.Task[A]]) -> None:
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        await self._end_group([outcome for outcome in outcomes if isinstance(outcome, Ref)])

    async def _end_group(self, members: Iterable[object]) -> None:
        for member in members:
            assert isinstance(member, Ref)
            record = self._branch.directory.record(member)
            if record is not None:
                await record.stop("another member of its group did not start", 1.0)

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
        self._branch.check_open()
        if strategy not in ("one_for_one", "one_for_all", "rest_for_one"):
            raise ValueError(f"strategy is {strategy!r}: use 'one_for_one', 'one_for_all' or 'rest_for_one'")
        check_budget(f"supervise({name!r}): ", max_restarts, within_s)
        below = Branch(
            name,
            self._branch.root,
            self._branch.directory,
            parent=self._branch,
            strategy=strategy,
            max_restarts=max_restarts,
            within_s=within_s,
            restart=restart,
        )
        self._branch.add(below)
        return Supervisor(below)

    async def stop(self, reason: str = "its supervisor was stopped", timeout_s: float = 5.0) -> None:
        """Stop every member, the last started first, within one deadline. It goes on if the caller does not wait."""
        self._branch.root.check_usable()
        await self._branch.stop(reason, timeout_s)
