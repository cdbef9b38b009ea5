"""What it costs to have had actors: ``python forgotten.py [here|process] [N]`` spawns and stops N of them.

Each has an argument of 1 MiB. Prints the memory and the time of a spawn at the beginning and at the end.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time

import ringcast.actors as rt

ARGUMENT_BYTES = 1 << 20


class Loaded(rt.Actor):
    def __init__(self, load: bytes) -> None:
        self.load = load

    async def on_stop(self, reason: str) -> object:
        return self.load


def rss_bytes() -> int:
    """The resident memory of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def spawn_and_stop(system: rt.System, where: rt.Where, count: int) -> float:
    """Seconds that one spawn and stop took, the median."""
    times = []
    for _ in range(count):
        load = bytes(ARGUMENT_BYTES)
        began = time.perf_counter()
        await system.stop(await system.spawn(rt.spec(Loaded, load), where=where))
        times.append(time.perf_counter() - began)
    return sorted(times)[count // 2]


async def main(where: rt.Where, count: int) -> None:
    part = max(1, count // 10)
    async with rt.System() as system:
        await spawn_and_stop(system, where, part)  # warm
        first, before = await spawn_and_stop(system, where, part), rss_bytes()
        print(f"first: {first * 1e6:.0f} us a spawn and stop, {before >> 20} MiB")
        await spawn_and_stop(system, where, count)
        last, after = await spawn_and_stop(system, where, part), rss_bytes()
        print(f"after {count} more: {last * 1e6:.0f} us a spawn and stop, {after >> 20} MiB")


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv[1:]))
    place = rt.process() if arguments.get(0) == "process" else rt.here
    asyncio.run(main(place, int(arguments.get(1, "10000"))))
