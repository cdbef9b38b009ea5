"""A FastAPI app with a supervised pool of processes. Run it with: uvicorn fastapi_pool:app

kill -9 of a pool process: the request in it gets a 503, and the process is back before you have looked.
"""

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
        app.state.system = system
        app.state.pool = await system.spawn_pool([rt.spec(Cruncher) for _ in range(2)], name="cruncher")
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/crunch/{n}")
async def crunch(n: int, request: Request) -> dict[str, int]:
    pool: rt.Pool[Cruncher] = request.app.state.pool
    try:
        async with rt.deadline(10):
            return {"result": await pool.any.crunch(n)}
    except rt.ActorError as error:
        raise HTTPException(503, str(error)) from error
