"""The leak oracle notices processes, descriptors and names, and forgives what only garbage holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ringcast.actors.testing import left_behind, no_leaks, resources

SHORT_S = 0.3


@pytest.fixture
def sleeper() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_nothing_left_is_fine() -> None:
    with no_leaks(SHORT_S):
        fd = os.open("/dev/null", os.O_RDONLY)
        os.close(fd)
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_process_is_noticed_and_named(sleeper: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(AssertionError, match=r"process \d+: .*time\.sleep\(77\)"), no_leaks(SHORT_S):
        sleeper.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(77)"]))


def test_a_process_of_a_process_is_noticed(sleeper: list[subprocess.Popen[bytes]]) -> None:
    inner = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'import time; time.sleep(78)'])"
    before = resources()
    sleeper.append(subprocess.Popen([sys.executable, "-c", inner]))
    deadline = time.monotonic() + 10
    while not (found := [text for text in left_behind(before) if "sleep(78)" in text and "subprocess" not in text]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(int(found[0].split()[1].rstrip(":")), signal.SIGKILL)
    sleeper[0].wait()


def test_a_dead_process_that_nobody_has_reaped_is_noticed(sleeper: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(AssertionError, match="dead, not reaped"), no_leaks(SHORT_S):
        sleeper.append(subprocess.Popen([sys.executable, "-c", ""]))


def test_a_descriptor_is_noticed() -> None:
    fd = -1
    try:
        with pytest.raises(AssertionError, match="descriptor .*null"), no_leaks(SHORT_S):
            fd = os.open("/dev/null", os.O_RDONLY)
    finally:
        os.close(fd)


def test_a_name_is_noticed() -> None:
    path = "/dev/shm/ringcast.test-of-the-leak-oracle"
    try:
        with pytest.raises(AssertionError, match="shared memory ringcast.test"), no_leaks(SHORT_S):
            os.close(os.open(path, os.O_CREAT | os.O_RDWR))
    finally:
        os.unlink(path)


def test_garbage_is_forgiven() -> None:
    with no_leaks(SHORT_S):
        cycle: list[object] = [open("/dev/null")]  # noqa: SIM115
        cycle.append(cycle)
        del cycle


def test_what_was_there_before_does_not_count(sleeper: list[subprocess.Popen[bytes]]) -> None:
    sleeper.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(79)"]))
    with no_leaks(SHORT_S):
        pass
