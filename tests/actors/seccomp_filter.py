"""Denies system calls to this process and its children, as the profile of a container does. Linux on x86-64."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

NUMBERS = {
    "eventfd2": 290,
    "pidfd_open": 434,
    "sched_getaffinity": 204,
    "memfd_create": 319,
    "clone3": 435,
    "clone": 56,
}
CLONE_THREAD = 0x10000
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
LOAD, JUMP_IF_EQUAL, JUMP_IF_SET, RETURN = 0x20, 0x15, 0x45, 0x06


def is_possible() -> bool:
    return platform.machine() == "x86_64"


def deny(call: str) -> None:
    """From now on, the call fails with EPERM."""
    _install([(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, NUMBERS[call]), (RETURN, 0, 0, ERRNO | errno.EPERM)])


def deny_threads() -> None:
    """From now on, threads cannot be started, as if a limit were reached (EAGAIN); processes can."""
    _install([(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, NUMBERS["clone3"]), (RETURN, 0, 0, ERRNO | errno.ENOSYS)])
    is_thread = [(LOAD, 0, 0, 16), (JUMP_IF_SET, 0, 1, CLONE_THREAD), (RETURN, 0, 0, ERRNO | errno.EAGAIN)]
    _install([(LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 3, NUMBERS["clone"]), *is_thread])


def _install(program: list[tuple[int, int, int, int]]) -> None:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in [*program, (RETURN, 0, 0, ALLOW)])
    instructions = ctypes.create_string_buffer(code, len(code))
    length = len(code) // 8
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", length, ctypes.addressof(instructions)), 16)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, 2, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")
