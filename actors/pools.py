"""Pools: several actors of one kind behind one reference, by load or by key, with back-pressure.

Made by `System.spawn_pool`, or by `pool` from references that one has. A pool belongs to the process and the event loop
that made it: it counts its own calls. Each member is supervised as an actor of its own; the pool restarts nobody.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import itertools
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, cast

from .actor import Actor, BlockingActor
from .context import Watch
from .errors import ActorDied, CallCancelled, Cause, MailboxFull
from .events import Event, GaveUp, Ready, Stalled, Stopped
from .group import Group
from .placement import Spec
from .ref import Ref, sender_of

A = TypeVar("A", bound=Actor | BlockingActor)
Key = str | bytes | int
_MAX_PENDING = 16
_LEAVE_OUT_S: Final = 1.0  # a member whose end a call has noticed, unless an event tells more


@dataclass(frozen=True, slots=True)
class PoolMember:
    """One member in `PoolStatistics`."""

    name: str
    is_up: bool
    in_flight: int  # calls and streams of this pool that it has not ended
    num_sent: int  # calls, streams and casts since the pool was made


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool is doing now."""

    waiting: int  # calls that wait for a member
    members: list[PoolMember]


class _Member:
    """A member, and what the pool knows of it."""

    def __init__(self, ref: Ref, max_pending: int) -> None:
        self.ref = ref
        self.is_up = True  # until something else is heard
        self.end: Cause | None = None  # why it will not be started again
        self.cause = Cause("it is down")
        self.in_flight = 0
        self.num_sent = 0
        self.waiting: deque[_Waiter] = deque()  # for this very member
        self.trust_again: asyncio.TimerHandle | None = None  # it is left out since a call to it failed
        self._max_pending = max_pending

    @property
    def is_free(self) -> bool:
        return self.is_up and self.in_flight < self._max_pending


class _Waiter(asyncio.Future[Any]):
    """Who waits for a free member: in ``queue`` from the moment at which it is made until its turn or its end."""

    def __init__(self, queue: deque[_Waiter], number: int) -> None:
        super().__init__()
        self.number = number
        self._queue = queue
        queue.append(self)

    def turn(self, member: _Member) -> None:
        """It has left the queue, and a place on that member is taken for it."""
        self.set_result(member)

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and self in self._queue:
            self._queue.remove(self)
        return cancelled


class _WaitingCall(_Waiter):
    """A call that waits for a member, and then for the answer, which is its result. ``send`` sends it there."""

    def __init__(self, queue: deque[_Waiter], number: int, send: Callable[[_Member], asyncio.Future[Any]]) -> None:
        super().__init__(queue, number)
        self._send = send
        self._context = contextvars.copy_context()  # its deadline, trace and chain are its caller's
        self._answer: asyncio.Future[Any] | None = None

    def turn(self, member: _Member) -> None:
        try:
            self._answer = self._context.run(self._send, member)
        except BaseException as error:  # the caller's mistake, such as an argument that cannot be sent
            self.set_exception(error)
        else:
            self._answer.add_done_callback(self._answered)

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and self._answer is not None:
            self._answer.cancel(msg)
        return cancelled

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if self.done():
            return
        if answer.cancelled():
            super().cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(answer.result())


class Pool(Generic[A]):
    """``await pool.any.work(x)`` asks the least loaded member, ``await pool.at(key).work(x)`` always the same one.

    Both are typed as the actor's class; casts and streams work, too. At most ``max_pending`` calls and streams are in
    flight at a member; further ones wait in order, and as long as their callers do. With ``max_waiting`` calls waiting
    a call raises `MailboxFull`.
    """

    def __init__(self, members: Sequence[A], name: str, max_pending: int, max_waiting: int | None) -> None:
        check_bounds(max_pending, max_waiting)
        self.name = name
        self._group = Group(members)
        if not members:
            raise ValueError(f"pool {name!r} has no members: give one or more")
        self._members = [_Member(cast(Ref, member), max_pending) for member in members]
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiter] = deque()  # for any member
        self._numbers = itertools.count()
        self._first = 0  # where the search for the least loaded one begins
        cls = self._members[0].ref._cls  # names that the actors do not have are rejected, as by their references
        self._any = Ref(0, name, _Choice(self, None), cls)
        self._at = [Ref(0, f"{name}[{i}]", _Choice(self, member), cls) for i, member in enumerate(self._members)]
        self._watch()

    @property
    def any(self) -> A:
        """The member with the fewest calls in flight from this pool, chosen for each call; equal ones take turns.

        Members that are down are left out. If all are, calls wait until one is READY again; once all have been given up
        or stopped, calls end with `ActorDied`.
        """
        return cast(A, self._any)

    def at(self, key: Key) -> A:
        """The member that ``key`` belongs to, by rendezvous hashing of the members' names: the same in every process,
        and whatever restarts.

        While that member is down, its calls wait until it is READY again; once it has been given up or stopped, they
        end with `ActorDied`. No other member gets them, because only that one has the state of the key.
        """
        data = _bytes_of(key)
        best = max(range(len(self._members)), key=lambda index: _weight(data, self._members[index].ref._name))
        return cast(A, self._at[best])

    @property
    def members(self) -> Group[A]:
        """All members, as a group: to stop or watch them, or to ask every one of them."""
        return self._group

    def __len__(self) -> int:
        return len(self._members)

    def statistics(self) -> PoolStatistics:
        """The load, as this pool sees it."""
        members = [PoolMember(m.ref._name, m.is_up, m.in_flight, m.num_sent) for m in self._members]
        return PoolStatistics(self._num_waiting(), members)

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} of {len(self._members)}>"

    # Choosing and waiting. ``wanted`` is the member that a call has to go to; None: any.

    def _take(self, wanted: _Member | None) -> _Member | None:
        """A member that is free, with a place on it taken; None if the call has to wait. `ActorDied` if it would wait
        for ever, `MailboxFull` if too many wait.
        """
        candidates = self._members if wanted is None else [wanted]
        if all(member.end is not None for member in candidates):
            raise self._death(candidates[0])
        for member in self._by_load(candidates):
            if member.is_free:
                member.in_flight += 1
                return member
        if self._max_waiting is not None and (num_waiting := self._num_waiting()) >= self._max_waiting:
            raise MailboxFull(
                f"pool {self.name!r} is full: every member that is up has max_pending calls in flight, and "
                f"{num_waiting} calls wait (max_waiting={self._max_waiting}): try again later"
            )
        return None

    def _by_load(self, candidates: Sequence[_Member]) -> list[_Member]:
        """The least loaded one first; equals take turns."""
        if len(candidates) == 1:
            return list(candidates)
        first = self._first = (self._first + 1) % len(candidates)
        return sorted([*candidates[first:], *candidates[:first]], key=lambda member: member.in_flight)

    def _queue(self, wanted: _Member | None) -> deque[_Waiter]:
        return self._waiting if wanted is None else wanted.waiting

    def _num_waiting(self) -> int:
        return len(self._waiting) + sum(len(member.waiting) for member in self._members)

    async def _turn(self, wanted: _Member | None) -> _Member:
        """A member that is free, waiting for it if need be; a place on it is taken."""
        member = self._take(wanted)
        if member is not None:
            return member
        waiter = _Waiter(self._queue(wanted), next(self._numbers))
        try:
            return cast(_Member, await waiter)
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave(waiter.result())  # its turn came, and then it was cancelled
            raise

    def _leave(self, member: _Member) -> None:
        """A call or stream has ended there."""
        member.in_flight -= 1
        self._serve(member)

    def _serve(self, member: _Member) -> None:
        """Let calls that wait go to a member that has places, in the order in which they came."""
        while member.is_free:
            queues = [queue for queue in (self._waiting, member.waiting) if queue]
            if not queues:
                return
            waiter = min(queues, key=lambda queue: queue[0].number).popleft()
            member.in_flight += 1
            waiter.turn(member)

    def _death(self, member: _Member) -> ActorDied:
        return ActorDied(member.ref._name, member.end or member.cause)

    # Sending.

    def _ask(
        self, wanted: _Member | None, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Awaitable[Any]:
        try:
            member = self._take(wanted)
        except ActorDied as death:
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            failed.set_exception(death)
            return failed
        if member is not None:
            return self._send(member, method, args, kwargs)
        return _WaitingCall(
            self._queue(wanted), next(self._numbers), lambda member: self._send(member, method, args, kwargs)
        )

    def _send(self, member: _Member, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        """Send to a member on which a place is taken; it is given back when the call ends."""
        try:
            answer = asyncio.ensure_future(sender_of(member.ref).ask(member.ref, method, args, kwargs))
        except BaseException:
            self._leave(member)
            raise
        member.num_sent += 1
        answer.add_done_callback(lambda _: self._ended(member, answer))
        return answer

    def _ended(self, member: _Member, answer: asyncio.Future[Any]) -> None:
        """A call to a member has ended."""
        if not answer.cancelled():
            self._learn_from(member, answer.exception())
        self._leave(member)

    def _to_tell(self, wanted: _Member | None) -> list[_Member]:
        """The members that may be told, the best first. `ActorDied` if there is none."""
        candidates = self._members if wanted is None else [wanted]
        up = [member for member in self._by_load(candidates) if member.is_up]
        if not up:
            raise self._death(candidates[0])
        return up

    def _tell(self, wanted: _Member | None, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        members = self._to_tell(wanted)
        for member in members:
            try:
                sender_of(member.ref).tell(member.ref, method, args, kwargs)
            except (MailboxFull, ActorDied) as error:
                self._learn_from(member, error)
                if member is members[-1]:
                    raise
            else:
                member.num_sent += 1
                return

    # Lives of the members.

    def _watch(self) -> None:
        """Follow what becomes of the members, as long as the pool is used."""
        us = weakref.ref(self)
        tasks = []
        for index, member in enumerate(self._members):
            watch_of = getattr(sender_of(member.ref), "watch", None)
            if watch_of is not None:  # a stand-in in a test is always up
                follower = _follow(us, index, watch_of(member.ref))
                tasks.append(asyncio.create_task(follower, name=f"{self.name}: watch", context=contextvars.Context()))
        weakref.finalize(self, _cancel_all, tasks).atexit = False

    def _learn_from(self, member: _Member, error: BaseException | None) -> None:
        """A call's end may be the first that is heard of a member's end: calls that wait must not follow it there."""
        if not member.is_up or not isinstance(error, ActorDied | CallCancelled):
            return
        if isinstance(error, ActorDied):
            member.cause = error.cause
        member.is_up = False
        member.trust_again = asyncio.get_running_loop().call_later(_LEAVE_OUT_S, self._trust_again, member)

    def _trust_again(self, member: _Member) -> None:
        """No event has told more since: it lives, and was out of reach, or it takes long to stop."""
        member.trust_again = None
        member.is_up = True
        self._serve(member)

    def _note(self, member: _Member, event: Event) -> None:
        if isinstance(event, Stalled):
            return
        if member.trust_again is not None:
            member.trust_again.cancel()
            member.trust_again = None
        member.is_up = isinstance(event, Ready)
        if isinstance(event, Ready):
            member.end = None
            self._serve(member)
            return
        member.cause = getattr(event, "cause", member.cause)
        if isinstance(event, GaveUp | Stopped):
            member.end = event.cause if isinstance(event, GaveUp) else Cause("it was stopped")
            self._fail(member.waiting, member)
            if all(other.end is not None for other in self._members):
                self._fail(self._waiting, member)

    def _fail(self, queue: deque[_Waiter], member: _Member) -> None:
        while queue:
            queue.popleft().set_exception(self._death(member))


class _Choice:
    """What `Pool.any` and `Pool.at` send through: a member is chosen for each message."""

    def __init__(self, pool: Pool[Any], wanted: _Member | None) -> None:
        self._pool = pool
        self._wanted = wanted

    def ask(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        return self._pool._ask(self._wanted, method, args, kwargs)

    def tell(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._pool._tell(self._wanted, method, args, kwargs)

    async def tell_waiting(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        member = self._pool._to_tell(self._wanted)[0]
        await sender_of(member.ref).tell_waiting(member.ref, method, args, kwargs)
        member.num_sent += 1

    def open(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _PoolStream(self._pool, self._wanted, method, args, kwargs)


class _PoolStream(AbstractAsyncContextManager[Any]):
    """A stream of a member that is chosen when the block is entered; it holds its place until the block is left."""

    def __init__(
        self, pool: Pool[Any], wanted: _Member | None, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._pool = pool
        self._wanted = wanted
        self._call = (method, args, kwargs)
        self._member: _Member | None = None
        self._reader: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> Any:
        pool = self._pool
        member = await pool._turn(self._wanted)
        try:
            self._reader = sender_of(member.ref).open(member.ref, *self._call)
            items = await self._reader.__aenter__()
        except BaseException as error:
            pool._learn_from(member, error)
            pool._leave(member)
            raise
        member.num_sent += 1
        self._member = member
        return items

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._reader is not None and self._member is not None
        try:
            return await self._reader.__aexit__(kind, error, trace)
        finally:
            if isinstance(error, ActorDied) and error.name == self._member.ref._name:
                self._pool._learn_from(self._member, error)
            self._pool._leave(self._member)


def pool(
    members: Iterable[A], *, name: str | None = None, max_pending: int = _MAX_PENDING, max_waiting: int | None = None
) -> Pool[A]:
    """A pool of actors that run already: a `Group`, or references of one kind. `System.spawn_pool` starts them, too.

    Args:
        members: references; in a handler, those that it was given.
        name: for error messages; by default the first member's.
        max_pending: calls and streams of this pool in flight at a member. The first runs, the others wait in its
            mailbox, so that it is never idle between two; a small number spreads work of uneven length best.
        max_waiting: calls that may wait because every member has ``max_pending``; None: any number.

    Raises:
        ValueError: there are no members, or a bound is out of range.
        TypeError: a member is no reference.
    """
    refs = list(members)
    if any(isinstance(member, Spec) for member in refs):
        raise TypeError("a pool is made of references: start specs by `await system.spawn_pool([rt.spec(...), ...])`")
    if not refs:
        raise ValueError("a pool needs one or more members: it was given none")
    first: object = refs[0]
    return Pool(refs, name or f"{first._name if isinstance(first, Ref) else first}, ...", max_pending, max_waiting)


def check_bounds(max_pending: object, max_waiting: object) -> None:
    """``ValueError`` unless a pool can have these bounds."""
    if isinstance(max_pending, bool) or not isinstance(max_pending, int) or max_pending < 1:
        raise ValueError(f"max_pending is {max_pending!r}: give a whole number of 1 or more")
    if max_waiting is not None and (
        isinstance(max_waiting, bool) or not isinstance(max_waiting, int) or max_waiting < 0
    ):
        raise ValueError(f"max_waiting is {max_waiting!r}: give a whole number of 0 or more, or None for no bound")


def _bytes_of(key: object) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, int):
        return b"i%d" % key
    raise TypeError(f"a pool's key is a str, bytes or int, not {type(key).__name__}: {key!r:.80}")


def _weight(key: bytes, name: str) -> bytes:
    return hashlib.blake2b(key, key=hashlib.blake2b(name.encode()).digest(), digest_size=8).digest()


async def _follow(pool: weakref.ref[Pool[Any]], index: int, watch: Watch) -> None:
    async for event in watch:
        us = pool()
        if us is None:
            return
        us._note(us._members[index], event)
        del us


def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if not task.done():
            task.get_loop().call_soon_threadsafe(task.cancel)
