"""No memory or no descriptors for a moment: what cannot be sent says so, and afterwards everything is as before."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator

import pytest

import ringcast.actors as rt
from ringcast.actors import root_node
from ringcast.channels import SegmentError

pytestmark = pytest.mark.usefixtures("leak_oracle")
LARGE = b"x" * 1_000_000  # near the mailbox's bound, and too large for a ring or a link


class Scarce(rt.Actor):
    def __init__(self, other: Scarce | None = None) -> None:
        self.other = other
        self._memfd_create = os.memfd_create

    @rt.call
    async def size(self, data: bytes) -> int:
        return len(data)

    @rt.call
    async def run_out(self) -> None:
        os.memfd_create = no_descriptors

    @rt.call
    async def recover(self) -> None:
        os.memfd_create = self._memfd_create

    @rt.call
    async def large(self) -> bytes:
        return LARGE

    @rt.call
    async def ask_other(self) -> int:
        assert self.other is not None
        return await self.other.size(b"abc")

    @rt.stream()
    async def items(self) -> AsyncIterator[bytes]:
        yield b"1"
        yield LARGE
        await asyncio.sleep(3600)


def no_descriptors(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with asyncio.timeout(60), rt.System() as system:
        yield system


async def test_a_message_that_finds_no_memory_is_refused_and_takes_no_place_in_the_mailbox(
    system: rt.System, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = [await system.spawn(rt.spec(Scarce), where=rt.process()) for _ in range(2)]
    group = rt.Group(actors)
    await group.gather(Scarce.size.msg(b""))
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", no_descriptors)
        for _ in range(3):
            with pytest.raises(SegmentError):
                await actors[0].size(LARGE)
            with pytest.raises(SegmentError):
                actors[0].size.cast(LARGE)
            with pytest.raises(SegmentError):
                await group.gather(Scarce.size.msg(LARGE))
        assert await group.gather(Scarce.size.msg(b"xx")) == [2, 2]
    assert await group.gather(Scarce.size.msg(LARGE)) == [len(LARGE)] * 2
    assert await actors[0].size(LARGE) == len(LARGE)


async def test_one_that_had_to_wait_for_its_turn_ends_its_call_and_those_behind_it_go_on(
    system: rt.System, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = await system.spawn(rt.spec(Scarce), where=rt.process())
    before = [asyncio.ensure_future(actor.size(LARGE)) for _ in range(2)]  # the second one waits for room
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", no_descriptors)
        behind = asyncio.ensure_future(actor.size(b"xx"))
        with pytest.raises(rt.ActorError, match="could not leave"):
            await before[1]
        assert (await before[0], await behind) == (len(LARGE), 2)


async def test_an_answer_that_finds_no_memory_is_an_error_and_the_actor_lives(system: rt.System) -> None:
    actor = await system.spawn(rt.spec(Scarce), where=rt.process())
    await actor.run_out()
    for _ in range(2):
        with pytest.raises(rt.RemoteError, match="the result cannot travel: no memory"):
            await actor.large()
    got = []
    with pytest.raises(rt.RemoteError, match="no memory"):
        async with actor.items.open() as items:
            async for item in items:
                got.append(item)
    await actor.recover()
    assert await actor.large() == LARGE


async def test_two_processes_that_cannot_be_connected_are_connected_later(
    system: rt.System, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await system.spawn(rt.spec(Scarce), where=rt.process())
    actor = await system.spawn(rt.spec(Scarce, other), where=rt.process())
    with monkeypatch.context() as patch:
        patch.setattr(root_node.Link, "pair", no_descriptors)
        with pytest.raises(rt.RemoteError, match="could not be connected with its caller's: .*Too many open files"):
            await actor.ask_other()
    assert await actor.ask_other() == 3
