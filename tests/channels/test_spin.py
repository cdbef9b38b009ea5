"""Promises of spinning: bounded, learnt from recent waits, and off where it would take somebody's core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ringcast.channels import Board, Doorbell, available_cores, cores


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


def test_won_spin_makes_no_sleep(roomy, ring):
    r = ring(1024)
    timer = threading.Timer(0.01, lambda: r.writer.try_send(b"x", 1))
    timer.start()
    roomy.wait(r.readers, [], [], 30.0, 20.0)
    timer.join()
    figures = roomy.statistics()
    assert (figures.spins, figures.spins_won, figures.sleeps) == (1, 1, 0)


def test_no_spin_where_one_core_is_all_there_is(roomy):
    roomy.cores = 1
    assert not roomy.may_spin() and not spins(roomy, 1e-3)


def test_no_spin_while_the_busy_processes_of_the_board_fill_the_cores(roomy, bells):
    assert roomy.may_spin()
    assert bells.board.busy == 1
    code = (
        "import sys, time\n"
        "from ringcast.channels import Board, Doorbell\n"
        "bell = Doorbell(Board(int(sys.argv[1])), int(sys.argv[3]), int(sys.argv[2]))\n"
        "bell.wait([], [], [], 0, 0.0); print('busy', flush=True)\n"
        "sys.stdin.readline()\n"
        "bell.arm([]); print('asleep', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    others = []
    for slot in range(1, len(os.sched_getaffinity(0)) + 1):
        assert bells[slot]
        fds = [bells.segment.fd, bells.eventfds[slot]]
        command = [sys.executable, "-c", code, *map(str, fds), str(slot)]
        others.append(subprocess.Popen(command, pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    try:
        assert [other.stdout.readline() for other in others] == ["busy\n"] * len(others)
        time.sleep(0.02)  # it counts every 10 ms
        assert bells.board.busy == len(others) + 1
        assert not roomy.may_spin() and not spins(roomy, 1e-3)
        for other in others[1:]:
            other.send_signal(signal.SIGKILL)
            other.wait()
        others[0].stdin.write("\n")
        others[0].stdin.flush()
        assert others[0].stdout.readline() == "asleep\n"
        time.sleep(0.02)
        assert bells.board.busy == 1  # one sleeps, the others are dead
        assert roomy.may_spin()
    finally:
        for other in others:
            other.kill()
            other.wait()
            other.stdin.close()
            other.stdout.close()


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


def test_cores_are_those_of_the_affinity_mask(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "CGROUP_ROOT", tmp_path)
    assert available_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000\n"}, 3),
        ("0::/docker/xyz\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "nonsense"}, 64),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (
            "3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            64,
        ),
        ("", {}, 64),
    ],
)
def test_quota_of_the_control_group_limits_the_cores(tmp_path, monkeypatch, membership, files, expected):
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cores, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(cores, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert available_cores() == expected
