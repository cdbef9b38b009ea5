"""Several systems in one process: what is one's is not mistaken for the other's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from actor_zoo import Chain, Counter

import ringcast.actors as rt
from ringcast.channels import EncodeError

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


@pytest.fixture
async def systems() -> AsyncIterator[tuple[rt.System, rt.System]]:
    async with rt.System("one") as one, rt.System("two") as two:
        yield one, two


@PLACES
async def test_a_reference_of_another_system_is_refused(systems: tuple[rt.System, rt.System], where: rt.Where) -> None:
    one, two = systems
    mine = await one.spawn(rt.spec(Counter, 1), where=where)
    other = await two.spawn(rt.spec(Counter, 2), where=where)
    assert mine != other and mine == mine
    for misuse in (two.watch, two.stop, two.restart, two.ping):
        with pytest.raises(rt.NotInSystem, match="of another system than 'two'"):
            ended = misuse(mine)
            if not isinstance(ended, rt.Watch):
                await ended
    chain = await two.spawn(rt.spec(Chain), where=rt.process())
    with pytest.raises(EncodeError, match="of another system"):
        await chain.link(mine)  # type: ignore[arg-type]
    assert (await mine.add(1), await other.add(1)) == (2, 3)


@PLACES
@pytest.mark.parametrize("name", ["\udc80", "a\0b"])
async def test_a_name_that_cannot_travel_hurts_nobody(
    systems: tuple[rt.System, rt.System], where: rt.Where, name: str
) -> None:
    system, _ = systems
    for _ in range(3):
        with pytest.raises(ValueError, match="neither NUL nor half a surrogate pair"):
            await system.spawn(rt.spec(Counter, 0), where=where, name=name)
    assert await (await system.spawn(rt.spec(Counter, 0), where=where)).add(1) == 1


async def test_a_start_that_cannot_be_sent_hurts_nobody_else(
    systems: tuple[rt.System, rt.System], monkeypatch: pytest.MonkeyPatch
) -> None:
    system, _ = systems
    monkeypatch.setattr("sys.path", ["\udc80"])
    for _ in range(3):
        with pytest.raises(EncodeError):
            await system.spawn(rt.spec(Counter, 0), where=rt.process())
    monkeypatch.undo()
    actor = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    assert await actor.add(1) == 1
    assert len(system.pids()) == 1


class Inner(rt.Actor):
    @rt.call
    async def one(self) -> int:
        return 1


class Outer(rt.Actor):
    """Enters a system of its own in a handler; the first actor there has the number that this one has here."""

    @rt.call
    async def ask_inside(self) -> list[str | int]:
        async with rt.System("inner") as inner:
            actor = await inner.spawn(rt.spec(Inner))
            return [repr(actor), await actor.one()]


@PLACES
async def test_an_actor_may_ask_another_systems_actor_of_the_same_number(
    systems: tuple[rt.System, rt.System], where: rt.Where
) -> None:
    """A4: the call was refused as a CallCycle."""
    outer = await systems[0].spawn(rt.spec(Outer), where=where)
    assert repr(outer) == "<Ref 'Outer-1' #1>"
    assert await outer.ask_inside() == ["<Ref 'Inner-1' #1>", 1]
