"""The live table: what it shows is true, and it is found without a name."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from actor_zoo import Blocking, Counter

import ringcast.actors as rt
from ringcast.actors import top
from ringcast.channels import Board, RingWriter, create_segment

pytestmark = pytest.mark.usefixtures("leak_oracle")


async def test_the_table_shows_what_each_process_does() -> None:
    policy = rt.Restart("permanent", backoff_s=0.01)
    async with rt.System("shop") as system:
        till = await system.spawn(rt.spec(Counter, 0), name="till", where=rt.process(), restart=policy)
        oven = await system.spawn(rt.spec(Blocking), name="oven", where=rt.process())
        with pytest.raises(rt.ActorDied):
            await till.die("kill")
        async for event in system.watch(till):
            if event == rt.Ready(2):
                break
        for _ in range(10):
            await till.add(1)
        calls = [asyncio.ensure_future(oven.sleep(0.4)) for _ in range(3)]
        await asyncio.sleep(0.6)  # the second one runs
        seen = {row.name: row for row in top.rows(os.getpid())}
        assert os.getpid() in top.find_systems()
        assert top.find_systems(os.getpid()) == [os.getpid()]
        assert set(seen) == {"shop", "till", "oven"}
        assert (seen["till"].state, seen["till"].incarnation, seen["till"].handled) == ("ready", 2, 10)
        assert seen["till"].pid == system.pids()["till"]
        assert seen["oven"].is_busy
        assert 1 <= seen["oven"].depth <= 3
        assert 0 < seen["oven"].oldest_age_s < 2
        assert seen["oven"].memory_bytes > 5 << 20
        await asyncio.gather(*calls)
    assert top.find_systems(os.getpid()) == []


def test_looking_writes_into_no_segment() -> None:
    """Another process looks for systems when our segments are new, just before their makers come to them."""
    segments = [create_segment(size) for size in (Board.size_bytes(), RingWriter.size_bytes(1 << 16))]
    look = f"from ringcast.actors import top; assert top.find_systems({os.getpid()}) == []"
    subprocess.run([sys.executable, "-c", look], check=True)
    for segment in segments:
        assert not any(os.pread(segment.fd, segment.size_bytes, 0))
        segment.close()


def test_a_pipe_that_happens_to_have_our_name_holds_up_no_look(tmp_path: Path) -> None:
    pipe = tmp_path / "ringcast-log"
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    look = f"from ringcast.actors import top; assert top.find_systems({os.getpid()}) == []"
    try:
        subprocess.run([sys.executable, "-c", look], check=True, timeout=30)
    finally:
        os.close(fd)


async def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    async with rt.System("shop"):
        command = f"{sys.executable} -m ringcast.actors.top --interval 0.05 {os.getpid()} | head -n 1"
        pipe = asyncio.subprocess.PIPE
        looking = await asyncio.create_subprocess_shell(command, stdout=pipe, stderr=pipe)
        out, err = await asyncio.wait_for(looking.communicate(), 30)
    assert out.startswith(b"ACTOR") and err == b""


COMMANDS = pytest.mark.parametrize("module", ["ringcast.actors.top", "ringcast top"])


def command_line(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", *module.split(), *arguments]


@COMMANDS
@pytest.mark.parametrize(
    ("option", "value"), [("--interval", "0"), ("--interval", "nan"), ("--interval", "inf"), ("--count", "0")]
)
def test_what_is_no_interval_and_no_count_is_refused(module: str, option: str, value: str) -> None:
    command = command_line(module, option, value, str(os.getpid()))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2 and option in re.split(r"(?i)\berror\b", ended.stderr)[-1]  # behind the usage


@COMMANDS
async def test_the_command_prints_a_line_for_each_process(module: str) -> None:
    async with rt.System("shop") as system:
        await system.spawn(rt.spec(Counter, 0), name="till", where=rt.process())
        command = command_line(module, str(os.getpid()), "--interval", "0.1", "--count", "2")
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        words = [line.split()[:1] for line in out.decode().splitlines()]
        assert words == [["ACTOR"], ["shop"], ["till"]] * 2


@COMMANDS
def test_a_process_without_a_system_is_refused_in_one_line(module: str) -> None:
    result = subprocess.run(command_line(module, "1"), capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "process 1 runs no system, or it belongs to another user\n"
