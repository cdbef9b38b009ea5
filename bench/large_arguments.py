"""Large arrays in calls, beside `multiprocessing.Pipe`: round trips, and how long the caller's loop is silent.

A part of bench.actors.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import ringcast.actors as rt

from .actor_zoo import Echo

MIB: Final = 1 << 20
METHOD: Final = (
    "Large arguments: an array of bytes goes to another process and comes back; the Pipe's process receives it with "
    "`recv` and sends it back with `send`. Silence is the longest time between two turns of the caller's loop, which "
    "has a timer every millisecond, over the same calls."
)


def sizes_mib(is_tiny: bool) -> tuple[int, ...]:
    """Of the arrays."""
    return (1, 6) if is_tiny else (50, 200)


async def measure_large(add: Callable[[str, float], None], sizes: tuple[int, ...]) -> None:
    """Add the figures of one repetition: ``large N``, ``silence N`` and ``pipe N``, in milliseconds."""
    import numpy

    arrays = {size: numpy.ones(size * MIB, numpy.uint8) for size in sizes}
    async with rt.System("bench") as system:
        echo: Any = await system.spawn(rt.spec(Echo), where=rt.process())
        await echo.ping(arrays[sizes[0]])
        for size, array in arrays.items():
            longest = [0.0]
            looking = asyncio.ensure_future(_look(longest))
            await asyncio.sleep(0.01)
            began = time.perf_counter()
            answer = await echo.ping(array)
            add(f"large {size}", (time.perf_counter() - began) * 1e3)
            looking.cancel()
            add(f"silence {size}", longest[0] * 1e3)
            assert answer.nbytes == array.nbytes
            del answer
    with _pipe() as connection:
        connection.send(arrays[sizes[0]])
        connection.recv()
        for size, array in arrays.items():
            began = time.perf_counter()
            connection.send(array)
            assert connection.recv().nbytes == array.nbytes
            add(f"pipe {size}", (time.perf_counter() - began) * 1e3)


async def _look(longest: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest[0], last = max(longest[0], now - last), now


@contextmanager
def _pipe() -> Iterator[Any]:
    """Our end of a pipe to a process that sends everything back."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_send_back, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.send(None)
        ours.recv()
        yield ours
    finally:
        ours.close()
        process.join()


def _send_back(connection: Any) -> None:
    while True:
        try:
            connection.send(connection.recv())
        except EOFError:
            return
