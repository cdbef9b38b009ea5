"""What is wrong with an actor's class is told when the class is made."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


def plain(self: Any, *_: Any) -> None: ...
async def coroutine(self: Any, *_: Any) -> None: ...
async def no_parameter(self: Any) -> None: ...
async def generator(self: Any, ctx: Any) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("base", "body", "message"),
    [
        (rt.Actor, {"on_start": plain}, "Bad.on_start must be async def"),
        (rt.Actor, {"run": generator}, "Bad.run must be async def, without yield"),
        (rt.Actor, {"on_stop": no_parameter}, r"Bad.on_stop is called as on_stop\(reason\): too many"),
        (rt.Actor, {"on_start": no_parameter}, r"called as on_start\(ctx, handoff\)"),
        (rt.Actor, {"on_stop": rt.call(coroutine)}, "Bad.on_stop is a hook"),
        (rt.Actor, {"_hidden": rt.call(coroutine)}, "Bad._hidden: no handler may have"),
        (rt.BlockingActor, {"on_prepare": coroutine}, "Bad.on_prepare must be a plain def"),
        (rt.BlockingActor, {"on_abort": lambda self, why: None}, r"called as on_abort\(\): missing"),
    ],
)
def test_hooks_and_handlers_are_checked_when_the_class_is_made(base: type, body: dict[str, Any], message: str) -> None:
    """Friction: `def on_start` on an async actor failed at the start, in a process."""
    with pytest.raises(TypeError, match=message):
        type("Bad", (base,), body)


class Base(rt.Actor):
    @rt.call(idempotent=True)
    async def who(self) -> str:
        return "base"

    @rt.call(concurrent=True)
    async def beside(self) -> str:
        return "base"


class Derived(Base):
    async def who(self) -> str:  # type: ignore[override]
        return "derived"


class MixIn:
    async def beside(self) -> str:
        return "mix-in"


class Mixed(MixIn, Base):  # type: ignore[misc]
    pass


@PLACES
async def test_an_override_without_the_decorator_answers(where: rt.Where) -> None:
    """C72: the base's handler answered, while a call on the instance ran the override."""
    async with rt.System() as system:
        derived = await system.spawn(rt.spec(Derived), where=where)
        assert await rt.retry(derived.who)() == await Derived().who() == "derived"
        mixed = await system.spawn(rt.spec(Mixed), where=where)
        assert await mixed.beside() == await Mixed().beside() == "mix-in"
        assert await mixed.who() == "base"


def test_an_override_of_another_kind_is_refused() -> None:
    """C72"""
    with pytest.raises(TypeError, match="Bad.who is a plain def on an async Actor"):
        type("Bad", (Base,), {"who": plain})
    with pytest.raises(TypeError, match="Bad.who hides a handler and is not a method"):
        type("Bad", (Base,), {"who": 5})


class Limited(rt.Actor):
    mailbox = rt.Mailbox(capacity=4096)

    def __init__(self) -> None:
        self.running = self.most = 0
        self.began: list[int] = []
        self.gate = asyncio.Event()

    @rt.call(concurrent=2)
    async def work(self, number: int, padding: bytes = b"") -> int:
        self.began.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        return number

    @rt.call
    async def open(self) -> list[int]:
        self.gate.set()
        return self.began

    @rt.call
    async def state(self) -> list[Any]:
        return [self.most, self.began]


@PLACES
async def test_so_many_of_a_handler_run_at_a_time_and_the_others_wait_in_order(where: rt.Where) -> None:
    """concurrent=2: later ones wait, other handlers do not; one that is given up is dropped."""
    async with rt.System() as system, asyncio.timeout(20):
        actor = await system.spawn(rt.spec(Limited), where=where)
        calls = [asyncio.ensure_future(actor.work(number)) for number in range(6)]
        while (await actor.state())[1] != [0, 1]:
            await asyncio.sleep(0)
        calls[3].cancel()
        assert await actor.open() == [0, 1]
        assert [await call for number, call in enumerate(calls) if number != 3] == [0, 1, 2, 4, 5]
        assert await actor.state() == [2, [0, 1, 2, 4, 5]]


@PLACES
async def test_those_that_wait_are_bounded_by_the_mailbox_and_fail_at_its_end(where: rt.Where) -> None:
    """concurrent=2: a cast beyond the bound is refused, and a stop ends what waits."""
    async with rt.System() as system, asyncio.timeout(20):
        actor = await system.spawn(rt.spec(Limited), where=where)
        running = [asyncio.ensure_future(actor.work(number)) for number in range(3)]
        await actor.state()
        with pytest.raises(rt.MailboxFull):
            for number in range(100):
                actor.work.cast(number, bytes(300))
        await system.stop(actor)
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [rt.CallCancelled, rt.CallCancelled, rt.ActorDied]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
def test_a_wrong_limit_is_refused(wrong: Any) -> None:
    """concurrent=N"""
    with pytest.raises((TypeError, ValueError), match="concurrent="):
        rt.call(concurrent=wrong)


class Holder(rt.Actor):
    """Is given a reference, whose class its process may know."""

    limit = 3

    def plain_method(self) -> int:
        return 1

    @rt.call
    async def misuse(self, of: Any, name: str) -> str:
        try:
            await getattr(of, name)()
        except AttributeError as error:
            return str(error)
        return "no error"


@PLACES
async def test_a_reference_rejects_a_name_that_its_class_does_not_have(where: rt.Where) -> None:
    """Friction: the call went out and came back as RemoteError; a cast was lost in silence."""
    async with rt.System() as system:
        holder: Any = await system.spawn(rt.spec(Holder), where=where)
        assert not hasattr(holder, "nonsense")
        with pytest.raises(AttributeError, match=r"Holder has no handler 'misus' \(did you mean 'misuse'\?\)"):
            holder.misus.cast()
        with pytest.raises(AttributeError, match="Holder.plain_method is no handler: mark it with @rt.call"):
            holder.plain_method()
        with pytest.raises(AttributeError, match="Holder.limit is no handler"):
            _ = holder.limit
        assert await holder.misuse(holder, "misus") == "Holder has no handler 'misus' (did you mean 'misuse'?)"


def test_a_decorator_above_the_handler_mark_is_refused() -> None:
    """Else the class would have no such handler, and nobody would say so."""

    @rt.call
    async def handler(self: Any) -> None: ...

    decorated = functools.wraps(handler)(lambda self: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Bad.work: a decorator hides the handler; put @rt.call"):
        type("Bad", (rt.Actor,), {"work": decorated})


class Recorder(rt.Actor):
    def __init__(self) -> None:
        self.noted: list[int] = []

    @rt.call(concurrent=True)
    async def note(self, number: int) -> None:
        self.noted.append(number)
        await asyncio.sleep(0)

    @rt.call
    async def notes(self) -> list[int]:
        return self.noted


@PLACES
async def test_concurrent_handlers_begin_in_the_order_of_their_calls(where: rt.Where) -> None:
    """Also the first one, which the actor gets while it is idle."""
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(Recorder), where=where)
        for _ in range(3):
            await asyncio.gather(*(actor.note(k) for k in range(8)))
        assert await actor.notes() == [*range(8)] * 3
