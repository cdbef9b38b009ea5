"""Several actors addressed together: one encode and one ring write for all members that live in other processes.

Made by `System.spawn_group`, or from references that one has. A group is a list of references and no more: each
member is supervised as an actor of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

from .actor import Actor, BlockingActor, Msg
from .calls import Calls, ReplyFuture
from .errors import ActorError, NotInSystem
from .node import Node
from .ref import Ref

A = TypeVar("A", bound=Actor | BlockingActor)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ok(Generic[R]):
    """A member's answer in a partial gather."""

    value: R


@dataclass(frozen=True, slots=True)
class Err:
    """A member's failure in a partial gather."""

    error: ActorError


class Group(Generic[A]):
    """Members in rank order. ``group[i]`` is a reference, ``group[i:j]`` a group; ``len`` and iteration as expected."""

    def __init__(self, members: Sequence[A]) -> None:
        self._members = list(members)
        self._refs: list[Ref] = []
        for member in members:
            ref: object = member  # typed as the actor's class, as `spawn` types it
            if not isinstance(ref, Ref):
                raise TypeError(f"a group is made of references, not of {type(member).__name__}")
            self._refs.append(ref)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[A]:
        return iter(self._members)

    @overload
    def __getitem__(self, index: int) -> A: ...
    @overload
    def __getitem__(self, index: slice) -> Group[A]: ...
    def __getitem__(self, index: int | slice) -> A | Group[A]:
        return Group(self._members[index]) if isinstance(index, slice) else self._members[index]

    def ask(self, msg: Msg[R], *, reply_from: int | None = None) -> list[asyncio.Future[R]]:
        """Send to every member; a future for each, in rank order. They end in any order; nothing else is tied to them.

        With ``reply_from=rank`` only that member's future ends with a value; another's ends if it fails.
        """
        self._check_rank(reply_from)
        return list(self._calls().ask_group(self._refs, msg.method, msg.args, msg.kwargs, reply_from))

    def cast(self, msg: Msg[Any]) -> None:
        """Tell every member. `MailboxFull` or `ActorDied` if some member cannot take it (others may have it then)."""
        self._calls().tell_group(self._refs, msg.method, msg.args, msg.kwargs)

    @overload
    async def gather(self, msg: Msg[R], *, partial: Literal[False] = False) -> list[R]: ...
    @overload
    async def gather(self, msg: Msg[R], *, partial: Literal[True]) -> list[Ok[R] | Err]: ...
    @overload
    async def gather(self, msg: Msg[R], *, reply_from: int) -> R: ...
    async def gather(self, msg: Msg[Any], *, partial: bool = False, reply_from: int | None = None) -> Any:
        """Ask every member and wait for the answers, in rank order.

        The first failure cancels the other members' calls and is raised. ``partial=True`` waits for all and returns
        `Ok` or `Err` for each. ``reply_from=rank`` returns that member's answer alone, as soon as it is there; a
        failure of any member before that is raised.
        """
        self._check_rank(reply_from)
        calls = self._calls()
        futures = calls.ask_group(self._refs, msg.method, msg.args, msg.kwargs, reply_from)
        if partial:
            await self._wait(futures, asyncio.ALL_COMPLETED)
            return [_outcome(future) for future in futures]
        wanted = futures if reply_from is None else [futures[reply_from]]
        open_futures = set(futures)
        while any(future in open_futures for future in wanted):
            done = await self._wait(list(open_futures), asyncio.FIRST_COMPLETED)
            open_futures -= done
            for future in done:
                if future.cancelled() or future.exception() is not None:
                    self._give_up(open_futures)
                    future.result()
        calls.forget(list(open_futures))
        results = [future.result() for future in wanted]
        return results if reply_from is None else results[0]

    async def _wait(self, futures: Sequence[ReplyFuture], return_when: str) -> set[ReplyFuture]:
        if not futures:
            return set()
        try:
            done, _ = await asyncio.wait(futures, return_when=return_when)
        except asyncio.CancelledError:
            self._give_up(futures)
            raise
        return done

    def _give_up(self, futures: Sequence[ReplyFuture] | set[ReplyFuture]) -> None:
        for future in futures:
            future.cancel()

    def _check_rank(self, rank: int | None) -> None:
        if rank is not None and not 0 <= rank < len(self._refs):
            raise ValueError(f"reply_from={rank}: the group has ranks 0 to {len(self._refs) - 1}")

    def _calls(self) -> Calls:
        node = self._refs[0]._sender if self._refs else None
        if not isinstance(node, Node):
            raise NotInSystem("a group without members, or of references bound to no system, cannot be asked")
        return node.calls


def _outcome(future: ReplyFuture) -> Ok[Any] | Err:
    error = future.exception()
    if error is None:
        return Ok(future.result())
    if isinstance(error, ActorError):
        return Err(error)
    raise error
