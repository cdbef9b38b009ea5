"""A handler of an idle actor begins in the callback that brought its message: nobody can tell, but for the time."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import ringcast.actors as rt
from ringcast.actors._native import Incoming
from ringcast.actors.async_cell import AsyncCell
from ringcast.actors.call_context import EMPTY, CallContext
from ringcast.actors.cell import Panel
from ringcast.actors.wire import FailureKind

MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


class Caller:
    """An origin that keeps what it is told."""

    def __init__(self) -> None:
        self.answers: dict[int, Any] = {}
        self.texts: list[str] = []  # of failures

    def reply(self, name: str, call_id: int, value: Any) -> None:
        self.answers[call_id] = value

    def fail(self, name: str, call_id: int, kind: FailureKind, error: Any, text: str, trace: str) -> None:
        self.answers[call_id] = kind
        self.texts.append(text)

    def items(self, name: str, call_id: int, items: list[Any], window: int) -> None: ...
    def took(self, actor_id: int, size_bytes: int, capacity_bytes: int) -> None: ...


class Marked(Exception):
    """Its text is looked up when it is wanted."""

    def __str__(self) -> str:
        return MARK.get()


class Worker(rt.Actor):
    """Handlers that end at once, later, or badly."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate = asyncio.Event()
        self.inner: asyncio.Future[None] | None = None

    @rt.call
    async def double(self, x: int) -> int:
        return 2 * x

    @rt.call
    async def bad(self, error: str) -> None:
        raise {"ValueError": ValueError, "SystemExit": SystemExit, "StopIteration": StopIteration}[error](error)

    @rt.call
    async def marks_and_fails(self, waits: bool) -> None:
        MARK.set("failed")
        if waits:
            await asyncio.sleep(0)
        raise Marked

    @rt.call
    async def wait(self, name: str) -> str:
        self.log.append(f"{name} began")
        await self.gate.wait()
        self.log.append(f"{name} goes on")
        return name

    @rt.call
    async def wait_for_inner(self) -> str:
        self.inner = asyncio.get_running_loop().create_future()
        try:
            await self.inner
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        return "inner"

    @rt.call
    async def only_yields(self) -> str:
        await asyncio.sleep(0)
        return "yielded"

    @rt.call
    async def task_and_mark(self) -> tuple[bool, bool, str, str]:
        task, before = asyncio.current_task(), MARK.get()
        MARK.set("handler")
        await asyncio.sleep(0)
        return task is not None, asyncio.current_task() is task, before, MARK.get()

    @rt.call
    async def group_fails(self, body_waits: bool) -> str:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fail_soon())
                if body_waits:
                    await asyncio.sleep(60)
        except ExceptionGroup:
            return "failed"
        return "no failure"

    async def _fail_soon(self) -> None:
        await asyncio.sleep(0)
        raise KeyError

    @rt.call
    async def swallows(self) -> str:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.log.append("swallowed")
        return "went on"

    @rt.call
    async def limited(self) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "timed out"
        return "slept"

    @rt.call
    async def cancels_its_task(self, then_waits: bool) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if then_waits:
            await asyncio.sleep(60)
        return "went on"


class Desk:
    """A worker's cell, served; messages come in a callback as from a ring."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.handlers: list[int] = []
        self.cell = AsyncCell(self.worker, 1, "worker", Panel(self.handlers.append, lambda *_: None))
        self.caller = Caller()
        self.task = self.cell.start()
        self._calls = 0

    def ask(self, method: str, *args: Any, context: CallContext | None = None) -> tuple[int, bool]:
        """Its number, and whether it was over before the loop had a turn."""
        assert asyncio.current_task() is None, "only in a callback"
        self._calls += 1
        incoming = Incoming(self._calls, method, list(args), {}, self.caller, 100, context or EMPTY)
        return self._calls, self.cell.put_and_run(incoming)

    async def in_callback(self, what: Any) -> Any:
        """Call it where a ring's messages are handled."""
        done = asyncio.get_running_loop().create_future()

        def call() -> None:
            try:
                done.set_result(what())
            except BaseException as error:
                done.set_exception(error)

        asyncio.get_running_loop().call_soon(call)
        return await done

    async def answer(self, call_id: int) -> Any:
        """The answer to a call."""
        async with asyncio.timeout(5):
            while call_id not in self.caller.answers:
                await asyncio.sleep(0)
        return self.caller.answers[call_id]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    await asyncio.sleep(0)
    yield desk
    desk.cell.stop()
    await asyncio.wait([desk.task])
    await desk.cell.close()


async def test_what_needs_no_waiting_is_over_at_once(desk: Desk) -> None:
    def call() -> None:
        call_id, is_over = desk.ask("double", 21)
        assert is_over and desk.caller.answers[call_id] == 42
        assert asyncio.current_task() is None
        call_id, is_over = desk.ask("double", 4)
        assert is_over and desk.caller.answers[call_id] == 8

    await desk.in_callback(call)
    number = desk.handlers[0]
    assert number > 0 and desk.handlers == [number, 0, number, 0]
    assert (desk.cell.meter.handled, desk.cell.meter.peak_depth) == (2, 1)


async def test_what_waits_goes_on_in_the_task_and_the_next_waits_for_it(desk: Desk) -> None:
    first, is_over = await desk.in_callback(lambda: desk.ask("wait", "first"))
    assert not is_over and desk.worker.log == ["first began"]
    second, is_over = await desk.in_callback(lambda: desk.ask("wait", "second"))
    assert not is_over and desk.worker.log == ["first began"]
    desk.worker.gate.set()
    assert [await desk.answer(call_id) for call_id in (first, second)] == ["first", "second"]
    assert desk.worker.log == ["first began", "first goes on", "second began", "second goes on"]


async def test_two_that_come_before_the_task_has_a_turn_are_handled_in_order(desk: Desk) -> None:
    def both() -> list[int]:
        return [desk.ask("wait", "a")[0], desk.ask("double", 1)[0]]

    first, second = await desk.in_callback(both)
    await asyncio.sleep(0.01)
    assert desk.caller.answers == {}
    desk.worker.gate.set()
    assert await desk.answer(second) == 2 and desk.caller.answers[first] == "a"


@pytest.mark.parametrize("error", ["ValueError", "SystemExit", "StopIteration"])
async def test_an_error_is_the_callers_and_the_next_call_is_handled(desk: Desk, error: str) -> None:
    call_id, is_over = await desk.in_callback(lambda: desk.ask("bad", error))
    assert is_over and desk.caller.answers[call_id] is FailureKind.RAISED
    call_id, _ = await desk.in_callback(lambda: desk.ask("double", 1, 2))  # wrong arguments
    assert desk.caller.answers[call_id] is FailureKind.RAISED
    call_id, _ = await desk.in_callback(lambda: desk.ask("double", 1))
    assert desk.caller.answers[call_id] == 2


@pytest.mark.parametrize("waits", [False, True])
async def test_its_failure_is_told_in_its_context(desk: Desk, waits: bool) -> None:
    call_id, is_over = await desk.in_callback(lambda: desk.ask("marks_and_fails", waits))
    while call_id not in desk.caller.answers:
        await asyncio.sleep(0)
    assert (is_over, desk.caller.texts, MARK.get()) == (not waits, ["failed"], "none")


async def test_the_handlers_task_and_context_are_the_mailboxs_from_its_first_step_on(desk: Desk) -> None:
    def call() -> tuple[int, str]:
        return desk.ask("task_and_mark")[0], MARK.get()

    call_id, mark_outside = await desk.in_callback(call)
    assert await desk.answer(call_id) == (True, True, "none", "handler")
    assert mark_outside == "none"
    assert await desk.answer((await desk.in_callback(lambda: desk.ask("only_yields")))[0]) == "yielded"


async def test_a_time_out_inside_works(desk: Desk) -> None:
    call_id, _ = await desk.in_callback(lambda: desk.ask("limited"))
    assert await desk.answer(call_id) == "timed out"


@pytest.mark.parametrize("body_waits", [False, True])
@pytest.mark.parametrize("before", ["idle", "busy"])
async def test_a_task_group_that_fails_inside_is_the_handlers_affair(desk: Desk, before: str, body_waits: bool) -> None:
    """Before Python 3.13 the group leaves its task with a cancellation counted; it was taken for the mailbox's."""
    if before == "busy":
        await desk.in_callback(lambda: desk.ask("only_yields"))
    for _ in range(2):
        call_id, _ = await desk.in_callback(lambda: desk.ask("group_fails", body_waits))
        assert await desk.answer(call_id) == "failed"
    call_id, _ = await desk.in_callback(lambda: desk.ask("double", 3))
    assert await desk.answer(call_id) == 6


async def test_a_stop_that_the_handler_swallows_is_a_stop(desk: Desk) -> None:
    call_id, _ = await desk.in_callback(lambda: desk.ask("swallows"))
    desk.cell.stop()
    await asyncio.wait([desk.task])
    assert desk.task.cancelled() and desk.worker.log == ["swallowed"]
    assert desk.caller.answers == {call_id: "went on"}


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_a_caller_that_gives_up_cancels_what_the_handler_waits_for(desk: Desk, turns: int) -> None:
    def ask() -> int:
        call_id, _ = desk.ask("wait_for_inner")
        if turns == 0:  # before the task has taken it over
            desk.cell.cancel(desk.caller, call_id)
        return call_id

    call_id = await desk.in_callback(ask)
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns:
        desk.cell.cancel(desk.caller, call_id)
    async with asyncio.timeout(5):
        while not desk.worker.log:
            await asyncio.sleep(0)
    assert desk.worker.inner is not None and desk.worker.inner.cancelled()
    assert desk.caller.answers == {}
    call_id, _ = await desk.in_callback(lambda: desk.ask("double", 3))
    assert await desk.answer(call_id) == 6


async def test_a_caller_that_gives_up_on_what_only_yields(desk: Desk) -> None:
    def ask() -> None:
        call_id, _ = desk.ask("only_yields")
        desk.cell.cancel(desk.caller, call_id)

    await desk.in_callback(ask)
    call_id, _ = await desk.in_callback(lambda: desk.ask("double", 3))
    assert await desk.answer(call_id) == 6
    assert desk.caller.answers == {call_id: 6}


@pytest.mark.parametrize("turns", [0, 3])
async def test_a_stop_reaches_a_handler_that_has_begun(desk: Desk, turns: int) -> None:
    def ask() -> int:
        call_id, _ = desk.ask("wait_for_inner")
        if turns == 0:
            desk.cell.stop()
        return call_id

    call_id = await desk.in_callback(ask)
    for _ in range(turns):
        await asyncio.sleep(0)
    desk.cell.stop()
    await asyncio.wait([desk.task])
    assert desk.task.cancelled()
    assert desk.worker.log == ["cancelled"]
    assert desk.caller.answers == {call_id: FailureKind.CANCELLED}


async def test_a_deadline_ends_it(desk: Desk) -> None:
    soon = CallContext(deadline=time.monotonic() + 0.02)
    call_id, _ = await desk.in_callback(lambda: desk.ask("wait_for_inner", context=soon))
    assert await desk.answer(call_id) is FailureKind.DEADLINE
    late = CallContext(deadline=time.monotonic() - 1)
    call_id, is_over = await desk.in_callback(lambda: desk.ask("double", 1, context=late))
    assert is_over and desk.caller.answers[call_id] is FailureKind.DEADLINE


async def test_a_handler_that_is_ended_by_its_own_cancellation_ends_the_mailbox(desk: Desk) -> None:
    call_id, _ = await desk.in_callback(lambda: desk.ask("cancels_its_task", True))
    async with asyncio.timeout(5):
        await asyncio.wait([desk.task])
    assert desk.task.cancelled()
    assert desk.caller.answers == {call_id: FailureKind.CANCELLED}


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_handler_that_cancels_its_own_task_and_ends_all_the_same_leaves_the_mailbox(
    desk: Desk, at_once: bool
) -> None:
    def call() -> None:
        if not at_once:
            desk.ask("only_yields")
        desk.ask("cancels_its_task", False)

    await desk.in_callback(call)
    call_id, _ = await desk.in_callback(lambda: desk.ask("double", 2))
    assert await desk.answer(call_id) == 4
    assert "went on" in desk.caller.answers.values()


async def test_an_answer_that_cannot_be_given_ends_the_mailbox_and_is_counted_once(desk: Desk) -> None:
    def no_memory(name: str, call_id: int, value: Any) -> None:
        raise MemoryError

    desk.caller.reply = no_memory  # type: ignore[method-assign]
    _, is_over = await desk.in_callback(lambda: desk.ask("double", 1, context=CallContext(time.monotonic() + 0.01)))
    async with asyncio.timeout(5):
        await asyncio.wait([desk.task])
    assert not is_over and isinstance(desk.task.exception(), MemoryError)
    await asyncio.sleep(0.05)  # its deadline cancels nothing any more
