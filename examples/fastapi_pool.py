"""A FastAPI app with a supervised pool of processes. Run it with: uvicorn fastapi_pool:app

kill -9 of a pool process: the request in it gets a 503, and the process is back before you have looked.
"""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

import ringcast.actors as rt


class Cruncher(rt.BlockingActor):
    @rt.call
    def crunch(self, n: int) -> int:
        return sum(k * k for k in range(n))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with rt.System("crunchers") as system:
        pool = await system.spawn_group(
            [rt.spec(Cruncher) for _ in range(2)], name="cruncher", restart=rt.Restart("permanent")
        )
        app.state.system = system
        app.state.turns = itertools.cycle(pool)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/crunch/{n}")
async def crunch(n: int, request: Request) -> dict[str, int]:
    cruncher: Cruncher = next(request.app.state.turns)
    try:
        async with rt.deadline(10):
            return {"result": await cruncher.crunch(n)}
    except rt.ActorError as error:
        raise HTTPException(503, str(error)) from error
