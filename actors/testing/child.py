"""A child process of the simulation, from its start to its end, and its parent's handle of it.

It runs the runtime's own code for child processes, on a loop or a thread of the simulated world.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any

from ringcast.channels import Codec, Link

from .. import platform
from ..actor import Actor
from ..boot import load_class
from ..child_output import LastLines
from ..child_process import EXIT_FAILED, Place, _live_async, _live_blocking, _receive_boot, _trace
from ..errors import ActorError
from ..import_guard import loading
from ..launch import DUMP_SIGNAL, ChildProcess
from ..wire import FrameKind
from .loop import SimulatedLoop, make_loop
from .process import Process
from .thread import SimulatedThread
from .world import World

START_S = (0.5e-3, 50e-3)  # how long a process takes to its first line


class SimulatedChild(ChildProcess):
    """The parent's handle. It hears of the end a little later, on its own loop."""

    def __init__(self, world: World, name: str, link_fd: int, on_exit: Callable[[ChildProcess], None]) -> None:
        self.name = name
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._has_begun = True
        self._last = LastLines()
        self._output = None
        self._context = contextvars.copy_context()
        self._process = Process(world, name, is_child=True)
        self._process.descriptors.append(os.dup(link_fd))
        self._process.on_end = self._ended
        world.note(self._process, f"starts, a child of {world.current.label if world.current else '-'}")
        context = contextvars.Context()  # a new process inherits no context
        context.run(platform.use, platform.current())
        world.after(world.random.uniform(*START_S), lambda: context.run(self._process.at_once, self._boot))

    @property
    def process(self) -> Process:
        return self._process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    def signal(self, number: signal.Signals) -> None:
        if self._process.has_ended:
            return
        if number == DUMP_SIGNAL:
            for strand in self._process.strands:
                if isinstance(strand, SimulatedLoop):
                    for task in strand.tasks:
                        if not task.done():
                            self._say(f"{task.get_name()}: {getattr(task.get_coro(), '__qualname__', '?')}")
                else:
                    self._say("a thread, in a blocking call")
        else:
            self._process.signal(number)

    async def ping(self) -> float:
        world, process = self._process.world, self._process
        sent_at = world.now
        answered: asyncio.Future[float] = self._loop.create_future()

        def answer() -> None:
            if answered.done():
                return
            if process.has_ended:
                text = f"process {self.pid} of {self.name!r} ended before it answered"
                answered.set_exception(ActorError(text))
            elif process.frozen_until > world.now:
                process.after_thaw(answer)
            else:
                answered.set_result(world.now - sent_at)

        world.after(world.latency_s(), answer)
        return await answered

    def _describe_state(self) -> str:
        return "the simulated process stands still" if self._process.frozen_until else "the simulated process is busy"

    def _say(self, line: str) -> None:
        """A line of its output."""
        self._last.add([line])

    def _boot(self) -> None:
        _boot(self._process, self._say)

    def _ended(self) -> None:
        world = self._process.world
        world.after(world.latency_s(), lambda: void(self._loop.call_soon(self._on_exit, self, context=self._context)))


def void(_: object) -> None:
    """A statement made of an expression."""


def _boot(process: Process, say: Callable[[str], None]) -> None:
    """What `child_process.run_child` does, without what concerns the whole interpreter."""
    link = Link(process.descriptors.pop())
    if link.closed or not _has_boot_frame(link):
        process.end(EXIT_FAILED, "its parent is gone")
        return
    process.closers.append(link.close)
    place = _receive_boot(link)
    process.descriptors.append(place.abort_fd)
    process.closers.append(lambda: _close_unused(process, place))
    try:
        with loading(f"actor class {place.boot.class_name}"):
            cls = load_class(place.boot.class_name, place.boot.class_bytes)
    except BaseException as error:
        place.link.send(FrameKind.START_FAILED, 0, Codec().encode(_trace(error)))
        process.exit(EXIT_FAILED)
        return
    if issubclass(cls, Actor):
        _start_loop(process, place, cls, say)
    else:
        _start_thread(process, place, cls, say)


def _close_unused(process: Process, place: Place) -> None:
    """It died before it had met anybody."""
    if not process.nodes:
        os.close(place.root_bell_fd)
        os.close(place.root_ring_fd)


def _has_boot_frame(link: Link) -> bool:
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _start_loop(process: Process, place: Place, cls: Any, say: Callable[[str], None]) -> None:
    loop = make_loop(process)

    async def live() -> int:
        code = await _live_async(place, cls)
        others = [task for task in loop.tasks if task is not main and not task.done()]
        for task in others:  # as asyncio.run does at its end
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return code

    main = loop.create_task(live(), name=f"{process.label}: main")

    def ended(task: asyncio.Task[int]) -> None:
        error = task.exception()
        if error is not None:
            _say_error(say, error)
        process.exit(EXIT_FAILED if error is not None else task.result())

    main.add_done_callback(ended)


def _start_thread(process: Process, place: Place, cls: Any, say: Callable[[str], None]) -> None:
    def live() -> None:
        try:
            code: object = _live_blocking(place, cls)
        except SystemExit as exit:
            code = exit.code
        except Exception as error:
            _say_error(say, error)
            code = EXIT_FAILED
        process.exit(code)

    process.strands.append(SimulatedThread(process, live, f"{process.label}: main"))


def _say_error(say: Callable[[str], None], error: BaseException) -> None:
    for line in "".join(traceback.format_exception(error)).splitlines():
        say(line)
