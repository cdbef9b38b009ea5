"""The actor runtime beside xoscar and Ray, where they are installed: ``python -m bench.actors [--quick]``.

Ask, cast, stream, gather, large arrays, spawn, restart and import. Each repetition measures everything of ours once, in
turn; then the peers are measured as often. Cells are medians over the repetitions with their quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import ringcast.actors as rt

from . import large_arguments
from .actor_zoo import BlockingEcho, Echo
from .report import Figure, Report, Table, Target, add_out, describe_machine

METHOD: Final = (
    "A round trip is `await ref.ping(1)` from an asyncio program on uvloop; p50 within a repetition, then the median "
    "of the repetitions. Two processes are alive while two are measured: more would share the cores.",
    "Awake: one ask after another. Callee asleep: before each ask the asker turns its loop for 2 ms and the callee has "
    "nothing to do. Both asleep: a pause of 2 ms before each.",
    "Gather: both asleep. Beside it the same number of bare processes: each sleeps in a read of an eventfd and answers "
    "with a write to another, nothing else; the asker writes to all, then reads all. Where there are fewer cores than "
    "members, the time holds some of their turns one after another; the processor time of the asking thread does not.",
    "Rates count until the last message was handled.",
    large_arguments.METHOD,
    "Starts use compiled modules: PYTHONDONTWRITEBYTECODE is taken out of the environment.",
    "Import: a new interpreter that imports the runtime and ends, less one that ends at once; the best of five each.",
)
GROUP_SIZES: Final = (1, 2, 4, 8)
PAUSE_S: Final = 0.002
ANSWERER: Final = """
import os, sys
bell, answer = map(int, sys.argv[1:])
while True:
    os.eventfd_read(bell)
    os.eventfd_write(answer, 1)
"""


class BareProcesses:
    """So many processes that answer an eventfd with an eventfd: what the machine itself takes to wake that many."""

    def __init__(self, count: int) -> None:
        self._pairs = [(os.eventfd(0), os.eventfd(0)) for _ in range(count)]
        self._processes = [
            subprocess.Popen([sys.executable, "-S", "-c", ANSWERER, *map(str, pair)], pass_fds=pair)
            for pair in self._pairs
        ]

    async def ask(self) -> None:
        """Wake them all and wait for all their answers."""
        for bell, _ in self._pairs:
            os.eventfd_write(bell, 1)
        for _, answer in self._pairs:
            os.eventfd_read(answer)

    def __enter__(self) -> BareProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for pair in self._pairs:
            for fd in pair:
                os.close(fd)


class Samples:
    """Figures by name, one value a repetition."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def figure(self, name: str, unit: str) -> Figure:
        return Figure(tuple(self.values[name]), unit)


async def sleep_between() -> None:
    """Everybody goes to sleep."""
    await asyncio.sleep(PAUSE_S)


async def stay_awake_between() -> None:
    """The asker has other things to do."""
    until = time.perf_counter() + PAUSE_S
    while time.perf_counter() < until:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def round_trip_us(
    ask: Callable[[], Awaitable[Any]],
    count: int,
    between: Callable[[], Awaitable[None]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The p50 of one round trip, by ``clock``."""
    times = []
    for _ in range(count // 10 + 1):
        await ask()
    for _ in range(count):
        if between is not None:
            await between()
        began = clock()
        await ask()
        times.append(clock() - began)
    return statistics.median(times) * 1e6


async def measure_pairs(samples: Samples, count: int) -> None:
    """Asks, casts and streams between this process and one other."""
    async with rt.System("bench") as system:
        echo = await system.spawn(rt.spec(Echo), where=rt.process())
        samples.add("ask", await round_trip_us(lambda: echo.ping(1), count))
        samples.add("ask asleep", await round_trip_us(lambda: echo.ping(1), count // 20, stay_awake_between))
        samples.add("ask both asleep", await round_trip_us(lambda: echo.ping(1), count // 20, sleep_between))
        began = time.perf_counter()
        for number in range(count * 5):
            await echo.take.cast.wait(number)
        await echo.ping(1)
        samples.add("casts", count * 5 / (time.perf_counter() - began) / 1e3)
        began = time.perf_counter()
        async with echo.count.open(count * 5) as items:
            async for _ in items:
                pass
        samples.add("stream", count * 5 / (time.perf_counter() - began) / 1e3)
    async with rt.System("bench") as system:
        blocking = await system.spawn(rt.spec(BlockingEcho), where=rt.process())
        samples.add("ask blocking", await round_trip_us(lambda: blocking.ping(1), count))
        local = await system.spawn(rt.spec(Echo))
        samples.add("ask here", await round_trip_us(lambda: local.ping(1), count))


async def measure_groups(samples: Samples, count: int) -> None:
    """Gathers over members that sleep between them: what each further member costs."""
    for size in GROUP_SIZES:
        async with rt.System("bench") as system:
            group = await system.spawn_group([rt.spec(Echo) for _ in range(size)])
            ask = lambda group=group: group.gather(Echo.ping.msg(1))  # type: ignore[misc]  # noqa: E731
            samples.add(f"gather {size}", await round_trip_us(ask, count // 20, sleep_between))
            own = await round_trip_us(ask, count // 20, sleep_between, time.thread_time)
            samples.add(f"gather {size} caller", own)
        with BareProcesses(size) as bare:
            samples.add(f"bare {size}", await round_trip_us(bare.ask, count // 20, sleep_between))


async def measure_starts(samples: Samples) -> None:
    """Spawn to READY, alone and eight at once; from the kill to READY again, less the policy's delay."""
    async with rt.System("bench") as system:
        began = time.perf_counter()
        policy = rt.Restart("permanent", backoff_s=0.0)
        actor = await system.spawn(rt.spec(Echo), where=rt.process(), restart=policy)
        samples.add("spawn", (time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        os.kill(next(iter(system.pids().values())), signal.SIGKILL)
        async for event in system.watch(actor):
            if event == rt.Ready(2):
                break
        samples.add("restart", (time.perf_counter() - began) * 1e3)
    async with rt.System("bench") as system:
        began = time.perf_counter()
        await system.spawn_group([rt.spec(Echo) for _ in range(8)])
        samples.add("spawn 8", (time.perf_counter() - began) * 1e3)


def measure_import(samples: Samples) -> None:
    """What `import ringcast.actors` adds to the start of an interpreter."""

    def run_ms(code: str) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append((time.perf_counter() - began) * 1e3)
        return min(times)

    samples.add("import", run_ms("import ringcast.actors") - run_ms("pass"))


async def measure_xoscar(samples: Samples, count: int) -> None:
    """The same ask with xoscar: one actor in a sub-pool of its own."""
    import xoscar as xo

    pool = await xo.create_actor_pool("127.0.0.1:0", n_process=1)
    try:
        strategy = xo.allocate_strategy.ProcessIndex(1)
        ref = await xo.create_actor(_xoscar_echo(), address=pool.external_address, allocate_strategy=strategy)
        samples.add("xoscar ask", await round_trip_us(lambda: ref.ping(1), count))
    finally:
        await pool.stop()


def _xoscar_echo() -> type:
    from .xoscar_echo import XoscarEcho

    return XoscarEcho


def measure_ray(samples: Samples, count: int) -> None:
    """The same ask with Ray, from its synchronous API."""
    import ray

    @ray.remote
    class RayEcho:
        def ping(self, x: int) -> int:
            return x

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        actor = RayEcho.remote()
        for _ in range(count // 10):
            ray.get(actor.ping.remote(1))
        times = []
        for _ in range(count):
            began = time.perf_counter()
            ray.get(actor.ping.remote(1))
            times.append(time.perf_counter() - began)
        samples.add("ray ask", statistics.median(times) * 1e6)
    finally:
        ray.shutdown()


def tables(samples: Samples, sizes: tuple[int, ...]) -> list[Table]:
    """The pages' tables from what was measured."""
    asks = [
        ("ringcast, asyncio to asyncio, awake", "ask"),
        ("ringcast, asyncio to BlockingActor, awake", "ask blocking"),
        ("ringcast, asyncio to asyncio, callee asleep", "ask asleep"),
        ("ringcast, asyncio to asyncio, both asleep", "ask both asleep"),
        ("ringcast, in one process", "ask here"),
        ("xoscar, asyncio to asyncio, awake", "xoscar ask"),
        ("Ray, awake", "ray ask"),
    ]
    ask_rows = tuple((title, samples.figure(name, "µs")) for title, name in asks if name in samples.values)
    rates = tuple(
        (title, samples.figure(name, "k/s")) for title, name in (("casts", "casts"), ("stream items", "stream"))
    )

    def cost(name: str, size: int) -> tuple[Figure, Figure]:
        figure = samples.figure(name.format(size), "µs")
        return figure, figure.ratio_to(samples.figure(name.format(1), "µs"))

    groups = tuple(
        (str(size), *cost("gather {}", size), *cost("gather {} caller", size), *cost("bare {}", size))
        for size in GROUP_SIZES
    )
    group_heads = ("members", "p50", "of one", "caller's processor time", "of one", "bare processes", "of one")
    large = tuple(
        (
            f"{size} MiB",
            samples.figure(f"large {size}", "ms"),
            samples.figure(f"silence {size}", "ms"),
            samples.figure(f"pipe {size}", "ms"),
            samples.figure(f"large {size}", "ms").ratio_to(samples.figure(f"pipe {size}", "ms")),
        )
        for size in sizes
    )
    starts = tuple(
        (title, samples.figure(name, "ms"))
        for title, name in (
            ("spawn to READY", "spawn"),
            ("eight in parallel to READY", "spawn 8"),
            ("kill -9 to READY again, no backoff", "restart"),
            ("import ringcast.actors, beyond the bare interpreter", "import"),
        )
    )
    return [
        Table("Ask, round trip", ("who", "p50"), ask_rows),
        Table("Rates between two processes", ("what", "rate"), rates),
        Table("Gather over sleeping members", group_heads, groups),
        Table("Large arguments, round trip", ("array", "ringcast", "loop silent", "Pipe", "of the Pipe's"), large),
        Table("Starts", ("what", "time"), starts),
    ]


def targets(samples: Samples, sizes: tuple[int, ...]) -> list[Target]:
    """The figures of issues C and F1."""
    largest = sizes[-1]
    of_pipe = samples.figure(f"large {largest}", "ms").ratio_to(samples.figure(f"pipe {largest}", "ms"))
    gather, own = (
        samples.figure(f"gather 4{what}", "µs").ratio_to(samples.figure(f"gather 1{what}", "µs"))
        for what in ("", " caller")
    )
    cores = len(os.sched_getaffinity(0))
    return [
        Target("ask, awake asyncio to asyncio (µs)", samples.figure("ask", "µs"), 20),
        Target("ask, asyncio to spinning BlockingActor (µs)", samples.figure("ask blocking", "µs"), 15),
        Target("ask, callee asleep (µs)", samples.figure("ask asleep", "µs"), 100),
        Target("ask, in one process, uvloop (µs)", samples.figure("ask here", "µs"), 12),
        Target("casts (k/s)", samples.figure("casts", "k/s"), 300, at_least=True),
        Target(f"gather over 4 sleeping members, on {cores} cores (of one)", gather, 1.5),
        Target("gather over 4 sleeping members, the caller's processor time (of one)", own, 1.5),
        Target(f"round trip of {largest} MiB (of the Pipe's)", of_pipe, 1.0),
        Target(f"loop silent in a round trip of {sizes[0]} MiB (ms)", samples.figure(f"silence {sizes[0]}", "ms"), 50),
        Target("spawn to READY (ms)", samples.figure("spawn", "ms"), 150),
        Target("eight in parallel (ms)", samples.figure("spawn 8", "ms"), 400),
        Target("restart after kill -9 (ms)", samples.figure("restart", "ms"), 200),
        Target("import ringcast.actors (ms)", samples.figure("import", "ms"), 60),
    ]


async def measure(repetitions: int, count: int, sizes: tuple[int, ...]) -> Samples:
    samples = Samples()
    for repetition in range(repetitions):
        print(f"repetition {repetition + 1} of {repetitions}", file=sys.stderr)
        await measure_pairs(samples, count)
        await measure_groups(samples, count)
        await large_arguments.measure_large(samples.add, sizes)
        await measure_starts(samples)
        measure_import(samples)
    return samples


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.actors", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions of less")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only-ours", action="store_true", help="without the peers")
    add_out(parser)
    options = parser.parse_args(arguments)
    repetitions, count = (1, 40) if options.tiny else (3, 2_000) if options.quick else (7, 10_000)
    sizes = large_arguments.sizes_mib(options.tiny)
    has_xoscar, has_ray = (
        not options.only_ours and importlib.util.find_spec(name) is not None for name in ("xoscar", "ray")
    )
    machine = describe_machine(("ringcast", "uvloop", "xoscar", "ray"), {"repetitions": repetitions, "asks": count})
    report = Report("actors", METHOD, machine)
    for name, there in (("xoscar", has_xoscar), ("Ray", has_ray)):
        if not there:
            report.remarks.append(f"without {name}: " + ("not asked for" if options.only_ours else "not installed"))
    import uvloop

    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False  # children get it as a flag
    samples = uvloop.run(measure(repetitions, count, sizes))
    for _ in range(repetitions):  # after ours: what they import and start would slow them down
        if has_xoscar:
            uvloop.run(measure_xoscar(samples, count // 5))
        if has_ray:
            measure_ray(samples, count // 5)
    report.tables += tables(samples, sizes)
    report.targets += targets(samples, sizes)
    page, data = report.write(options.out)
    print(page.read_text())
    print(f"written: {page}, {data}", file=sys.stderr)


if __name__ == "__main__":
    main()
