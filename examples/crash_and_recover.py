"""kill -9 of a supervised actor: the call in flight says how it ended, and the next one works again."""

import asyncio
import os
import signal

import ringcast.actors as rt


class Worker(rt.Actor):
    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        ctx.phase("load", stall_after=30)
        self.incarnation = ctx.incarnation

    @rt.call
    async def work(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return f"done by incarnation {self.incarnation}"


async def main(system: rt.System) -> None:
    worker = await system.spawn(
        rt.spec(Worker), name="worker", where=rt.process(), restart=rt.Restart("permanent", backoff_s=0.1)
    )
    print(await worker.work(0.01))

    in_flight = asyncio.ensure_future(worker.work(60))
    await asyncio.sleep(0.1)
    os.kill(system.pids()["worker"], signal.SIGKILL)
    try:
        await in_flight
    except rt.ActorDied as error:
        print("the call in flight:", error)

    async for event in system.watch(worker):
        print("event:", type(event).__name__)
        if isinstance(event, rt.Ready) and event.incarnation > 1:
            break
    print(await worker.work(0.01))


rt.run(main)
