"""How long a call's deadline and chain count: as long as its handler runs, also in the tasks that the handler makes."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Callable

import pytest

import ringcast.actors as rt
from ringcast.actors.call_scope import SCOPE, Block

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Back(rt.Actor):
    """Calls whoever asks it back."""

    @rt.call
    async def ask_back(self, caller: Maker) -> str:
        return await caller.here()

    @rt.call(concurrent=True)
    async def left_s(self) -> float | None:
        at = rt.deadline.current()
        return None if at is None else at - time.monotonic()


class Maker(rt.Actor):
    """Makes tasks that ask ``back``, which asks this actor again."""

    def __init__(self, back: Back) -> None:
        self.back = back

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.me: Maker = ctx.self_ref
        self.over = asyncio.Event()

    @rt.call
    async def here(self) -> str:
        return "here"

    async def ask(self) -> str:
        try:
            return await self.back.ask_back(self.me)
        except rt.RemoteError as error:
            return error.type_name
        except rt.DeadlineExceeded as error:
            return str(error)

    async def ask_when_over(self) -> str:
        await self.over.wait()
        return await self.ask()

    @rt.call
    async def make(self, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        self.task = asyncio.create_task(self.ask_when_over())

    @rt.call(concurrent=True)
    async def make_beside(self) -> None:
        self.task = asyncio.create_task(self.ask_when_over())

    @rt.stream
    async def make_in_stream(self) -> AsyncIterator[int]:
        self.task = asyncio.create_task(self.ask_when_over())
        yield 1

    @rt.call
    async def busy_until_it_has_asked(self) -> float | None:
        """In a handler, while the earlier handler's task asks an actor that does not ask back."""

        async def left_s() -> float | None:
            return await self.back.left_s()

        self.over.set()
        return await asyncio.create_task(left_s())

    @rt.call(concurrent=True)
    async def answer_of_task(self) -> str:
        self.over.set()
        return await self.task

    @rt.call
    async def ask_in_task_group(self) -> str:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.ask())
        return task.result()

    @rt.call
    async def deadline_in_task(self) -> float | None:
        return await asyncio.create_task(self.back.left_s())  # type: ignore[arg-type]

    @rt.call
    async def make_in_block(self) -> list[object]:
        """The task is made in a block that has been left when it asks; the handler still runs."""
        left = asyncio.Event()

        async def later() -> list[object]:
            await left.wait()
            return [await self.ask(), rt.deadline.current(), rt.current_trace()]

        with rt.trace(TRACE):
            async with rt.deadline(30):
                task = asyncio.create_task(later())
        left.set()
        return await task

    @rt.call
    async def make_with_block(self) -> None:
        """The task enters a block while the handler runs, and is still in it when the handler has ended."""
        entered = asyncio.Event()

        async def later() -> str:
            async with rt.deadline(30):
                entered.set()
                await self.over.wait()
                left_s = await self.back.left_s()
                assert left_s is not None and 20 < left_s < 30
                return await self.ask()

        self.task = asyncio.create_task(later())
        await entered.wait()


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


async def make(system: rt.System, where: rt.Where) -> Maker:
    back = await system.spawn(rt.spec(Back), where=where)
    return await system.spawn(rt.spec(Maker, back), where=where)


async def _in_stream(maker: Maker) -> None:
    async with maker.make_in_stream.open() as numbers:
        assert [number async for number in numbers] == [1]


@PLACES
@pytest.mark.parametrize(
    "make_task",
    [
        lambda maker: maker.make(False),
        lambda maker: maker.make(True),
        lambda maker: maker.make_beside(),
        _in_stream,
        lambda maker: maker.make_with_block(),
    ],
    ids=["at_once", "waits", "concurrent", "stream", "block"],
)
async def test_a_task_that_outlives_its_handler_is_in_no_call(
    system: rt.System, where: rt.Where, make_task: Callable[[Maker], object]
) -> None:
    """A3: it got a CallCycle though nobody waited, and the deadline of the call that had made it, for ever."""
    maker = await make(system, where)
    async with rt.deadline(0.5):
        await make_task(maker)  # type: ignore[misc]
    await asyncio.sleep(0.6)
    assert await maker.answer_of_task() == "here"


@PLACES
async def test_it_is_not_in_the_call_that_its_actor_handles_now(system: rt.System, where: rt.Where) -> None:
    """A3: what tells the calls apart is no state of the actor."""
    maker = await make(system, where)
    await maker.make(False)
    async with rt.deadline(5):
        busy = asyncio.ensure_future(maker.busy_until_it_has_asked())
        assert await maker.answer_of_task() == "here"
        left_s = await busy
    assert left_s is not None and 0 < left_s < 5


@PLACES
async def test_while_the_handler_runs_its_tasks_are_in_its_call(system: rt.System, where: rt.Where) -> None:
    """A3: the chain that finds cycles, and the deadline."""
    maker = await make(system, where)
    assert await maker.ask_in_task_group() == "CallCycle"
    assert await maker.make_in_block() == ["CallCycle", None, None]
    async with rt.deadline(5):
        busy = await maker.busy_until_it_has_asked()
    assert busy is not None and 0 < busy < 5


async def test_tasks_that_make_tasks_in_blocks_hold_no_more_than_the_open_ones() -> None:
    """A3: else a chain of them would be as long as their history."""
    depths = []

    async def again(left: int) -> None:
        async with rt.deadline(30):
            depth, scope = 0, SCOPE.get(None)
            while isinstance(scope, Block):
                depth, scope = depth + 1, scope._around
            depths.append(depth)
            if left:
                asyncio.get_running_loop().call_soon(tasks.append, asyncio.create_task(again(left - 1)))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(again(100))]
    while len(depths) < 101:
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert max(depths) <= 3


class Keeps(rt.BlockingActor):
    @rt.call
    def keep(self) -> float | None:
        self.context = contextvars.copy_context()
        return rt.deadline.current()

    @rt.call
    def of_kept(self) -> float | None:
        return self.context.run(rt.deadline.current)


@PLACES
async def test_what_a_blocking_handler_has_copied_ends_with_it(system: rt.System, where: rt.Where) -> None:
    """A3: threads that it starts may run in such a copy."""
    actor = await system.spawn(rt.spec(Keeps), where=where)
    async with rt.deadline(5):
        assert await actor.keep() is not None
    assert await actor.of_kept() is None
