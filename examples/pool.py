"""A pool of four processes: the least loaded one gets the next job, and one that dies takes nothing else with it."""

import asyncio
import os
import signal

import ringcast.actors as rt


class Cruncher(rt.BlockingActor):
    @rt.call(idempotent=True)
    def crunch(self, n: int) -> int:
        return sum(k * k for k in range(n))


async def main(system: rt.System) -> None:
    pool = await system.spawn_pool([rt.spec(Cruncher) for _ in range(4)], name="cruncher", max_pending=2)
    crunch = rt.retry(pool.any.crunch)  # idempotent: repeated at another member when its member dies
    jobs = [asyncio.ensure_future(crunch(50_000)) for _ in range(40)]
    await asyncio.sleep(0.02)
    os.kill(system.pids()["cruncher-0"], signal.SIGKILL)
    print(len(set(await asyncio.gather(*jobs))), "result of", len(jobs), "jobs")
    for member in pool.statistics().members:
        print(f"{member.name}: {member.num_sent} jobs")


rt.run(main)
