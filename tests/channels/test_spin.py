"""Promises of spinning: bounded, learnt from recent waits, and off where it would take somebody's core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ringcast.channels import Board, Doorbell, core_quota, cores


def spins(bell, spin_s, timeout_s=0.0005):
    """Whether a wait with these times spins."""
    before = bell.statistics().spins
    bell.wait([], [], [], timeout_s, spin_s)
    return bell.statistics().spins > before


@pytest.fixture
def roomy(bells):
    """A bell that may spin: as many cores as it wants."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: nobody spins")
    return bells[0]


def test_wait_spins_only_when_asked_to(roomy):
    assert not spins(roomy, 0.0)
    assert spins(roomy, 1e-5)


def test_spin_is_bounded_and_then_sleeps(roomy):
    start = time.process_time()
    assert spins(roomy, 0.001, timeout_s=0.3)
    assert time.process_time() - start < 0.15
    assert roomy.statistics().sleeps == 1


def test_long_waits_teach_it_not_to_spin_and_short_ones_to_spin_again(roomy, ring):
    for _ in range(12):
        spins(roomy, 0.02, timeout_s=0.05)
    assert not spins(roomy, 0.02)
    figures = roomy.statistics()
    assert figures.waits == 13 and 0 < figures.spins < 12 and figures.spins_won == 0
    for _ in range(2000):  # how many it takes depends on how busy the machine is
        roomy.notify()
        roomy.wait([], [], [], 0.05, 0.02)  # there is a token already: it ends at once
        if spins(roomy, 0.02):
            return
    raise AssertionError("short waits did not teach it to spin again")


def test_one_idle_time_does_not_end_the_spinning_of_a_busy_stream(roomy):
    for _ in range(3):
        assert spins(roomy, 1e-3, timeout_s=2e-3)
        for _ in range(20):
            roomy.wait([], [], [], 1e-5, 1e-3)  # a short wait


def test_won_spin_makes_no_sleep(roomy, ring):
    r = ring(1024)
    timer = threading.Timer(0.01, lambda: r.writer.try_send(b"x", 1))
    timer.start()
    roomy.wait(r.readers, [], [], 30.0, 20.0)
    timer.join()
    figures = roomy.statistics()
    assert (figures.spins, figures.spins_won, figures.sleeps) == (1, 1, 0)


def test_no_spin_where_the_quota_leaves_one_core(roomy):
    roomy.cores = 1  # before its first spin
    assert not roomy.may_spin() and not spins(roomy, 1e-3)


@pytest.fixture
def neighbours(bells):
    """Starts processes with bells of their own on the board, from slot 1 on; each says "busy"."""
    started = []

    def start(count):
        for _ in range(count):
            slot = len(started) + 1
            assert bells[slot]
            fds = [bells.segment.fd, bells.eventfds[slot]]
            command = [sys.executable, "-c", NEIGHBOUR, *map(str, fds), str(slot)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            started.append(subprocess.Popen(command, pass_fds=fds, text=True, **pipes))
            assert started[-1].stdout.readline() == "busy\n"
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


NEIGHBOUR = """
import sys
from ringcast.channels import Board, Doorbell
bell = Doorbell(Board(int(sys.argv[1])), int(sys.argv[3]), int(sys.argv[2]))
bell.wait([], [], [], 0, 0.0)
print("busy", flush=True)
sys.stdin.readline()
bell.arm([])
print("asleep", flush=True)
sys.stdin.readline()
"""


def may_spin_after_a_sleep(bell):
    time.sleep(COUNTED_ANEW_S)
    bell.arm([])
    bell.disarm()
    return bell.may_spin()


COUNTED_ANEW_S = 0.3  # it counts the busy every 10 ms, and looks who lives and where every 250 ms


def test_no_spin_while_the_busy_processes_of_the_board_fill_the_cores(roomy, bells, neighbours):
    assert roomy.may_spin()
    assert bells.board.busy == 1
    others = neighbours(len(os.sched_getaffinity(0)))
    time.sleep(COUNTED_ANEW_S)
    assert bells.board.busy == len(others) + 1
    assert not roomy.may_spin() and not spins(roomy, 1e-3)
    for other in others[1:]:
        other.send_signal(signal.SIGKILL)
        other.wait()
    others[0].stdin.write("\n")
    others[0].stdin.flush()
    assert others[0].stdout.readline() == "asleep\n"
    assert may_spin_after_a_sleep(roomy)
    assert bells.board.busy == 1  # one sleeps, the others are dead


def test_pinned_processes_spin_if_each_has_a_core_of_its_own(roomy, neighbours):
    mask = os.sched_getaffinity(0)
    own, other = sorted(mask)[:2]
    (neighbour,) = neighbours(1)
    try:
        os.sched_setaffinity(0, {own})
        os.sched_setaffinity(neighbour.pid, {other})
        assert may_spin_after_a_sleep(roomy)
        os.sched_setaffinity(neighbour.pid, {own})
        assert not may_spin_after_a_sleep(roomy)
    finally:
        os.sched_setaffinity(0, mask)


def test_board_counts_a_process_until_it_lets_go_of_its_bell(bells):
    board = Board(bells.segment.fd)
    eventfd = os.eventfd(0, os.EFD_NONBLOCK)
    bell = Doorbell(board, 5, eventfd)
    assert board.busy == 0
    bell.ring()
    assert board.busy == 0  # ringing somebody else's bell is not owning it
    bell.arm([])
    assert board.busy == 0
    bell.disarm()
    assert board.busy == 1
    del bell
    assert board.busy == 0
    os.close(eventfd)


def test_statistics_of_a_bell_tell_rings_from_sleeps(bells):
    owner, ringer = bells[0], Doorbell(bells.board, 0, bells.eventfds[0])
    ringer.ring()
    owner.arm([])
    ringer.ring()
    owner.disarm()
    assert tuple(ringer.statistics())[:2] == (1, 1)
    figures = owner.statistics()
    assert (figures.sent, figures.suppressed, figures.tokens, figures.waits) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000\n"}, 3),
        ("0::/docker/xyz\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 0),
        ("0::/\n", {"cpu.max": "nonsense"}, 0),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (
            "3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            0,
        ),
        ("", {}, 0),
    ],
)
def test_quota_of_the_control_group_limits_the_cores(tmp_path, monkeypatch, membership, files, expected):
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cores, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(cores, "_MEMBERSHIP", tmp_path / "membership")
    assert core_quota() == expected


def spins_while_idle(bell, readers=(), *, spin_s=1e-3, sleep_s=0.0):
    """Whether a loop without work is told to look again; with ``sleep_s`` it then sleeps until its bell is rung."""
    looks_again = bell.spin(readers, [], 0.0, spin_s)
    if sleep_s:
        assert bell.arm(readers)
        time.sleep(sleep_s)
        bell.disarm()
    return looks_again


def test_loop_spins_in_slices_and_only_for_so_long_in_one_idle_time(roomy):
    assert spins_while_idle(roomy, spin_s=0.05)
    assert roomy.spin([], [], 30.0, 30.0)  # to the end of the 0.05 s, not of the slice
    assert not roomy.spin([], [], 30.0, 30.0)
    figures = roomy.statistics()
    assert (figures.waits, figures.spins, figures.spins_won) == (1, 1, 0)


def test_loop_finds_a_record_while_it_spins(roomy, ring):
    r = ring(1024)
    timer = threading.Timer(0.01, lambda: r.writer.try_send(b"x", 1))
    timer.start()
    assert roomy.spin(r.readers, [], 30.0, 30.0)
    timer.join()
    assert len(r.readers[0].poll()) == 1
    assert roomy.statistics().spins_won == 1


def test_loop_that_sleeps_long_tries_a_spin_now_and_then_and_one_that_wins_makes_it_spin_again(roomy, ring):
    r = ring(1024)
    while spins_while_idle(roomy, r.readers, sleep_s=0.004):
        pass
    slept = 1
    while not spins_while_idle(roomy, r.readers):
        assert roomy.arm(r.readers)
        time.sleep(0.004)
        roomy.disarm()
        slept += 1
    assert 2 <= slept <= 16
    r.writer.try_send(b"x", 1)  # comes while that spin lasts
    assert len(r.readers[0].poll()) == 1
    for _ in range(3):
        assert spins_while_idle(roomy, r.readers)
        r.writer.try_send(b"x", 1)
        r.readers[0].poll()


def test_wait_that_sleeps_long_tries_a_spin_now_and_then(roomy):
    while spins(roomy, 1e-3, timeout_s=0.004):
        pass
    assert any(spins(roomy, 1e-3, timeout_s=0.004) for _ in range(16))


def test_loop_does_not_spin_where_the_quota_leaves_one_core(roomy):
    roomy.cores = 1  # before its first spin
    assert not spins_while_idle(roomy)
