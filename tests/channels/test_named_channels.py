"""Channels that unrelated programs find by name: taking, attaching, ends, wrong names, kill -9 of either side."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringcast import channels
from ringcast.channels import aio, name_claim
from ringcast.channels.name_claim import owner_of
from ringcast.channels.name_door import Knock
from ringcast.channels.named import KIND

PEERS = Path(__file__).with_name("named_peers.py")
KILLS = int(os.environ.get("RINGCAST_NAME_KILLS", "10"))
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program of `named_peers`; kills what still runs at the end."""
    programs: list[subprocess.Popen[str]] = []

    def start(role: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(PEERS), role, *map(str, arguments)]
        programs.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        program.communicate()


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}-{random.randrange(1 << 32):x}"


def line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def entries(name: str) -> list[str]:
    return [entry for entry in os.listdir("/dev/shm") if entry.endswith(f"-channel-{name}")]


@pytest.mark.parametrize("writer", ["write", "write_async"])
@pytest.mark.parametrize("reader", ["read", "read_async"])
def test_two_programs_that_nobody_here_started_talk_by_name(start: Start, name: str, writer: str, reader: str) -> None:
    source = start(writer, name, 1000)
    assert line(source) == "made"
    sink = start(reader, name)
    assert [line(sink), line(sink)] == ["attached", f"end {sum(range(1000))}"]
    assert source.wait(10) == 0
    assert entries(name) == []


def test_a_name_is_made_for_this_user_alone_and_goes_with_its_writer(name: str) -> None:
    with channels.create(name) as writer:
        [entry] = entries(name)
        assert os.stat(f"/dev/shm/{entry}").st_mode & 0o777 == 0o600
        assert owner_of(entry).pid == os.getpid()
        with channels.open(name) as reader:
            writer.send([b"parts ", b"of one"], type=3)
            writer.send(bytes(3_000_000))
            message = reader.read(5)
            assert (bytes(message.payload), message.type) == (b"parts of one", 3)
            assert len(reader.read(5).payload) == 3_000_000
    assert entries(name) == []


def test_the_name_goes_with_the_last_attach_it_was_made_for(name: str) -> None:
    with channels.create(name, readers=2) as writer, channels.open(name) as one:
        assert entries(name) != []
        with channels.open(name) as other:
            assert entries(name) == []
            with pytest.raises(channels.NameUnknown, match="no program owns the name"):
                channels.open(name)
            writer.send(b"both")
            assert [bytes(r.read(5).payload) for r in (one, other)] == [b"both", b"both"]


def test_wrong_names_fail_at_once_in_one_line(name: str) -> None:
    for wrong in ("", "a/b", "-a", ".a", "a b", "é", "x" * 101):
        with pytest.raises(ValueError, match="cannot be used"):
            channels.create(wrong)
        with pytest.raises(ValueError, match="cannot be used"):
            channels.open(wrong)
    with pytest.raises(TypeError, match="a name must be a string"):
        channels.open(7)  # type: ignore[arg-type]
    with pytest.raises(channels.NameUnknown, match="start its owner first") as unknown:
        channels.open(name)
    with channels.create(name), pytest.raises(channels.NameTaken, match=f"taken by process {os.getpid()}") as taken:
        channels.create(name)
    assert "\n" not in f"{unknown.value}{taken.value}"
    with pytest.raises(ValueError, match="readers is 65"):
        channels.create(name, readers=65)
    with pytest.raises(ValueError, match="capacity"):
        channels.create(name, capacity=100)
    assert entries(name) == []


def test_an_owner_of_another_version_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with channels.create(name) as writer:
        monkeypatch.setattr(name_claim, "version", lambda: "99.0")
        with pytest.raises(channels.NameMismatch, match=r"runs ringcast .*, this is 99\.0"):
            channels.open(name)
        monkeypatch.undo()
        monkeypatch.setattr(name_claim, "FORMAT", 2)
        with pytest.raises(channels.NameMismatch, match=r"has format 1, this is ringcast .* with format 2"):
            channels.open(name)
        with pytest.raises(channels.NameTaken, match="by another version of ringcast"):
            channels.create(name)
        assert writer.readers == 0


def test_another_users_name_is_refused_and_does_not_collide(start: Start, name: str) -> None:
    with channels.create(name):
        stranger = start("user", name, 12345)
        assert line(stranger).startswith(f"NameRefused: name {name!r} belongs to user 0, this is user 12345")
        assert line(stranger) == "made"
        assert len(entries(name)) == 2
    with pytest.raises(channels.NameRefused, match="belongs to user 12345"):
        channels.open(name)
    stranger.communicate("")
    assert entries(name) == []


def test_a_name_left_by_kill_is_taken_over_by_the_next_start(start: Start, name: str) -> None:
    source = start("serve", name)
    assert line(source) == "made"
    source.kill()
    source.wait()
    assert entries(name) != []
    with pytest.raises(channels.NameUnknown, match=f"its owner, process {source.pid}, is dead"):
        channels.open(name)
    with channels.create(name) as writer, channels.open(name) as reader:
        writer.send(b"again")
        assert bytes(reader.read(5).payload) == b"again"
    assert entries(name) == []


def test_a_segment_that_its_owner_never_finished_is_taken_over(name: str) -> None:
    Path(f"/dev/shm/ringcast-{os.geteuid()}-channel-{name}").touch(0o600)
    with pytest.raises(channels.NameUnknown, match="its owner died while it made it"):
        channels.open(name)
    channels.create(name).close()
    assert entries(name) == []


def test_a_forked_child_keeps_no_name_of_its_dead_parent(start: Start, name: str) -> None:
    """The lock is on what both share: the child must let go of it."""
    code = (
        "import os, sys, time; from ringcast import channels; w = channels.create(sys.argv[1])\n"
        "if os.fork() == 0: os.write(1, b'made\\n')\n"
        "time.sleep(30)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
    assert line(parent) == "made"
    [child] = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    try:
        parent.kill()
        parent.wait()
        channels.create(name).close()
    finally:
        os.kill(int(child), 9)
        parent.communicate()
    assert entries(name) == []


def test_a_forked_childs_end_does_not_take_its_parents_place(start: Start, name: str) -> None:
    """What it inherits is closed when it ends; the writer must not take that for the reader's leaving."""
    code = (
        "import os, sys; from ringcast import channels; reader = channels.open(sys.argv[1])\n"
        "pid = os.fork()\n"
        "if pid == 0: reader.close(); sys.exit(0)\n"
        "os.waitpid(pid, 0); print('attached', flush=True); print(bytes(reader.read(20).payload), flush=True)"
    )
    with channels.create(name) as writer:
        parent = subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
        assert line(parent) == "attached"
        writer.send(b"still there")
        assert parent.communicate(timeout=20)[0] == "b'still there'\n"


def test_who_gives_up_before_the_answer_is_no_reader(name: str) -> None:
    with channels.create(name) as writer:
        for _ in range(100):  # the writer's attendant is now quicker, now slower
            Knock(KIND, name).close()
        with channels.open(name):
            deadline = time.monotonic() + 10
            while writer.readers != 1:
                assert time.monotonic() < deadline, writer
                time.sleep(0.01)


def test_a_dead_reader_makes_room(start: Start, name: str) -> None:
    with channels.create(name, capacity=4096) as writer:
        holder = start("hold", name)
        assert line(holder) == "attached"
        with pytest.raises(TimeoutError, match="no space"):
            for _ in range(1000):
                writer.send(bytes(64), timeout_s=0.1)
        holder.kill()
        for _ in range(1000):
            writer.send(bytes(64), timeout_s=10)
        assert writer.readers == 0


def test_a_reader_that_leaves_holds_up_nobody(name: str) -> None:
    with channels.create(name, capacity=4096) as writer:
        for _ in range(70):  # more than the ring has slots
            with channels.open(name):
                writer.wait_for_readers()
                for _ in range(3):
                    writer.send(bytes(400), timeout_s=10)


def test_closing_ends_a_send_that_waits_for_space(name: str) -> None:
    writer = channels.create(name, capacity=4096)
    with channels.open(name):
        raised: list[BaseException] = []

        def fill() -> None:
            try:
                while True:
                    writer.send(bytes(64))
            except channels.ChannelError as error:
                raised.append(error)

        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        while True:  # until its send waits; another thread's time-out counts all the same
            try:
                writer.send(bytes(64), timeout_s=0.05)
            except TimeoutError as error:
                if "another thread's send" in str(error):
                    break
        closer = threading.Thread(target=writer.close, daemon=True)
        closer.start()
        for ending in (closer, thread):
            ending.join(20)
            assert not ending.is_alive()
        assert f"channel {name!r} is closed" in str(raised[0])


def test_a_wrong_policy_is_refused_before_the_name_is_taken(name: str) -> None:
    with pytest.raises(ValueError, match="policy is 'drop': it must be one of wait, spill, reject"):
        channels.create(name, policy="drop")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="spill_limit_bytes is 0"):
        channels.create(name, policy="spill", spill_limit_bytes=0)
    assert entries(name) == []


def test_policies_of_a_slow_reader(name: str) -> None:
    with (
        channels.create(name, capacity=4096, policy="reject") as writer,
        channels.open(name),
        pytest.raises(channels.RingFull),
    ):
        for _ in range(1000):
            writer.send(bytes(64))
    with channels.create(name, capacity=4096, policy="spill") as writer, channels.open(name) as reader:
        for number in range(1000):
            writer.send(b"%d" % number)
        assert [int(reader.read(5).payload) for _ in range(1000)] == list(range(1000))


async def test_a_channel_on_a_loop_waits_for_room_and_notices_the_end(name: str) -> None:
    async with aio.create(name, capacity=4096) as writer:
        async with aio.open(name) as reader:
            await writer.wait_for_readers()
            sends = asyncio.gather(*(writer.send(b"%d" % number) for number in range(2000)))
            assert [int((await reader.read()).payload) for _ in range(2000)] == list(range(2000))
            await sends
        with pytest.raises(channels.ChannelError, match="is not attached"):
            await reader.read()
    with pytest.raises(channels.NameUnknown):
        async with aio.open(name):
            pass
    with pytest.raises(channels.ChannelError, match="is not open"):
        await writer.send(b"")


async def test_on_a_loop_the_writers_death_ends_the_iteration(start: Start, name: str) -> None:
    source = start("serve", name)
    assert line(source) == "made"
    async with aio.open(name) as reader:
        await reader.read()
        source.kill()
        with pytest.raises(channels.PeerDead):
            async for _ in reader:
                pass
    source.wait()
    channels.create(name).close()  # removes what the dead one left


def test_kill_9_of_either_side_leaves_no_name_after_the_next_start_and_no_hang(start: Start, name: str) -> None:
    chance = random.Random(KILLS)
    for turn in range(KILLS):
        source = start("serve", name)
        if chance.random() < 0.3:  # while it takes the name
            time.sleep(chance.uniform(0.02, 0.15))
            source.kill()
            source.wait()
            continue
        assert line(source) == "made", turn
        sink = start("read", name)
        if chance.random() < 0.7:
            assert line(sink) == "attached"
        time.sleep(chance.uniform(0, 0.05))
        victim = chance.choice([source, sink])
        victim.kill()
        victim.wait()
        if victim is source:
            assert sink.wait(20) == 0, turn  # its iteration ended, or it found nobody
        else:
            with channels.open(name, timeout_s=20) as reader:  # the writer goes on
                reader.read(20)
            source.kill()
            source.wait()
    channels.create(name).close()
    assert entries(name) == []
