"""Processes killed with SIGKILL, or stopped, at named points inside the protocol: survivors go on within a second.

RINGCAST_KILLS says how many kills (`make chaos-channels`: 1000). The native module is a test build with crash points.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from channel_kit import Bells
from kill_kit import PATIENCE_S, MortalReader, MortalWriter, Village
from native_builds import build_with_crash_points

KILLS = int(os.environ.get("RINGCAST_KILLS", "40"))
# How often a victim passes the point before it dies, at most: rare ones come rarely.
WRITER_POINTS = {
    "after_payload": 300,
    "after_head": 300,
    "before_bell": 300,
    "after_cas": 20,
    "after_call": 20,
    "after_announce": 3,
    "after_arm": 3,
    "after_awake": 3,
    "after_detach": 2,
    "after_attach": 2,
    "mid_frame": 12,
}
READER_POINTS = {
    "before_cursor": 60,
    "after_cursor": 60,
    "after_pin": 30,
    "before_unpin": 30,
    "after_arm": 10,
    "after_awake": 10,
    "before_taken": 3,
}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_with_crash_points(tmp_path_factory.mktemp("native"))


@pytest.fixture
def village(bells: Bells, native: Path) -> Iterator[Village]:
    village = Village(bells, native)
    yield village
    village.close()


def kill_a_writer(village: Village, crash_at: str) -> None:
    victim = MortalWriter(village, crash_at)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not victim.wait(0.05):
            assert time.monotonic() < deadline, f"a writer never came to {crash_at}"
            victim.read()
        village.goes_on()
        victim.drain()
    finally:
        status = victim.close()
    assert status == -signal.SIGKILL


def kill_a_reader(village: Village, crash_at: str) -> None:
    victim = MortalReader(village, crash_at, "spill" if crash_at.startswith("before_taken") else "wait")
    try:
        deadline = time.monotonic() + PATIENCE_S
        moved = (victim.sent, time.monotonic())
        while not victim.send(1.0):
            if victim.sent != moved[0]:
                moved = (victim.sent, time.monotonic())
            assert time.monotonic() - moved[1] < 5, f"a living reader has held the ring since message {victim.sent}"
            assert time.monotonic() < deadline, f"a reader never came to {crash_at} in {victim.sent} messages"
            if victim.sent % 128 == 0:
                time.sleep(0.01)  # it catches up and falls asleep
        village.goes_on()
        victim.go_on()
    finally:
        status = victim.close()
    assert status == -signal.SIGKILL


@pytest.mark.timeout(120 + 5 * KILLS)
def test_survivors_go_on_after_a_kill_at_each_point(village: Village) -> None:
    dice = random.Random(KILLS)
    points = [(kill_a_writer, name, most) for name, most in WRITER_POINTS.items()]
    points += [(kill_a_reader, name, most) for name, most in READER_POINTS.items()]
    village.goes_on()
    gc.collect()
    this = psutil.Process()
    rss, fds, children = this.memory_info().rss, this.num_fds(), len(this.children())
    for kill, name, most in itertools.islice(itertools.cycle(points), KILLS):
        kill(village, f"{name}:{dice.randint(1, most)}")
    gc.collect()
    assert (this.num_fds(), len(this.children())) == (fds, children)  # /dev/shm: the fixture nothing_left
    grown = this.memory_info().rss - rss
    assert grown < 32 << 20, f"{grown} bytes more after {KILLS} kills"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["after_payload", "after_head", "before_bell", "after_cas", "after_call"])
def test_a_stopped_writer_stalls_nobody_and_goes_on_where_it_was(village: Village, point: str) -> None:
    victim = MortalWriter(village, f"{point}:5:stop")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not victim.process.is_stopped():
            assert time.monotonic() < deadline, f"a writer never came to {point}"
            victim.read()
            victim.wait(0.02)
        for _ in range(5):
            village.goes_on()
        victim.process.send_signal(signal.SIGCONT)
        goal = victim.counts[0] + 200
        while victim.counts[0] < goal:
            assert time.monotonic() < deadline
            victim.read()
            victim.wait(0.05)
    finally:
        victim.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["before_cursor", "after_cursor", "after_arm"])
def test_a_stopped_reader_under_spill_stalls_nobody_and_gets_everything(village: Village, point: str) -> None:
    victim = MortalReader(village, f"{point}:5:stop", "spill")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not victim.process.is_stopped():
            assert time.monotonic() < deadline, f"a reader never came to {point}"
            victim.send(1.0)
            time.sleep(0.001)  # it keeps up, in the ring, and falls asleep
        goal = victim.sent + 500  # more than the ring holds
        while victim.sent < goal:
            assert time.monotonic() < deadline
            victim.send(1.0)
        assert victim.outbox.lag(victim.victim_slot).mode == "link"
        victim.process.send_signal(signal.SIGCONT)
        while victim.outbox.statistics().attaches == 0:  # it has asserted the order of what it took
            assert time.monotonic() < deadline and victim.process.popen.poll() is None
            victim.send(1.0)
            time.sleep(0.001)
    finally:
        victim.close()
