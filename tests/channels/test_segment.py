"""Promises of segments: reserved or refused at creation, never named."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
import stat
import subprocess
import sys

import pytest
from shared_names import shared_names_of

from ringcast.channels import SegmentError, create_segment, segment

FULL_DEV_SHM = """
import os, errno
real = os.posix_fallocate
def refuse(fd, offset, size):
    if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/shm"):
        raise OSError(errno.ENOSPC, "No space left on device")
    real(fd, offset, size)
os.posix_fallocate = refuse
"""


def run(code, *, command=()):
    result = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return result.stdout + result.stderr


def test_segment_is_zeroed_private_unnamed_and_reserved():
    made = create_segment(100_000)
    assert shared_names_of([os.getpid()]) == []
    status = os.fstat(made.fd)
    assert (made.kind, made.size_bytes, status.st_size) == ("shm", 100_000, 100_000)
    assert stat.S_IMODE(status.st_mode) == 0o600 and status.st_nlink == 0
    assert status.st_blocks * 512 >= 100_000
    assert not os.get_inheritable(made.fd)
    with mmap.mmap(made.fd, 0) as memory:
        assert memory[:] == bytes(100_000)
    made.close()
    made.close()
    assert made.fd == -1


def test_memfd_takes_the_place_of_a_full_dev_shm_and_says_so_once():
    code = FULL_DEV_SHM + (
        "import logging; logging.basicConfig(format='%(name)s %(levelname)s %(message)s')\n"
        "from ringcast.channels import create_segment\n"
        "print([create_segment(5000).kind for _ in range(3)])"
    )
    output = run(code)
    assert "['memfd', 'memfd', 'memfd']" in output
    assert output.count("ringcast.channels WARNING /dev/shm is missing or too small") == 1


def test_no_memory_at_all_is_an_error_with_size_and_remedy(monkeypatch):
    def refuse(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(SegmentError, match=r"123456 bytes.*No space left.*--shm-size"):
        create_segment(123456)


def test_missing_dev_shm_falls_back_too(monkeypatch, caplog):
    monkeypatch.setattr(segment, "SHM_FOLDER", "/no/such/folder")
    segment._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "ringcast.channels"):
        made = create_segment(5000)
    assert made.kind == "memfd"
    assert "--shm-size" in caplog.text
    with pytest.raises(PermissionError):
        os.ftruncate(made.fd, 0)  # sealed: it can never shrink under a mapping
    made.close()


@pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"]).returncode != 0,
    reason="needs a mount namespace; the two tests above cover the logic without one",
)
def test_small_tmpfs_gives_memfd_at_creation_and_no_sigbus_on_use():
    code = (
        "from ringcast.channels import create_segment\n"
        "import mmap\n"
        "small, large = create_segment(20_000), create_segment(1_000_000)\n"
        "mmap.mmap(large.fd, 0)[:] = b'x' * 1_000_000\n"
        "print(small.kind, large.kind)"
    )
    mount = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$0" "$@"'
    assert "shm memfd" in run(code, command=["unshare", "-m", "sh", "-c", mount])


@pytest.mark.parametrize("size", [0, -1])
def test_size_must_be_positive(size):
    with pytest.raises(ValueError, match="positive"):
        create_segment(size)


def test_segments_have_no_name_at_any_moment():
    """kill -9 between two system calls must leave nothing behind."""
    code = "from ringcast.channels import create_segment\nfor _ in range(3000): create_segment(4096).close()"
    before = set(os.listdir("/dev/shm"))
    maker = subprocess.Popen([sys.executable, "-c", code])
    looks = 0
    while maker.poll() is None:
        new = set(os.listdir("/dev/shm")) - before
        assert not [name for name in new if "ringcast" in name or str(maker.pid) in name]
        looks += 1
    assert maker.returncode == 0 and looks > 100
