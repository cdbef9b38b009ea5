"""A process that was forked from one with a system: every use is an error at once, and the parent's is untouched."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from actor_zoo import Counter

import ringcast.actors as rt

pytestmark = pytest.mark.usefixtures("leak_oracle")
LIMIT_S = 30


class Forker(rt.Actor):
    def __init__(self) -> None:
        self.n = 0

    @rt.call
    async def fork(self) -> int:
        self.n += 1
        return os.fork()  # the child returns into the loop, too

    @rt.call
    async def fork_and_wait(self) -> int:
        pid = os.fork()
        await asyncio.sleep(0.05)
        return pid

    @rt.call
    async def forks(self) -> int:
        return self.n

    @rt.call
    async def wait(self, pid: int) -> int:
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        return os.waitstatus_to_exitcode(status)


class BlockingForker(rt.BlockingActor):
    def __init__(self) -> None:
        self.n = 0

    @rt.call
    def fork(self) -> int:
        self.n += 1
        return os.fork()

    fork_and_wait = fork

    @rt.call
    def forks(self) -> int:
        return self.n

    @rt.call
    def wait(self, pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def in_fork(action: Callable[[], Any]) -> str:
    """What the action gives in a forked process: the repr of its value, or of its exception with its bases' names."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = repr(action())
        except Exception as error:
            text = f"{[kind.__name__ for kind in type(error).__mro__]}: {error}"
        except BaseException:
            text = traceback.format_exc()
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    os.set_blocking(reading, False)
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    return os.read(reading, 65536).decode()
                except BlockingIOError:
                    await asyncio.sleep(0.01)
    finally:
        os.close(reading)
        os.kill(pid, 9)
        os.waitpid(pid, 0)  # noqa: ASYNC222 (it was killed)


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_every_use_in_a_forked_process_raises_at_once(where: rt.Where) -> None:
    """C38: references, casts, groups and the system itself."""
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=where)
        group = rt.Group([counter])
        supervisor = system.supervise("s")
        uses: list[Callable[[], Any]] = [
            lambda: counter.add.cast(1),
            lambda: counter.add(1),
            lambda: run(counter.add(1)),
            lambda: run(counter.add.cast.wait(1)),
            lambda: group.cast(Counter.add.msg(1)),
            lambda: run(group.gather(Counter.add.msg(1))),
            lambda: run(system.spawn(rt.spec(Counter, 0), where=rt.process())),
            lambda: run(supervisor.spawn(rt.spec(Counter, 0))),
            lambda: run(system.stop(counter)),
            lambda: run(system.restart(counter)),
            lambda: run(system.ping(counter)),
            lambda: run(system.statistics()),
            lambda: system.watch(counter),
            lambda: system.pids(),
            lambda: system.supervise("t"),
        ]
        for number, use in enumerate(uses):
            got = await in_fork(use)
            assert "ActorError" in got and "was forked" in got, (number, got)
        assert await counter.add(1) == 1


async def test_a_fork_of_a_fork_is_no_different() -> None:
    """C38"""
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())

        def again() -> str:
            pid = os.fork()
            if pid == 0:
                try:
                    counter.add.cast(1)
                except rt.ActorError:
                    os._exit(7)
                os._exit(1)
            return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        assert await in_fork(again) == "'7'"


async def test_a_forked_process_can_have_a_system_of_its_own() -> None:
    """C38: as before."""

    async def other() -> int:
        async with rt.System() as system:
            counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
            return await counter.add(4)

    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
        assert await in_fork(lambda: run(other())) == "4"
        assert await counter.add(1) == 1


PRELOADER = """
    import asyncio, os, sys
    sys.path.append(sys.argv[1])
    import ringcast.actors as rt
    from actor_zoo import Counter

    loop = asyncio.new_event_loop()

    async def begin():
        system = await rt.System().__aenter__()
        return system, await system.spawn(rt.spec(Counter, 0), where=rt.process())

    system, counter = loop.run_until_complete(begin())
    pid = os.fork()
    if pid == 0:
        async def leave():
            await system.__aexit__(None, None, None)
        asyncio.run(leave())
        del system, counter
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3

    async def end():
        assert await counter.add(5) == 5
        await system.__aexit__(None, None, None)

    loop.run_until_complete(end())
    loop.close()
    print("well")
"""


def test_leaving_and_deleting_in_a_forked_process_is_silent(tmp_path: Path) -> None:
    """C38: the parent's processes, memory and loop are as before."""
    program = tmp_path / "preloader.py"
    program.write_text(textwrap.dedent(PRELOADER))
    # Python 3.12 and later warn of every fork in a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(program), os.path.dirname(__file__)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "well\n", "")


SERVERS = """
    import os, sys
    sys.path.append(sys.argv[1])
    import ringcast.actors as rt
    from actor_zoo import Counter

    portal = rt.start_in_thread()
    counter = portal.run(portal.system.spawn, rt.spec(Counter, 0), where=rt.process())
    with portal:
        pid = os.fork()
        if pid == 0:
            try:
                portal.call(counter.add, 1)
            except rt.ActorError:
                sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert portal.call(counter.add, 5) == 5
    print("well")
"""


def test_a_forked_process_leaves_the_block_of_a_portal_in_silence(tmp_path: Path) -> None:
    """C38: as the worker of a preload server does at its end."""
    program = tmp_path / "server.py"
    program.write_text(textwrap.dedent(SERVERS))
    # Python 3.12 and later warn of every fork in a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(program), os.path.dirname(__file__)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "well\n", "")


async def test_a_connection_by_name_is_the_parents() -> None:
    """C38: its references raise, and leaving it does nothing."""
    name = f"tests.forks.{os.getpid()}"
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
        async with rt.serve(system, name, {"counter": counter}), rt.connect(name) as remote:
            there = remote.find("counter", Counter)
            assert "was forked" in await in_fork(lambda: there.add.cast(1))
            assert await in_fork(lambda: run(remote.__aexit__(None, None, None))) == "None"
            assert await there.add(1) == 1


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
@pytest.mark.parametrize("method", ["fork", "fork_and_wait"])
@pytest.mark.parametrize("cls", [Forker, BlockingForker])
async def test_a_handler_whose_fork_returns_into_the_loop_goes_on_unharmed(
    where: rt.Where, method: str, cls: type[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """A19: the child of os.fork() ends by itself; the actor answers as before."""
    async with asyncio.timeout(LIMIT_S), rt.System() as system:
        forker = await system.spawn(rt.spec(cls), where=where)
        for _ in range(3):
            pid = await getattr(forker, method)()
            assert pid > 0
            assert await forker.wait(pid) == 114
        assert await forker.forks() == (3 if method == "fork" or cls is BlockingForker else 0)
    assert capfd.readouterr().err.count("came back into its loop") == 3
