"""Running a command-line program on a system: the one place of the runtime that touches signal handlers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from .loops import run_on_new_loop
from .system import System


def run(main: Callable[[System], Awaitable[int | None]], *, system: System | None = None) -> int:
    """Run ``main(system)`` on a new event loop and return the process's exit code.

    The code is what ``main`` returns (None is 0). SIGINT and SIGTERM cancel ``main``, the system stops in order and
    the code is 128 plus the signal's number; a second signal ends the process at once, and every child with it.
    Programs that have a loop of their own use ``async with System()`` instead; nothing is installed there.
    """
    return run_on_new_loop(_run(main, system or System()))


async def _run(main: Callable[[System], Awaitable[int | None]], system: System) -> int:
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []
    task: asyncio.Future[int | None] | None = None

    def on_signal(number: signal.Signals) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with system:
            task = asyncio.ensure_future(main(system))
            try:
                code = await task
            except asyncio.CancelledError:
                if not received:
                    raise
                code = None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return 128 + received[0] if received else (code or 0)
