"""Exceptions that are hard to describe: every call ends once with RemoteError, and what is told of them is bounded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import ringcast.actors as rt
from ringcast.actors.failure import MAX_TEXT, MAX_TRACEBACK, describe

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


class BadStr(Exception):
    def __str__(self) -> str:
        raise SystemExit("in __str__")


class BadNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


class _BadName(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class BadName(Exception, metaclass=_BadName):
    pass


class BadClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("no class")


class BadCause(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")


class EvilText(str):
    def __len__(self) -> int:
        raise RuntimeError("no length")

    def encode(self, *_: Any) -> Any:
        raise RuntimeError("no bytes")


class BadText(Exception):
    def __str__(self) -> str:
        return EvilText("evil")


def _syntax_error() -> BaseException:
    return SyntaxError("q", ("query", 1, "five", "t"))  # type: ignore[arg-type]


def _noted() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [1, BadStr(), "a note"]  # type: ignore[list-item]
    return error


def _cyclic() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def _group() -> BaseException:
    return ExceptionGroup("group", [BadStr(), ValueError("member")] + [ValueError("x" * 100_000)] * 30)


def _long_chain() -> BaseException:
    error = ValueError("the last one")
    outer: BaseException = error
    for _ in range(5000):
        outer.__cause__ = ValueError("y" * 1000)
        outer = outer.__cause__
    return error


HARD: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "syntax": (_syntax_error, "SyntaxError", "q"),
    "str": (BadStr, "BadStr", "cannot be had: SystemExit"),
    "notes": (lambda: BadNotes("text"), "BadNotes", "text"),
    "noted": (_noted, "ValueError", "noted"),
    "name": (lambda: BadName("text"), "BadName", "text"),
    "class": (lambda: BadClass("text"), "BadClass", "text"),
    "cause": (lambda: BadCause("text"), "BadCause", "text"),
    "text": (BadText, "BadText", "evil"),
    "huge": (lambda: ValueError("x" * 300_000_000), "ValueError", "300,000,000 characters in all"),
    "cyclic": (_cyclic, "ValueError", "one"),
    "group": (_group, "ExceptionGroup", "group"),
    "chain": (_long_chain, "ValueError", "the last one"),
}


class Raises(rt.Actor):
    def __init__(self, in_init: str = "", in_start: str = "", in_run: str = "", in_stop: str = "") -> None:
        self.in_start, self.in_run, self.in_stop = in_start, in_run, in_stop
        self._raise(in_init)

    def _raise(self, how: str) -> None:
        if how:
            raise HARD[how][0]()

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self._raise(self.in_start)

    async def run(self, ctx: rt.Context) -> None:
        self._raise(self.in_run)

    async def on_stop(self, reason: str) -> None:
        self._raise(self.in_stop)

    @rt.call
    async def at_once(self, how: str) -> None:
        self._raise(how)

    @rt.call
    async def later(self, how: str) -> None:
        await asyncio.sleep(0)
        self._raise(how)

    @rt.call(concurrent=True)
    async def beside(self, how: str) -> None:
        self._raise(how)

    @rt.stream
    async def items(self, how: str) -> AsyncIterator[int]:
        yield 1
        self._raise(how)

    @rt.call
    async def lives(self) -> bool:
        return True


class RaisesBlocking(rt.BlockingActor):
    @rt.call
    def at_once(self, how: str) -> None:
        raise HARD[how][0]()

    @rt.stream
    def items(self, how: str) -> Iterator[int]:
        yield 1
        raise HARD[how][0]()

    @rt.call
    def lives(self) -> bool:
        return True


async def _read(stream: Any, how: str) -> None:
    async with stream.open(how) as items:
        async for item in items:
            assert item == 1


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


@PLACES
@pytest.mark.parametrize("cls", [Raises, RaisesBlocking])
async def test_every_call_ends_with_what_was_raised(system: rt.System, where: rt.Where, cls: type[rt.Actor]) -> None:
    """A6: the process died, or the call of a concurrent handler or a stream never ended."""
    actor: Any = await system.spawn(rt.spec(cls), where=where)
    handlers = ["at_once", "later", "beside"] if cls is Raises else ["at_once"]
    for how, (_, type_name, text) in HARD.items():
        for handler in handlers if how != "huge" else ["at_once"]:
            with pytest.raises(rt.RemoteError) as caught:
                await asyncio.wait_for(getattr(actor, handler)(how), 20)
            assert (caught.value.type_name, text in caught.value.text) == (type_name, True), (how, caught.value.text)
            assert len(caught.value.text) < MAX_TEXT + 100
            assert len(caught.value.traceback) < 2 * MAX_TRACEBACK
        with pytest.raises(rt.RemoteError, match=type_name):
            await asyncio.wait_for(_read(actor.items, how), 20)
    assert await actor.lives()


@PLACES
async def test_a_start_a_run_and_a_stop_that_raise_it_are_told(
    system: rt.System, where: rt.Where, caplog: pytest.LogCaptureFixture
) -> None:
    """A6: the same for what is no call."""
    caplog.set_level(logging.CRITICAL, "ringcast.actors")
    for how in ("syntax", "str", "name", "class"):
        type_name = HARD[how][1]
        for place in ("in_init", "in_start"):
            with pytest.raises(rt.StartFailed, match=type_name):
                await system.spawn(rt.spec(Raises, **{place: how}), where=where)
        actor = await system.spawn(rt.spec(Raises, in_run=how), where=where)
        async for event in system.watch(actor):
            if isinstance(event, rt.GaveUp):
                assert type_name in str(event.cause)
        actor = await system.spawn(rt.spec(Raises, in_stop=how), where=where)
        await system.stop(actor)


@PLACES
async def test_a_cast_that_raises_it_goes_to_the_log_and_the_actor_lives_on(system: rt.System, where: rt.Where) -> None:
    """A6"""
    actor = await system.spawn(rt.spec(Raises), where=where)
    for how in HARD:
        if how != "huge":
            actor.at_once.cast(how)
            actor.beside.cast(how)
    assert await actor.lives()


def test_a_traceback_shows_what_pythons_own_shows() -> None:
    """A6: with causes, notes and the members of groups."""

    def fails() -> None:
        raise KeyError("inner")

    try:
        try:
            fails()
        except KeyError as error:
            outer = ExceptionGroup("two", [ValueError("a"), error])
            outer.add_note("a note")
            raise outer from error
    except ExceptionGroup as error:
        failure = describe(error)
    assert failure[:2] == ("ExceptionGroup", "two (2 sub-exceptions)")
    for part in (
        'raise KeyError("inner")\n',
        "KeyError: 'inner'\n\nThe above exception was the direct cause of the following exception:\n\nTraceback",
        "ExceptionGroup: two (2 sub-exceptions)\na note\n",
        "  +---- 1 of 2\n  | ValueError: a\n  +---- 2 of 2\n  | Traceback",
    ):
        assert part in failure.traceback, failure.traceback


def test_a_deep_stack_shows_its_ends() -> None:
    """A6"""

    def down(depth: int) -> None:
        if depth == 0:
            raise RuntimeError("deep")
        down(depth - 1)

    try:
        down(500)
    except RuntimeError as error:
        text = describe(error).traceback
    assert "frames are left out" in text and text.startswith("Traceback") and text.endswith("RuntimeError: deep\n")
    assert len(text) < 30_000


class AsksItself(rt.Actor):
    """Asks itself where it must not, and where it may."""

    def __init__(self, where: str, how: str = "ask") -> None:
        self.where, self.how = where, how
        self.said: list[str] = []

    async def _try(self) -> str:
        try:
            if self.how == "stream":
                async with self.me.numbers.open() as numbers:
                    return str([number async for number in numbers])
            handler = self.me.beside if self.how == "beside" else self.me.tick
            return await handler()
        except rt.ActorError as error:
            return f"{type(error).__name__}: {error}"

    async def on_prepare(self, ctx: rt.Context) -> None:
        self.me: AsksItself = ctx.self_ref
        if self.where == "on_prepare":
            self.said.append(await self._try())

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        if isinstance(handoff, list):
            self.said = handoff
        elif self.where == "on_start":
            self.said.append(await self._try())

    async def run(self, ctx: rt.Context) -> None:
        if self.where == "run":
            ctx.self_ref.tick.cast()
            self.said.append(await self._try())

    async def on_stop(self, reason: str) -> object:
        if self.where == "on_stop":
            self.said.append(await self._try())
        return self.said

    @rt.call
    async def tick(self) -> str:
        return "tick"

    @rt.call(concurrent=True)
    async def beside(self) -> str:
        return "beside"

    @rt.stream
    async def numbers(self) -> AsyncIterator[int]:
        yield 1

    @rt.call
    async def what_was_said(self) -> list[str]:
        return self.said


@PLACES
@pytest.mark.parametrize("how", ["ask", "beside", "stream"])
@pytest.mark.parametrize("hook", ["on_prepare", "on_start", "on_stop"])
async def test_an_actor_that_asks_itself_while_it_starts_or_stops_is_told(
    system: rt.System, where: rt.Where, hook: str, how: str
) -> None:
    """A12: it hung in a process, and in on_stop until the deadline."""
    async with asyncio.timeout(20):
        actor = await system.spawn(rt.spec(AsksItself, hook, how), where=where)
        if hook == "on_stop":
            await actor.tick()
            await system.restart(actor, timeout_s=10)
        said = await actor.what_was_said()
    assert len(said) == 1 and said[0].startswith("CallCycle: AsksItself-1."[:-1]), said


@PLACES
async def test_run_may_ask_its_own_actor(system: rt.System, where: rt.Where) -> None:
    """A7: here the actor died of it, for it was not READY yet."""
    actor = await system.spawn(rt.spec(AsksItself, "run"), where=where)
    async with asyncio.timeout(20):
        while not await actor.what_was_said():
            await asyncio.sleep(0)
    assert await actor.what_was_said() == ["tick"]
