"""Programs that find each other's actors by name: ``python named_programs.py ROLE NAME [ARGUMENT]``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import ringcast.actors as rt


class Tally(rt.Actor):
    """Adds up; what others call."""

    def __init__(self) -> None:
        self.n = 0

    @rt.call
    async def add(self, k: int) -> int:
        self.n += k
        return self.n

    @rt.call(concurrent=True)
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @rt.call
    async def fail(self) -> None:
        raise ValueError("as asked")

    @rt.call
    async def size(self, data: bytes) -> int:
        return len(data)

    @rt.stream(window=8)
    async def count(self, n: int) -> AsyncIterator[int]:
        for k in range(n):
            yield k


async def serve(name: str, seconds: float) -> None:
    """Serve an actor here and one in a process of its own."""
    async with rt.System("served") as system:
        near = await system.spawn(rt.spec(Tally), name="near")
        far = await system.spawn(rt.spec(Tally), name="far", where=rt.process(), restart=rt.Restart("permanent"))
        async with rt.serve(system, name, {"near": near, "far": far}):
            print("serving", flush=True)
            await asyncio.sleep(seconds)


async def call_for_ever(name: str) -> None:
    """Call both until the server is gone; the number of calls that were answered, and how it ended."""
    answered = 0
    async with rt.connect(name) as remote:
        print("connected", flush=True)
        actors = [remote.find("near", Tally), remote.find("far", Tally)]
        try:
            while True:
                for actor in actors:
                    await actor.add(1)
                    answered += 1
        except rt.ActorDied:
            print("ActorDied", flush=True)


async def add(name: str, k: int) -> None:
    """One call."""
    async with rt.connect(name) as remote:
        print(await remote.find("far", Tally).add(k), flush=True)


if __name__ == "__main__":
    role, name, *rest = sys.argv[1:]
    if role == "serve":
        asyncio.run(serve(name, float(rest[0])))
    elif role == "add":
        asyncio.run(add(name, int(rest[0])))
    else:
        asyncio.run(call_for_ever(name))
