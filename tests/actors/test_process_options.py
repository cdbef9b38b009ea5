"""What a process of its own can be given, what its mailbox counts, and programs that run on `rt.run`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from actor_zoo import Blocking, Counter

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")


async def test_a_process_keeps_to_its_processors() -> None:
    cpu = min(os.sched_getaffinity(0))
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process(cpus=frozenset({cpu})))
        assert await counter.affinity() == [cpu]
    with pytest.raises(ValueError, match=r"process\(cpus=\[4095\]\): none of them is usable here"):
        rt.process(cpus=frozenset({4095}))


async def test_a_process_has_a_telling_title_and_its_output_a_prefix(capfd: pytest.CaptureFixture[str]) -> None:
    async with rt.System("shop") as system:
        counter = await system.spawn(rt.spec(Counter, 0), name="till", where=rt.process())
        assert psutil.Process(await counter.pid()).cmdline()[0] == "shop: till"
        with pytest.raises(rt.ActorDied):
            await counter.die("exit3")
    assert "[till] famous last words" in capfd.readouterr().err


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_a_mailbox_counts_what_it_did(where: rt.Where) -> None:
    async with rt.System("s") as system:
        actor = await system.spawn(rt.spec(Blocking), name="b", where=where)
        calls = [asyncio.ensure_future(actor.sleep(0.05)) for _ in range(4)]
        with pytest.raises(rt.RemoteError):
            await actor.fail("x")
        await asyncio.gather(*calls)
        with pytest.raises(rt.DeadlineExceeded):
            late = asyncio.ensure_future(actor.sleep(0.2))
            async with rt.deadline(0.05):
                await actor.add(1)
        await late
        while True:
            everything = await system.statistics()
            figures = everything["s" if where is rt.here else "b"].mailboxes["b"]
            if figures.depth == 0:  # figures are asked for beside the mailbox: the late message may still be in it
                break
        assert (figures.handled, figures.failed, figures.depth) == (6, 1, 0)
        assert figures.peak_depth >= 3
        assert 0.39 < figures.handling_time_s < 5
        assert figures.queue_time_s > 0.05 + 0.1 + 0.15
        assert sum(figures.handling_time_histogram) == figures.handled
        assert sum(figures.handling_time_histogram[16:]) == 5  # at least 32 ms: the five that slept


PROGRAM = """
    import asyncio, sys
    import ringcast.actors as rt

    class Goodbye(rt.Actor):
        async def on_stop(self, reason):
            print("goodbye", flush=True)
            if sys.argv[1] == "stubborn":
                await asyncio.sleep(20)

    async def main(system):
        await system.spawn(rt.spec(Goodbye))
        await system.spawn(rt.spec(Goodbye), where=rt.process())
        print("ready", flush=True)
        if sys.argv[1] == "quick":
            return 5
        await asyncio.Event().wait()

    sys.exit(rt.run(main, system=rt.System(stop_timeout_s=30)))
"""


def start(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    return subprocess.Popen([sys.executable, str(script), how], stdout=subprocess.PIPE, text=True)


def test_run_returns_the_programs_exit_code(tmp_path: Path) -> None:
    program = start(tmp_path, "quick")
    out, _ = program.communicate(timeout=20)
    assert program.returncode == 5
    assert out.splitlines() == ["ready", "goodbye"]  # the other goodbye went to stderr, with its actor's name


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_program_in_order_and_a_second_one_at_once(tmp_path: Path, number: signal.Signals) -> None:
    program = start(tmp_path, "patient")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(number)
    assert program.stdout.readline() == "goodbye\n"
    program.communicate(timeout=20)
    assert program.returncode == 128 + number

    program = start(tmp_path, "stubborn")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(number)
    assert program.stdout.readline() == "goodbye\n"  # it waits in on_stop now
    program.send_signal(number)
    program.communicate(timeout=5)
    assert program.returncode == 128 + number


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({"A": 1}, TypeError),
        ({1: "A"}, TypeError),
        ({"": "A"}, ValueError),
        ({"A=B": "C"}, ValueError),
        ({"A": "\0"}, ValueError),
    ],
)
def test_an_environment_that_cannot_be_is_refused(env: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"process\(env="):
        rt.process(env=env)
    cpus: Any = sorted(os.sched_getaffinity(0))
    assert rt.process(cpus=cpus) == rt.process(cpus=frozenset(cpus))
