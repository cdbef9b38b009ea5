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
from .calls import Calls
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
        """Send to every member; returns a future for each, in rank order. The futures end in any order.

        With ``reply_from=rank`` only that member's future ends with a value. Until then the future of another member
        that fails raises; later outcomes of the others are discarded.
        """
        calls = self._calls_for(msg)
        self._check_rank(reply_from)
        futures = calls.futures(len(self._refs))
        calls.ask_group(futures, self._refs, msg.method, msg.args, msg.kwargs, reply_from)
        if reply_from is not None:  # the others may never be answered: they are not kept for ever
            others = [*futures[:reply_from], *futures[reply_from + 1 :]]
            futures[reply_from].add_done_callback(lambda _: calls.forget(others))
        return list(futures)

    def cast(self, msg: Msg[Any]) -> None:
        """Tell every member. `MailboxFull` or `ActorDied` if some member cannot take it (others may have it then)."""
        calls = self._calls_for(msg)
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
        calls = self._calls_for(msg)
        self._check_rank(reply_from)
        gathering = _Gathering(calls, len(self._refs), partial, reply_from)
        calls.ask_group(gathering.places, self._refs, msg.method, msg.args, msg.kwargs, reply_from)
        await gathering.wait()
        return gathering.outcomes if reply_from is None else gathering.outcomes[reply_from]

    def _check_rank(self, rank: int | None) -> None:
        if rank is not None and not 0 <= rank < len(self._refs):
            raise ValueError(f"reply_from={rank}: the group has ranks 0 to {len(self._refs) - 1}")

    def _calls_for(self, msg: object) -> Calls:
        if not isinstance(msg, Msg):
            raise TypeError(f"a group takes a message made by Class.method.msg(...), not {msg!r}")
        node = self._refs[0]._sender if self._refs else None
        if not isinstance(node, Node):
            raise NotInSystem("a group without members, or of references bound to no system, cannot be asked")
        return node.calls


class _Place:
    """Waits for one member's answer."""

    __slots__ = ("_gathering", "_rank", "call_id", "has_ended")
    call_id: int

    def __init__(self, gathering: _Gathering, rank: int) -> None:
        self._gathering = gathering
        self._rank = rank
        self.has_ended = False

    def end(self, value: Any, error: ActorError | None) -> None:
        self.has_ended = True
        self._gathering.ended(self._rank, value, error)


class _Gathering:
    """The answers to one gather. Its caller is woken once: by the last answer that it wants, or by a failure."""

    def __init__(self, calls: Calls, count: int, partial: bool, reply_from: int | None) -> None:
        self.places = [_Place(self, rank) for rank in range(count)]
        self.outcomes: list[Any] = [None] * count
        self._calls = calls
        self._partial = partial
        self._reply_from = reply_from
        self._left = count
        self._failure: ActorError | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ended(self, rank: int, value: Any, error: ActorError | None) -> None:
        """A member answered."""
        if self._over.done():
            return
        self._left -= 1
        if self._partial:
            self.outcomes[rank] = Ok(value) if error is None else Err(error)
        elif error is None:
            self.outcomes[rank] = value
        else:
            self._failure = error
        if self._left == 0 or rank == self._reply_from or self._failure is not None:
            self._over.set_result(None)

    async def wait(self) -> None:
        """Until all that is wanted is there; a failure, and leaving, cancels what has not ended."""
        places, self.places = self.places, []  # they and we hold each other, and answers may be views of shared memory
        try:
            await self._over
            if self._failure is None:
                if self._left:
                    self._calls.forget([place for place in places if not place.has_ended])
                return
        except BaseException:
            self._give_up(places)
            raise
        self._give_up(places)
        failure, self._failure = self._failure, None
        try:
            raise failure
        finally:
            del failure

    def _give_up(self, places: list[_Place]) -> None:
        self._calls.cancel_all(places)
        for place in places:
            place.has_ended = True
