"""Leaving a system, whatever way: cancelled once, again and again, or on the wrong loop, nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import re
import threading
import time
from pathlib import Path

import psutil
import pytest
from actor_zoo import BadStart, Blocking, Chain, Counter, Farewell, Streams

import ringcast.actors as rt
from ringcast.actors.testing.leaks import Resources, left_behind, resources

pytestmark = pytest.mark.usefixtures("leak_oracle")
KEEP = rt.Restart("permanent", backoff_s=0.01)


def held(before: Resources) -> list[str]:
    """Processes and descriptors more than before. (Names in /dev/shm may be another program's; the oracle has time.)"""
    gc.collect()
    return [text for text in left_behind(before) if not text.startswith("shared memory")]


def tasks_left() -> list[str]:
    """All tasks but the test's."""
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def busy_system() -> None:
    """Has everything that runs beside its caller: processes, actors here, a stream, a group, a restart."""
    async with rt.System(stop_timeout_s=2.0) as system:
        there = await system.spawn(rt.spec(Counter, 0), where=rt.process(), restart=KEEP)
        chain = await system.spawn(rt.spec(Chain))
        thread = await system.spawn(rt.spec(Blocking))
        streams = await system.spawn(rt.spec(Streams))
        async with asyncio.TaskGroup() as group:
            group.create_task(system.restart(there))
            group.create_task(system.spawn_group([rt.spec(Counter, 0) for _ in range(2)]))
            async with streams.slowly.open(1000) as items:
                async for item in items:
                    if item == 1:
                        thread.sleep.cast(0.01)
                    if item == 3:
                        break
        chain.stubborn.cast(30)
        await asyncio.sleep(30)


async def cancel_at_random(moments: random.Random, within_s: float) -> None:
    """Begin it and cancel it one to three times within 30 ms, from a random moment of its life on."""
    task = asyncio.ensure_future(busy_system())
    await asyncio.sleep(moments.random() * within_s)
    for _ in range(moments.randrange(1, 4)):
        task.cancel()
        await asyncio.sleep(moments.random() * 0.01)
    with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
        await task


@pytest.mark.timeout(120)
async def test_a_system_that_is_cancelled_at_any_moment_leaves_nothing() -> None:
    """C67: the task that holds it is cancelled one to three times within 30 ms, at a random moment of its life."""
    moments = random.Random(67)
    before = resources()
    for number in range(16):
        await cancel_at_random(moments, 1.2)
        assert tasks_left() == [], f"round {number}"
        assert held(before) == [], f"round {number}"


async def test_a_second_cancellation_in_the_next_turn_of_the_loop_abandons_nothing() -> None:
    """C67: the row's `t.cancel(); await asyncio.sleep(0); t.cancel()` with four processes."""
    before = resources()

    async def hold(entered: asyncio.Event) -> None:
        async with rt.System() as system:
            await system.spawn_group([rt.spec(Counter, 0) for _ in range(4)])
            entered.set()
            await asyncio.sleep(60)

    entered = asyncio.Event()
    task = asyncio.ensure_future(hold(entered))
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tasks_left(), held(before)) == ([], [])


async def test_a_cancelled_start_ends_its_process_before_the_cancellation_leaves() -> None:
    """C67: spawn and spawn_group, cancelled twice while a process starts."""
    async with rt.System() as system:
        for start in (
            lambda: system.spawn(rt.spec(BadStart, "hang"), where=rt.process()),
            lambda: system.spawn(rt.spec(BadStart, "hang")),
            lambda: system.spawn_group([rt.spec(BadStart, "hang"), rt.spec(Counter, 0)]),
        ):
            task = asyncio.ensure_future(start())  # type: ignore[no-untyped-call]
            await asyncio.sleep(0.6)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (tasks_left(), psutil.Process().children()) == ([], [])
        assert system.pids() == {}


class Reluctant(rt.Actor):
    """Goes on for a moment when its start is cancelled, and starts after all."""

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def test_an_actor_that_starts_though_its_start_was_cancelled_is_stopped() -> None:
    """C67: nobody has a reference to it."""
    async with rt.System() as system:
        task = asyncio.ensure_future(system.spawn(rt.spec(Reluctant), name="reluctant"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tasks_left() == []
        await system.spawn(rt.spec(Chain), name="reluctant")  # the name is free


class LevelCancelled:
    """Cancels a task at every await, as the scopes of anyio do."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.count = 0
        self._again()

    def _again(self) -> None:
        if not self._task.done():
            self._task.cancel()
            self.count += 1
            asyncio.get_running_loop().call_later(0.001, self._again)


async def test_level_cancellation_does_not_interrupt_the_stop(tmp_path: Path) -> None:
    """C39: the actors still have their turn to stop, and nothing is left."""
    before = resources()
    entered = asyncio.Event()

    async def hold() -> None:
        async with rt.System() as system:
            for name in ("here", "there"):
                where = rt.here if name == "here" else rt.process()
                await system.spawn(rt.spec(Farewell, str(tmp_path / name), 0.05), where=where)
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.ensure_future(hold())
    await entered.wait()
    level = LevelCancelled(task)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert level.count > 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "there"]
    assert (tasks_left(), held(before)) == ([], [])


async def test_a_cancellation_shortens_a_stop_that_takes_long(tmp_path: Path) -> None:
    """C67: from a minute to a second, and what has not ended is killed."""
    entered = asyncio.Event()

    async def hold() -> None:
        async with rt.System(stop_timeout_s=60) as system:
            await system.spawn(rt.spec(Farewell, str(tmp_path / "slow"), 60.0), where=rt.process())
            entered.set()

    task = asyncio.ensure_future(hold())
    await entered.wait()
    await asyncio.sleep(0.1)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 10
    assert tasks_left() == []


def test_the_end_of_asyncio_run_cancels_everything_and_nothing_is_left() -> None:
    """C67: a background task holds the system; asyncio.run cancels it and every task of the system at once."""
    before = resources()

    async def main() -> None:
        main.background = asyncio.ensure_future(busy_system())  # type: ignore[attr-defined]
        await asyncio.sleep(0.9)

    asyncio.run(main())
    assert held(before) == []


class Fatal(BaseException):
    """No Exception."""


class FatalStop(Farewell):
    async def on_stop(self, reason: str) -> object:
        await super().on_stop(reason)
        raise Fatal(reason)


class FatalBlockingStop(rt.BlockingActor):
    def on_stop(self, reason: str) -> object:
        raise Fatal(reason)


@pytest.mark.parametrize("cls", [FatalStop, FatalBlockingStop])
async def test_a_base_exception_of_one_on_stop_is_raised_when_all_have_stopped(
    tmp_path: Path, cls: type[rt.Actor]
) -> None:
    """A14."""
    args = (str(tmp_path / "fatal"),) if cls is FatalStop else ()
    with pytest.raises(Fatal, match="the system stops"):
        async with rt.System() as system:
            await system.spawn(rt.spec(Farewell, str(tmp_path / "first")))
            await system.spawn(rt.spec(Farewell, str(tmp_path / "there")), where=rt.process())
            await system.spawn(rt.spec(cls, *args))
            await system.spawn(rt.spec(Farewell, str(tmp_path / "last")))
    assert {path.name for path in tmp_path.iterdir()} >= {"first", "there", "last"}
    assert tasks_left() == []


async def test_two_base_exceptions_of_on_stop_are_a_group(tmp_path: Path) -> None:
    """A14."""
    with pytest.raises(BaseExceptionGroup) as caught:
        async with rt.System() as system:
            for name in ("a", "b"):
                await system.spawn(rt.spec(FatalStop, str(tmp_path / name)))
    assert [type(error) for error in caught.value.exceptions] == [Fatal, Fatal]


class RaisesCancelled(rt.Actor):
    def __init__(self) -> None:
        raise asyncio.CancelledError("of its own")


class RaisesCancelledBlocking(rt.BlockingActor):
    def __init__(self, error: type[BaseException]) -> None:
        raise error("of its own")


async def test_a_cancelled_error_of_a_constructor_is_a_failed_start() -> None:
    """A15: it is not the caller's cancellation. Its sibling is a StopIteration, which no future takes."""
    async with rt.System() as system, asyncio.timeout(20):
        with pytest.raises(rt.StartFailed, match="CancelledError: of its own"):
            await system.spawn(rt.spec(RaisesCancelled))
        for error in (asyncio.CancelledError, StopIteration):
            with pytest.raises(rt.StartFailed, match=f"{error.__name__}: of its own"):
                await system.spawn(rt.spec(RaisesCancelledBlocking, error))


class Deaf(rt.BlockingActor):
    """Its handler, or its start, ends when it is allowed to, whatever is asked of it."""

    def __init__(self, may_end: threading.Event, at: str) -> None:
        self.may_end = may_end
        if at == "start":
            may_end.wait(20)

    @rt.call
    def work(self) -> str:
        self.may_end.wait(20)
        return "done"


@pytest.mark.parametrize("at", ["start", "handler"])
@pytest.mark.parametrize("loop_lives", [True, False])
def test_a_thread_that_ends_after_its_time_ends_in_silence(
    at: str, loop_lives: bool, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A16: neither InvalidStateError nor "Event loop is closed"."""
    may_end = threading.Event()

    async def main() -> None:
        async with rt.System(stop_timeout_s=0.1) as system:
            if at == "start":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await system.spawn(rt.spec(Deaf, may_end, at), name="deaf")
            else:
                deaf = await system.spawn(rt.spec(Deaf, may_end, at), name="deaf")
                call = asyncio.ensure_future(deaf.work())
                call.add_done_callback(lambda call: call.exception())
                await asyncio.sleep(0.1)
        if loop_lives:
            await end_of_thread()

    async def end_of_thread() -> None:
        may_end.set()
        while any(thread.name == "deaf" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    asyncio.run(main())
    asyncio.run(end_of_thread())
    assert re.findall("InvalidStateError|loop is closed|Traceback", capfd.readouterr().err) == []
    assert [record.message for record in caplog.records if record.name in ("asyncio", "concurrent.futures")] == []


def test_a_system_is_refused_on_another_loop_and_goes_on_on_its_own() -> None:
    """C50: used, left and stopped from a second loop while its own runs."""
    told: list[str] = []

    async def elsewhere(system: rt.System, counter: Counter) -> None:
        for use in (
            lambda: system.spawn(rt.spec(Chain)),
            lambda: system.stop(counter),
            lambda: system.restart(counter),
            lambda: system.__aexit__(None, None, None),
            lambda: system.statistics(),
        ):
            try:
                await asyncio.wait_for(use(), 5)  # type: ignore[no-untyped-call]
            except rt.NotInSystem as error:
                told.append(str(error))

    async def main() -> None:
        async with rt.System("mine") as system:
            counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
            await asyncio.to_thread(lambda: asyncio.run(elsewhere(system, counter)))
            assert await counter.add(1) == 1

    asyncio.run(main())
    assert len(told) == 5
    assert all("system 'mine' was used outside the event loop that entered it" in text for text in told)


def test_a_system_whose_loop_was_closed_says_so_and_its_processes_are_killed() -> None:
    """C50: `asyncio.run(use(system)); asyncio.run(system.__aexit__(...))`."""
    system = rt.System()

    async def use() -> None:
        await system.__aenter__()
        await system.spawn(rt.spec(Counter, 0), where=rt.process())

    async def leave() -> None:
        async with asyncio.timeout(5):
            await system.__aexit__(None, None, None)

    before = resources()
    asyncio.run(use())
    with pytest.raises(rt.NotInSystem, match="was not left before its event loop was closed"):
        asyncio.run(leave())
    assert held(before) == []
    with pytest.raises(rt.NotInSystem, match="has stopped"):
        asyncio.run(leave())


async def test_a_stop_that_nobody_waits_for_is_waited_for_when_the_system_is_left(tmp_path: Path) -> None:
    """C67: stop and restart go on when their caller is cancelled, and are part of what leaving waits for."""
    async with rt.System() as system:
        slow = await system.spawn(rt.spec(Farewell, str(tmp_path / "slow"), 0.3))
        again = await system.spawn(rt.spec(Farewell, str(tmp_path / "again"), 0.3), restart=KEEP)
        calls = [asyncio.ensure_future(system.stop(slow)), asyncio.ensure_future(system.restart(again))]
        await asyncio.sleep(0.05)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    assert tasks_left() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "slow"]
