"""What it means when the kernel refuses something that the runtime cannot do without, and what to do about it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ringcast.channels import SegmentError

from .errors import ActorError

_DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)


@contextmanager
def calling(call: str) -> Iterator[None]:
    """Around a system call: `ActorError` that names it and the remedy if it is denied. Other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DENIED:
            raise
        raise ActorError(explain(error, call)) from error


def is_scarcity(error: BaseException) -> bool:
    """Whether it is for want of something that may be there a moment later: memory, descriptors, processes, threads."""
    if isinstance(error, ActorError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, OSError):
        return error.errno in _SCARCE
    return isinstance(error, SegmentError) or (isinstance(error, RuntimeError) and "new thread" in str(error))


def explain(error: BaseException, call: str = "") -> str:
    """One line: what was refused, by what, and the remedy. The error's own text if nothing better is known."""
    text = " ".join(str(error).split())
    number = error.errno if isinstance(error, OSError) else None
    if call and number in _DENIED:
        return (
            f"the system call {call} is denied ({text}): a seccomp filter or security module of this container or "
            f"sandbox forbids it; allow {call} in its profile (docker run --security-opt seccomp=PROFILE)"
        )
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "new thread" in text):
        return (
            f"no process or thread can be started ({text}): the limit of processes and threads is used up. "
            f"Raise it: RLIMIT_NPROC of this user is {_process_limit()} (ulimit -u), and a container has a limit "
            "of its own (docker run --pids-limit)"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"no descriptors are left ({text}): the limit is {soft} (ulimit -n); raise it, or close some"
    return text


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread, started, that does not keep the process alive. `ActorError` if the limit of threads is reached."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise ActorError(explain(error)) from error
    return thread


def _process_limit() -> str:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
