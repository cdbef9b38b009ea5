"""System calls that a sandbox denies, and limits that are reached: one line that says what, why and what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import seccomp_filter
from actor_zoo import Blocking, Counter

import ringcast.actors as rt
from ringcast.actors import launch

pytestmark = pytest.mark.skipif(not seccomp_filter.is_possible(), reason="the filters are for x86-64")

PROGRAM = """
    import asyncio, sys
    sys.path.append(sys.argv[1])
    import seccomp_filter
    import ringcast.actors as rt
    from actor_zoo import Blocking, Counter

    async def main():
        async with rt.System() as warm:
            await warm.spawn(rt.spec(Counter, 0), where=rt.process())  # everything is imported
        BEFORE
        where = rt.process(cpus=[CPU]) if sys.argv[2] == "cpus" else rt.process()
        async with rt.System() as system:
            counter = await system.spawn(rt.spec(WHAT), where=where, name="it")
            await counter.add(1)

    try:
        asyncio.run(main())
    except rt.ActorError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("well")
"""


def run(tmp_path: Path, before: str, what: str = "Counter, 0", how: str = "") -> str:
    program = textwrap.dedent(PROGRAM).replace("BEFORE", before).replace("WHAT", what)
    program = program.replace("CPU", str(min(os.sched_getaffinity(0))))
    script = tmp_path / "program.py"
    script.write_text(program)
    command = [sys.executable, str(script), os.path.dirname(__file__), how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("call", ["eventfd2", "pidfd_open", "sched_getaffinity"])
def test_a_denied_call_is_named_with_the_remedy(call: str, tmp_path: Path) -> None:
    """C41: in one line."""
    message = run(tmp_path, f"seccomp_filter.deny({call!r})")
    assert f"the system call {call} is denied" in message
    assert "seccomp filter" in message and f"allow {call} in its profile" in message
    assert message.count("\n") == 1


def test_denied_memfd_is_done_without(tmp_path: Path) -> None:
    """C41: segments come from /dev/shm then."""
    assert run(tmp_path, "seccomp_filter.deny('memfd_create')") == "well\n"


def test_a_child_that_can_start_no_thread_says_so(tmp_path: Path) -> None:
    """C45: the child's line is in the parent's StartFailed."""
    message = run(tmp_path, "seccomp_filter.deny_threads()")
    assert message.startswith("StartFailed: actor 'it' did not start: its process ")
    line = message.splitlines()[1]
    assert "the limit of processes and threads is used up" in line
    assert "ulimit -u" in line and "--pids-limit" in line
    assert len(message.splitlines()) == 2


async def test_a_thread_that_cannot_be_started_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """C45: a BlockingActor here."""

    def no_thread(self: object) -> None:
        raise RuntimeError("can't start new thread")

    async with rt.System() as system:
        with monkeypatch.context() as patch:
            patch.setattr("threading.Thread.start", no_thread)
            with pytest.raises(rt.StartFailed, match="limit of processes and threads is used up.*ulimit -u"):
                await system.spawn(rt.spec(Blocking))


async def test_a_process_that_cannot_be_started_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """C45: fork fails."""

    def no_process(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async with rt.System() as system:
        with monkeypatch.context() as patch:
            patch.setattr(launch.subprocess, "Popen", no_process)
            with pytest.raises(rt.StartFailed, match="limit of processes and threads is used up.*ulimit -u"):
                await system.spawn(rt.spec(Counter, 0), where=rt.process())
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
        assert await counter.add(1) == 1
