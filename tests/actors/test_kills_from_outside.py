"""B16: a kill from outside is told apart from a crash and from the kernel's kills for want of memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from actor_zoo import Limited

import ringcast.actors as rt
from ringcast.actors import process_host
from ringcast.actors.memory_kills import num_memory_kills

pytestmark = pytest.mark.usefixtures("leak_oracle")


async def cause_of_death(number: signal.Signals) -> rt.Cause:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(Limited), name="victim", where=rt.process())
        os.kill(system.pids()["victim"], number)
        async with asyncio.timeout(10):
            async for event in system.watch(actor):
                if isinstance(event, rt.Died):
                    return event.cause
    raise AssertionError("it did not die")


@pytest.mark.parametrize(
    ("number", "from_outside"),
    [(signal.SIGKILL, True), (signal.SIGTERM, True), (signal.SIGSEGV, False), (signal.SIGABRT, False)],
)
async def test_a_kill_is_from_outside_and_a_crash_is_not(number: signal.Signals, from_outside: bool) -> None:
    cause = await cause_of_death(number)
    assert (cause.exit_code, cause.from_outside) == (-number, from_outside)


async def test_a_kill_that_the_kernel_has_counted_is_not_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([5, 6])
    monkeypatch.setattr(process_host, "num_memory_kills", lambda: next(counts))
    cause = await cause_of_death(signal.SIGKILL)
    assert not cause.from_outside
    assert "the kernel has counted a kill for want of memory" in cause.summary


async def test_what_the_supervisor_kills_is_not_killed_from_outside() -> None:
    async with rt.System() as system:
        policy = rt.Restart(on_stall="kill")
        actor = await system.spawn(rt.spec(Limited), where=rt.process(), restart=policy)
        with pytest.raises(rt.ActorDied, match="killed by its policy") as died:
            await actor.hold_the_interpreter()
    assert not died.value.cause.from_outside


@pytest.mark.parametrize(("number", "gives_up"), [(signal.SIGKILL, False), (signal.SIGSEGV, True)])
async def test_kills_from_outside_need_not_count_towards_giving_up(number: signal.Signals, gives_up: bool) -> None:
    policy = rt.Restart("permanent", max_restarts=2, backoff_s=0.001, outside_kills="ignore")
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(Limited), name="victim", where=rt.process(), restart=policy)
        last: rt.Event | None = None
        async with asyncio.timeout(60):
            async for event in system.watch(actor):
                last = event
                if event == rt.Ready(5):
                    break
                if isinstance(event, rt.Ready):
                    os.kill(system.pids()["victim"], number)
    assert isinstance(last, rt.GaveUp if gives_up else rt.Ready), last


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_counter_of_our_own_control_group_is_preferred(tmp_path: Path) -> None:
    groups, mount = tmp_path / "cgroup", tmp_path / "mount"
    groups.write_text("0::/app/server\n")
    machine = num_memory_kills(str(groups), str(mount))
    assert machine == num_memory_kills(str(tmp_path / "missing"), str(mount)), "of the whole machine, or None"
    write(mount / "memory.events", "low 0\noom 3\noom_kill 2\n")
    assert num_memory_kills(str(groups), str(mount)) == 2, "a container's own root"
    write(mount / "app/server/memory.events", "low 0\noom 9\noom_kill 7\n")
    assert num_memory_kills(str(groups), str(mount)) == 7


def test_the_counter_of_a_control_group_of_version_1(tmp_path: Path) -> None:
    groups, mount = tmp_path / "cgroup", tmp_path / "mount"
    groups.write_text("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    write(mount / "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert num_memory_kills(str(groups), str(mount)) == 4
