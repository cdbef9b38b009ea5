"""Runs a whole system, processes and all, on one virtual clock, with faults, by the choices of a seed.

The runtime's own code runs over real rings, links and doorbells; processes, threads, time, scheduling and the moment
at which a wake-up is noticed are simulated. What users of the testing kit call.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from .. import platform
from ..child_output import Output
from ..launch import ChildProcess
from ..node import Node
from ..system import System
from .child import SimulatedChild
from .errors import NotSimulated, SimulationFailed
from .faults import Faults
from .interposer import Interposer
from .loop import SimulatedLoop, make_loop
from .observer import Registry
from .process import Process
from .thread import SimulatedCondition, SimulatedThread
from .trace import START_S, Trace
from .world import World

T = TypeVar("T")


class SimulatedPlatform(platform.Platform):
    """The machine that the runtime sees in a simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._registry = Registry()

    def show_title(self, title: str) -> None:
        """Not here: all of its processes are this one."""

    def start_process(
        self,
        name: str,
        link_fd: int,
        env: Mapping[str, str],
        output: Output,
        on_exit: Callable[[ChildProcess], None],
    ) -> ChildProcess:
        return SimulatedChild(self._world, name, link_fd, on_exit)

    def start_thread(self, target: Callable[[], None], name: str) -> None:
        process = self._process()
        process.strands.append(SimulatedThread(process, target, name))

    def large_bytes(self, ring_bytes: int) -> int:
        return sys.maxsize  # every message is bytes at once: when a thread would be done depended on the machine

    def condition(self) -> threading.Condition:
        return SimulatedCondition()

    def random(self) -> random.Random:
        return random.Random(self._world.random.getrandbits(64))

    def node_made(self, node: Node) -> None:
        self._registry.node_made(self._process(), node)

    def _process(self) -> Process:
        process = self._world.current
        assert process is not None
        return process


class Simulation:
    """``with Simulation(seed=7) as sim: sim.run(main)``, where ``async def main(system)`` uses the ordinary API.

    Inside, ``rt.process()`` gives a simulated process, time is virtual (``time.sleep`` and ``asyncio.sleep`` cost
    none), and every choice is drawn from ``seed``: the same seed gives the same `trace`. ``faults`` may be changed on
    the way. ``ring_bytes`` is the system's; a run of more than ``max_steps`` steps or ``limit_s`` virtual seconds
    fails. One simulation at a time can be entered in a process.

    The invariants of the runtime are checked all along: each message arrives once and in order, each call ends once
    with the answer given to it, mailboxes keep their bound, nothing is handled after its actor's death, restarts keep
    within their policy, nothing outlives its system.
    """

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults = Faults(),  # noqa: B008 (a frozen value)
        ring_bytes: int = 1 << 16,
        max_steps: int = 500_000,
        limit_s: float = 3600.0,
    ) -> None:
        self.seed = seed
        self._ring_bytes = ring_bytes
        self._world = World(seed, faults, max_steps, limit_s)
        self._platform = SimulatedPlatform(self._world)
        self._interposer = Interposer(self._world)
        self._app: Process | None = None
        self._loop: SimulatedLoop | None = None

    def __enter__(self) -> Simulation:
        if self._app is not None:
            raise NotSimulated("a simulation is entered once: make another one")
        self._interposer.install()
        self._app = Process(self._world, "app", is_child=False)
        self._loop = make_loop(self._app)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._world.release()
        finally:
            self._interposer.remove()

    def run(self, main: Callable[[System], Coroutine[Any, Any, T]]) -> T:
        """Run ``main`` in a new system, stop the system, and check the invariants; what ``main`` returned.

        `SimulationFailed` tells a broken invariant, a deadlock or an endless run. What ``main`` raises comes out as it
        is, with the seed and the end of the trace as a note.
        """
        if self._loop is None or asyncio._get_running_loop() is not None:
            raise NotSimulated("enter the simulation first (with Simulation(...) as sim), outside of any event loop")
        context = contextvars.copy_context()
        context.run(platform.use, self._platform)
        try:
            return context.run(self._run, main)
        except SimulationFailed:
            raise
        except BaseException as error:
            error.add_note(f"(simulation of seed {self.seed}) --- the end of the trace:\n{self._world.trace.tail()}")
            raise

    def _run(self, main: Callable[[System], Coroutine[Any, Any, T]]) -> T:
        world, loop, app = self._world, self._loop, self._app
        assert loop is not None and app is not None
        returned = False
        may_leave = asyncio.Event()

        async def live() -> T:
            nonlocal returned
            async with System("simulation", ring_bytes=self._ring_bytes) as system:
                result = await main(system)
                returned = True
                await may_leave.wait()
            return result

        task = loop.create_task(live(), name="main")
        world.run(lambda: returned or task.done())
        if returned and not task.done():
            world.check_rest()
            loop.call_soon(may_leave.set)
            world.run(task.done)
        for other in loop.tasks:  # as asyncio.run does at its end
            other.cancel()
        world.run(lambda: all(other.done() for other in loop.tasks))
        result: T = task.result()
        world.check_end(app)
        return result

    # For the program that runs in it.

    @property
    def faults(self) -> Faults:
        """What is injected from now on."""
        return self._world.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._world.faults = faults

    @property
    def trace(self) -> Trace:
        """What has happened so far."""
        return self._world.trace

    @property
    def now_s(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._world.now - START_S

    @property
    def steps(self) -> int:
        """Callbacks and stretches of threads that have run so far."""
        return self._world.steps

    def kill(self, name: str) -> None:
        """Kill the process of the actor of that name (SIGKILL), now."""
        self._process(name).kill()

    def freeze(self, name: str, seconds: float) -> None:
        """Let the process of the actor of that name stand still for so long."""
        self._process(name).freeze(seconds)

    def _process(self, name: str) -> Process:
        found = [process for process in self._world.running if process.name == name and process.is_child]
        if not found:
            running = ", ".join(process.name for process in self._world.running if process.is_child) or "none"
            raise NotSimulated(f"no process of an actor named {name!r} runs now (there are: {running})")
        return found[-1]


Scenario = Callable[[Simulation, System], Coroutine[Any, Any, object]]


def explore(
    scenario: Scenario,
    seeds: Iterable[int] = range(100),
    *,
    faults: Faults = Faults(),  # noqa: B008 (a frozen value)
    ring_bytes: int = 1 << 16,
    max_steps: int = 500_000,
    limit_s: float = 3600.0,
) -> int:
    """Run ``async def scenario(sim, system)`` once for each seed, until one fails; how many ran.

    The failure is raised and names its seed: ``explore(scenario, [that seed])`` repeats it.
    """
    count = 0
    for seed in seeds:
        with Simulation(seed, faults=faults, ring_bytes=ring_bytes, max_steps=max_steps, limit_s=limit_s) as sim:
            sim.run(lambda system, sim=sim: scenario(sim, system))  # type: ignore[misc]
        count += 1
    return count
