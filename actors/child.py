"""What `child_command.BOOTSTRAP` calls in a new process: one actor's process, from first line to exit.

The watch on the parent comes before everything else, in a native thread, so that no load or long call can outlive it.
"""

from __future__ import annotations

import contextlib
import os
import sys

from ringcast.channels import ORPHANED, end_with_parent, exit_with


def main(link_fd: int, parent_pid: int, lane_fd: int) -> None:
    """Take the boot frame from the link and become the actor that it describes."""
    with contextlib.suppress(OSError):  # a sandbox may deny it, and there is the watch
        end_with_parent()
    try:
        call = "pidfd_open"
        parent = os.pidfd_open(parent_pid)
        if os.getppid() != parent_pid:  # it died, and the number may be somebody else's by now
            os._exit(ORPHANED)
        call = "clone"
        exit_with([parent], lane=lane_fd)
        os.close(lane_fd)
        cpus = os.environ.pop("RINGCAST_CPUS", "")  # boot.CPUS_VARIABLE; before any library counts the processors
        if cpus:
            call = "sched_setaffinity"
            os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    except ProcessLookupError:
        os._exit(ORPHANED)
    except OSError as error:
        from .system_calls import explain

        sys.exit(explain(error, call))

    import faulthandler
    import signal

    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)  # launch.DUMP_SIGNAL
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the app; it stops us in order

    from .child_process import run_child

    pid = os.getpid()
    try:
        sys.exit(run_child(link_fd))
    finally:
        if os.getpid() != pid:  # a handler has forked, and this is the copy
            from .forks import end_forked_process

            end_forked_process()
