"""Several actors addressed together: one encode and one ring write for all members that live in other processes.

Made by `System.spawn_group`, or from references that one has. A group is a list of references and no more: each
member is supervised as an actor of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
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
        calls = self._calls()
        calls.on_loop(lambda: calls.tell_group(self._refs, msg.method, msg.args, msg.kwargs))

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
            await self._wait(futures, futures, None)
            return [_outcome(future) for future in futures]
        wanted = futures if reply_from is None else [futures[reply_from]]
        failed = await self._wait(futures, wanted, _has_failed)
        if failed is not None:
            self._give_up(futures)
            failed.result()
        calls.forget([future for future in futures if not future.done()])
        results = [future.result() for future in wanted]
        return results if reply_from is None else results[0]

    async def _wait(
        self,
        futures: Sequence[ReplyFuture],
        wanted: Sequence[ReplyFuture],
        ends_all: Callable[[ReplyFuture], bool] | None,
    ) -> ReplyFuture | None:
        """Until all that are wanted have ended, or any of ``futures`` so that ``ends_all``: that one.

        One wake-up of the caller, where `asyncio.wait` would take one for each answer.
        """
        over: asyncio.Future[ReplyFuture | None] = asyncio.get_running_loop().create_future()
        left = set(wanted)

        def ended(future: asyncio.Future[Any]) -> None:
            assert isinstance(future, ReplyFuture)
            left.discard(future)
            fails = ends_all is not None and ends_all(future)  # asked of every one: asyncio logs errors that nobody saw
            if over.done():
                return
            if fails:
                over.set_result(future)
            elif not left:
                over.set_result(None)

        if not futures:
            return None
        for future in futures:
            future.add_done_callback(ended)
        try:
            return await over
        except asyncio.CancelledError:
            self._give_up(futures)
            raise

    def _give_up(self, futures: Sequence[ReplyFuture]) -> None:
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


def _has_failed(future: ReplyFuture) -> bool:
    return future.cancelled() or future.exception() is not None


def _outcome(future: ReplyFuture) -> Ok[Any] | Err:
    error = future.exception()
    if error is None:
        return Ok(future.result())
    if isinstance(error, ActorError):
        return Err(error)
    raise error
