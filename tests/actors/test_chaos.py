"""Random kills and stops in a tree of three levels under traffic: invariants hold and nothing leaks.

The short form runs with the other tests; `make chaos` sets RINGCAST_CHAOS_KILLS to 500.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter as Tally

import pytest
from actor_zoo import Counter, Relay

import ringcast.actors as rt

KILLS = int(os.environ.get("RINGCAST_CHAOS_KILLS", "25"))
pytestmark = [pytest.mark.usefixtures("leak_oracle"), pytest.mark.timeout(60 + 4 * KILLS)]

GENEROUS = rt.Restart("permanent", max_restarts=10_000, within_s=60, backoff_s=0.005, max_backoff_s=0.02)


class Traffic:
    """Callers that never stop asking; each call must end once, and in time."""

    def __init__(self) -> None:
        self.ends: Tally[str] = Tally()
        self.unexpected: list[BaseException] = []
        self.stop = False

    async def ask(self, target: Counter | Relay) -> None:
        while not self.stop:
            try:
                async with asyncio.timeout(20):
                    await target.add(1)
            except (rt.ActorDied, rt.RemoteError) as error:
                # A relay passes its target's death on as its own handler's error.
                if isinstance(error, rt.RemoteError) and error.type_name not in ("ActorDied", "CallCancelled"):
                    self.unexpected.append(error)
                self.ends[type(error).__name__] += 1
                await asyncio.sleep(0.002)
            except rt.CallCancelled:
                self.ends["CallCancelled"] += 1
            except Exception as error:  # a TimeoutError here is a lost call
                self.unexpected.append(error)
                return
            else:
                self.ends["value"] += 1


async def test_a_tree_under_traffic_survives_random_kills_and_stops() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    async with rt.System("chaos") as system:
        top = system.supervise("top", strategy="rest_for_one", max_restarts=10_000, restart=GENEROUS)
        middle = top.supervise("middle", strategy="one_for_all", max_restarts=10_000, restart=GENEROUS)
        low = middle.supervise("low", max_restarts=10_000, restart=GENEROUS)
        actors: dict[str, Counter | Relay] = {}
        places = (("top-a", top), ("middle-a", middle), ("middle-b", middle), ("low-a", low), ("low-b", low))
        for name, supervisor in places:
            actors[name] = await supervisor.spawn(rt.spec(Counter, 0), name=name, where=rt.process(), restart=GENEROUS)
        actors["relay"] = await low.spawn(
            rt.spec(Relay, actors["top-a"]), name="relay", where=rt.process(), restart=GENEROUS
        )
        traffic = Traffic()
        callers = [asyncio.ensure_future(traffic.ask(actor)) for actor in actors.values()]

        for _ in range(KILLS):
            await asyncio.sleep(chance.random() * 0.05)
            name = chance.choice(sorted(actors))
            how = chance.choice(["kill", "kill", "term", "stop and continue", "restart"])
            pid = system.pids().get(name)
            if pid is None:
                continue
            try:
                if how == "kill":
                    os.kill(pid, signal.SIGKILL)
                elif how == "term":
                    os.kill(pid, signal.SIGTERM)
                elif how == "stop and continue":
                    os.kill(pid, signal.SIGSTOP)
                    await asyncio.sleep(0.02)
                    os.kill(pid, signal.SIGCONT)
                else:
                    await system.restart(actors[name])
            except (ProcessLookupError, rt.ActorError):
                continue  # it died or is being restarted already

        async with asyncio.timeout(60):
            for actor in actors.values():  # everybody comes back, and serves
                async for event in system.watch(actor):
                    assert not isinstance(event, rt.GaveUp), event
                    if isinstance(event, rt.Ready):
                        break
            await asyncio.sleep(0.3)
            traffic.stop = True
            await asyncio.gather(*callers)
        assert traffic.unexpected == []
        assert traffic.ends["value"] > KILLS
        print(dict(traffic.ends))
