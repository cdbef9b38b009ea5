"""Portals: threads call into a system, on their program's loop or on its own thread; ends, forks, forgotten ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
import uvloop
from actor_zoo import Counter
from named_programs import Tally

import ringcast.actors as rt

asyncio.Runner(loop_factory=uvloop.new_event_loop).run(asyncio.sleep(0))  # libuv keeps a pipe from its first loop on

pytestmark = pytest.mark.usefixtures("leak_oracle")
PLACES = pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])


@PLACES
async def test_threads_of_a_program_with_a_loop_call_cast_and_read_streams(where: rt.Where) -> None:
    async with rt.System() as system:
        tally = await system.spawn(rt.spec(Tally), where=where)
        portal = system.portal()

        def work() -> None:
            portal.call(tally.add, 2)
            portal.cast(tally.add, 1)
            assert portal.submit(tally.size, b"four").result() == 4
            with portal.stream(tally.count, 100) as items:
                assert list(items) == list(range(100))
            with portal.stream(tally.count, 1 << 30) as items:
                assert next(items) == 0  # left early: its producer ends
            with pytest.raises(rt.RemoteError, match="as asked"):
                portal.call(tally.fail)

        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(8)))
        assert await tally.add(0) == 24


def test_a_program_without_a_loop_spawns_calls_watches_and_stops() -> None:
    with rt.start_in_thread(rt.System("shop")) as portal:
        counter = portal.run(portal.system.spawn, rt.spec(Counter, 40), where=rt.process())
        assert portal.call(counter.add, 2) == 42
        assert portal.call(counter.pid) != os.getpid()
        with ThreadPoolExecutor(8) as threads:
            assert sorted(threads.map(lambda _: portal.call(counter.add, 1), range(64))) == list(range(43, 107))
        portal.run(portal.system.stop, counter)
        with pytest.raises(rt.ActorDied):
            portal.call(counter.add, 1)
    with pytest.raises(rt.NotInSystem, match="system 'shop' has stopped"):
        portal.call(counter.add, 1)
    portal.close()


async def test_on_the_loops_own_thread_it_raises_at_once_and_says_what_to_do() -> None:
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0))
        portal = system.portal()
        for misuse in (portal.call, portal.submit, portal.run, portal.cast):
            with pytest.raises(rt.ActorError, match="on the loop's own thread.*use await"):
                misuse(counter.add, 1)
        tally = await system.spawn(rt.spec(Tally))
        with pytest.raises(rt.ActorError, match="use await"), portal.stream(tally.count, 1):
            pass
    with pytest.raises(rt.NotInSystem):
        rt.System().portal()
    with pytest.raises(RuntimeError, match="use `async with`"), rt.deadline(1):
        pass


@PLACES
def test_a_deadline_around_a_call_counts_here_and_at_the_callee(where: rt.Where) -> None:
    with rt.start_in_thread() as portal:
        tally = portal.run(portal.system.spawn, rt.spec(Tally), where=where)
        began = time.monotonic()
        with rt.deadline(0.1), pytest.raises(rt.DeadlineExceeded):
            portal.call(tally.sleep, 30)
        with rt.deadline(30), rt.deadline(0.1), pytest.raises(rt.DeadlineExceeded):
            portal.run(asyncio.sleep, 30)
        with rt.deadline(-1), pytest.raises(rt.DeadlineExceeded):
            portal.call(tally.add, 1)
        assert time.monotonic() - began < 10
        assert portal.call(tally.add, 0) == 0


def test_the_systems_stop_ends_what_is_under_way() -> None:
    portal = rt.start_in_thread()
    tally = portal.run(portal.system.spawn, rt.spec(Tally), where=rt.process())
    call, other = portal.submit(tally.sleep, 30), portal.submit(asyncio.sleep, 30)
    portal.call(tally.add, 1)
    portal.close()
    assert isinstance(call.exception(5), rt.ActorError)
    with pytest.raises(rt.NotInSystem, match="has stopped"):
        other.result(5)


async def test_the_stop_of_a_system_on_the_programs_loop_ends_its_threads_calls() -> None:
    async with rt.System() as system:
        portal = system.portal()
        waiting = asyncio.ensure_future(asyncio.to_thread(portal.run, asyncio.sleep, 30))
        await asyncio.to_thread(portal.run, asyncio.sleep, 0)  # the other one came before
    with pytest.raises(rt.NotInSystem):
        await waiting


class Waiter(rt.Actor):
    """Tells this process's threads what its handler does."""

    def __init__(self) -> None:
        self.began, self.was_cancelled = Waiter.events = threading.Event(), threading.Event()

    @rt.call
    async def wait(self) -> None:
        self.began.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


def test_a_cancelled_future_cancels_the_handler() -> None:
    with rt.start_in_thread() as portal:
        waiter = portal.run(portal.system.spawn, rt.spec(Waiter))
        began, was_cancelled = Waiter.events
        call = portal.submit(waiter.wait)
        assert began.wait(10)
        assert call.cancel()
        with pytest.raises(CancelledError):
            call.result()
        assert was_cancelled.wait(10)


def test_ctrl_c_in_the_waiting_thread_cancels_the_call() -> None:
    with rt.start_in_thread() as portal:
        waiter = portal.run(portal.system.spawn, rt.spec(Waiter))
        began, was_cancelled = Waiter.events

        def interrupt() -> None:
            assert began.wait(10)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            portal.call(waiter.wait)
        thread.join()
        assert was_cancelled.wait(10)


def test_a_start_that_fails_is_raised_and_leaves_no_thread() -> None:
    system = rt.System()
    with rt.start_in_thread(system):
        pass
    before = threading.active_count()
    with pytest.raises(rt.ActorError, match="was entered before"):
        rt.start_in_thread(system)
    assert threading.active_count() == before


def output_of(code: str) -> tuple[str, str, int]:
    program = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return program.stdout, program.stderr, program.returncode


PREAMBLE = """
import os, sys
import ringcast.actors as rt
class Echo(rt.Actor):
    @rt.call
    async def echo(self, x: int) -> int: return x
    async def on_stop(self, reason): print("stopped in order", flush=True)
portal = rt.start_in_thread()
echo = portal.run(portal.system.spawn, rt.spec(Echo))
print(portal.call(echo.echo, 1), flush=True)
"""


def test_a_forgotten_portal_stops_its_system_when_the_interpreter_exits() -> None:
    assert output_of(PREAMBLE) == ("1\nstopped in order\n", "", 0)
    out, err, code = output_of(PREAMBLE + "raise ValueError('in the program')")
    assert (out, code) == ("1\nstopped in order\n", 1)
    assert err.endswith("ValueError: in the program\n")


def test_in_a_forked_process_it_raises_at_once() -> None:
    child = """
pid = os.fork()
if pid == 0:
    try: portal.call(echo.echo, 2)
    except rt.NotInSystem as error: print(error, flush=True)
    sys.exit(0)  # runs what is registered at exit: nothing of the parent's
os.waitpid(pid, 0)
print(portal.call(echo.echo, 3), flush=True)
"""
    out, err, code = output_of(PREAMBLE + child)
    lines = out.splitlines()
    assert lines[0] == "1"
    assert "this is a fork of it: start a system after the fork" in lines[1]
    assert (lines[2:], code) == (["3", "stopped in order"], 0)
    assert "Traceback" not in err


def test_only_a_system_is_started_in_a_thread() -> None:
    with pytest.raises(TypeError, match="takes a system that was not entered"):
        rt.start_in_thread(rt.System)  # type: ignore[arg-type]
