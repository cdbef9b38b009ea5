"""What travels with calls: deadlines, chains (cycles), trace ids; concurrency and retries."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest
from actor_zoo import Chain, Patient

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


async def make_chain(system: rt.System, where: rt.Where, length: int) -> list[Chain]:
    links = [await system.spawn(rt.spec(Chain), where=where) for _ in range(length)]
    for one, other in itertools.pairwise(links):
        await one.link(other)
    return links


@PLACES
async def test_a_deadline_travels_through_every_hop(system: rt.System, where: rt.Where) -> None:
    first, *_ = await make_chain(system, where, 3)
    assert await first.remaining() is None
    async with rt.deadline(5):
        remaining = await first.remaining()
    assert remaining is not None
    assert 4 < remaining < 5


class Inherits(rt.Actor):
    """Notes what its own code inherits from whoever has started, restarted or stopped it."""

    def __init__(self) -> None:
        self.inherited: list[list[object]] = []

    def note(self, where: str) -> None:
        self.inherited.append([where, rt.deadline.current(), rt.current_trace()])

    async def on_prepare(self, ctx: rt.Context) -> None:
        self.note("on_prepare")

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        if isinstance(handoff, list):
            self.inherited = handoff
        self.note("on_start")

    async def run(self, ctx: rt.Context) -> None:
        self.note("run")

    async def on_stop(self, reason: str) -> object:
        self.note("on_stop")
        return self.inherited

    @rt.call
    async def noted(self) -> list[list[object]]:
        return self.inherited


@PLACES
async def test_an_actor_inherits_nothing_from_the_code_that_starts_it(system: rt.System, where: rt.Where) -> None:
    """Its ``run`` had the deadline in which it was spawned here, and after it could ask nobody any more."""
    with rt.trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"):
        async with rt.deadline(30):
            actor = await system.spawn(rt.spec(Inherits), where=where)
            await actor.noted()  # its run has begun
            await system.restart(actor)
    while ["run", None, None] not in (noted := await actor.noted())[-1:]:
        await asyncio.sleep(0)
    assert noted == [[phase, None, None] for phase in ("on_prepare", "on_start", "run", "on_stop", "on_start", "run")]


@PLACES
async def test_a_deadline_ends_the_call_here_and_the_handler_there(system: rt.System, where: rt.Where) -> None:
    chain = await system.spawn(rt.spec(Chain), where=where)
    with pytest.raises(rt.DeadlineExceeded, match="deadline passed"):
        async with rt.deadline(0.1):
            await chain.stubborn(0.5)
    await asyncio.sleep(0.6)
    assert await chain.get() == 0  # the handler did not come to its end


@PLACES
async def test_a_message_whose_deadline_passed_in_the_mailbox_is_not_handled(
    system: rt.System, where: rt.Where
) -> None:
    chain = await system.spawn(rt.spec(Chain), where=where)
    busy = asyncio.ensure_future(chain.stubborn(0.3))
    await asyncio.sleep(0.05)
    with pytest.raises(rt.DeadlineExceeded):
        async with rt.deadline(0.1):
            await chain.link(chain)
    await busy
    assert await chain.pass_on(1) == "end"  # no next one


async def test_a_deadline_that_has_passed_sends_nothing(system: rt.System) -> None:
    chain = await system.spawn(rt.spec(Chain), where=rt.process())
    with pytest.raises(rt.DeadlineExceeded, match="before the call was sent"):
        async with rt.deadline(60), rt.deadline(-1):
            await chain.get()


async def test_the_earlier_of_nested_deadlines_counts(system: rt.System) -> None:
    chain = await system.spawn(rt.spec(Chain), where=rt.process())
    async with rt.deadline(1), rt.deadline(60):
        remaining = await chain.remaining()
    assert remaining is not None
    assert remaining < 1


@PLACES
async def test_a_call_cycle_is_an_error_and_no_hang(system: rt.System, where: rt.Where) -> None:
    one, two = await make_chain(system, where, 2)
    await two.link(one)
    async with asyncio.timeout(5):
        with pytest.raises(rt.RemoteError, match="CallCycle"):
            await one.pass_on(5)
        await one.link(one)
        with pytest.raises(rt.RemoteError, match="CallCycle"):
            await one.pass_on(5)
    assert await one.get() == 0


class Full(rt.Actor):
    """Fills its own mailbox, and then wants room in it."""

    mailbox = rt.Mailbox(capacity=4096)

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.me: Full = ctx.self_ref

    @rt.call
    async def take(self, data: bytes) -> int:
        return len(data)

    @rt.call
    async def fill(self, then: str, through: Full | None) -> str:
        with contextlib.suppress(rt.MailboxFull):
            while True:
                self.me.take.cast(bytes(100))
        if through is not None:
            return await through.want(self.me, then)
        return await self.want_here(self.me, then)

    @rt.call
    async def want(self, of: Full, then: str) -> str:
        with contextlib.suppress(rt.MailboxFull):
            while True:
                of.take.cast(bytes(100))
        return await self.want_here(of, then)

    async def want_here(self, of: Full, then: str) -> str:
        try:
            await (of.take(bytes(1000)) if then == "call" else of.take.cast.wait(bytes(1000)))
        except rt.CallCycle as error:
            return str(error)
        return "there was room"


@PLACES
@pytest.mark.parametrize("through_another", [False, True])
@pytest.mark.parametrize("then", ["call", "cast"])
async def test_to_wait_for_room_that_only_ones_own_end_makes_is_a_cycle(
    system: rt.System, where: rt.Where, then: str, through_another: bool
) -> None:
    full, other = await system.spawn(rt.spec(Full), where=where), await system.spawn(rt.spec(Full), where=where)
    await other.take(b"")
    async with asyncio.timeout(5):
        answer = await full.fill(then, other if through_another else None)
        assert answer.startswith("the mailbox of 'Full-1' is full, and a handler that 'Full-1' itself waits for"), (
            answer
        )
        assert await full.take(bytes(7)) == 7


@PLACES
async def test_a_concurrent_handler_may_be_asked_in_a_cycle(system: rt.System, where: rt.Where) -> None:
    one, two = await make_chain(system, where, 2)
    await two.link(one)
    assert await one.pass_on_beside(6) == "end"
    async with asyncio.timeout(5):
        for first in (one, two):
            waiting = [asyncio.ensure_future(first.get()) for _ in range(3)]
            passed = asyncio.ensure_future(one.pass_on_to_meet(1))
            waiting += [asyncio.ensure_future(first.get()) for _ in range(3)]
            assert await passed > 0
            await asyncio.gather(*waiting)
        assert await one.pass_on_from_beside(1) == "end"
        await one.link(one)
        assert await one.pass_on_to_meet(0) > 0


@PLACES
async def test_what_runs_beside_the_handlers_waits_for_none_of_them(system: rt.System, where: rt.Where) -> None:
    chain = await system.spawn(rt.spec(Chain), where=where)
    busy, waiting = asyncio.ensure_future(chain.stubborn(60)), asyncio.ensure_future(chain.get())
    await asyncio.sleep(0.05)
    async with asyncio.timeout(5):
        assert await chain.meet(0) == 1
        chain.meet.cast(0)
        async with chain.numbers.open(3) as numbers:
            assert [number async for number in numbers] == [0, 1, 2]
        assert not waiting.done()
        busy.cancel()
        assert await waiting == 2


@PLACES
async def test_concurrent_handlers_run_beside_each_other_and_beside_the_mailbox(
    system: rt.System, where: rt.Where
) -> None:
    chain = await system.spawn(rt.spec(Chain), where=where)
    calls = [asyncio.ensure_future(chain.meet(0.3)) for _ in range(3)]
    await asyncio.sleep(0.1)
    assert await chain.get() == 3
    assert await asyncio.gather(*calls) == [3, 3, 3]


@PLACES
async def test_cancelling_a_concurrent_call_cancels_its_handler_alone(system: rt.System, where: rt.Where) -> None:
    chain = await system.spawn(rt.spec(Chain), where=where)
    keep, give_up = asyncio.ensure_future(chain.meet(0.3)), asyncio.ensure_future(chain.meet(60))
    await asyncio.sleep(0.1)
    give_up.cancel()
    assert await keep == 2


async def test_a_trace_id_travels_through_every_hop(system: rt.System) -> None:
    first, *_ = await make_chain(system, rt.process(), 2)
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with rt.trace(traceparent):
        assert await first.trace() == traceparent
    assert await first.trace() is None


async def test_a_retry_survives_the_death_of_its_actor(system: rt.System) -> None:
    policy = rt.Restart("permanent", backoff_s=0.01)
    chain = await system.spawn(rt.spec(Chain), where=rt.process(), restart=policy)
    os.kill(system.pids()["Chain-1"], signal.SIGKILL)
    assert await rt.retry(chain.get, attempts=8)() == 0


async def test_only_idempotent_methods_are_retried(system: rt.System) -> None:
    chain = await system.spawn(rt.spec(Chain), where=rt.process())
    with pytest.raises(rt.RemoteError, match="not declared idempotent"):
        await rt.retry(chain.pass_on)(0)


@PLACES
async def test_a_blocking_handler_notices_that_its_caller_gave_up(system: rt.System, where: rt.Where) -> None:
    actor = await system.spawn(rt.spec(Patient), where=where)
    began = time.monotonic()
    for give_up in (asyncio.timeout, rt.deadline):
        with pytest.raises(TimeoutError):
            async with give_up(0.1):
                await actor.work(30)
    assert await actor.times_noticed() == 2
    assert await actor.work(0.05) == "done"
    assert time.monotonic() - began < 5
