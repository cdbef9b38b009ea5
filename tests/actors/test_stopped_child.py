"""B8: a child that is stopped (SIGSTOP) does not outlive a parent that is killed; threads of the parent may end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from actor_zoo import Counter

import ringcast.actors as rt

PROGRAM = """
    import asyncio, sys, threading
    sys.path.append(sys.argv[1])
    import ringcast.actors as rt
    from actor_zoo import Counter

    async def main():
        async with rt.System() as system:
            counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
            print(await counter.pid(), flush=True)
            await asyncio.sleep(3600)

    if sys.argv[2] == "thread":
        threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
        threading.Event().wait()
    asyncio.run(main())
"""


def is_there(pid: int) -> bool:
    """It has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_stopped_child_ends_with_its_killed_parent(where: str, tmp_path: Path) -> None:
    """B8: whichever thread the parent's system runs on."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(program), os.path.dirname(__file__), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 5
        while is_there(child):
            assert time.monotonic() < deadline, "the stopped child outlived its parent"
            time.sleep(0.01)


def test_a_child_lives_on_when_the_thread_that_spawned_it_ends() -> None:
    """B8: the loop of a system moves from a short-lived thread to another one."""
    loop = asyncio.new_event_loop()
    made: list[tuple[rt.System, Counter]] = []

    async def begin() -> None:
        system = await rt.System().__aenter__()
        made.append((system, await system.spawn(rt.spec(Counter, 0), where=rt.process())))

    thread = threading.Thread(target=lambda: loop.run_until_complete(begin()))
    thread.start()
    thread.join()
    system, counter = made[0]

    async def go_on() -> int:
        await asyncio.sleep(0.2)  # a signal at the thread's end would have come
        try:
            return await counter.add(3)
        finally:
            await system.__aexit__(None, None, None)

    assert loop.run_until_complete(go_on()) == 3
    loop.close()
