"""What `launch` starts with the arguments LINK_FD PARENT_PID LANE_FD: one actor's process, from first line to exit.

The watch on the parent comes before everything else, in a native thread, so that no load or long call can outlive it.
"""

from __future__ import annotations

import os
import sys

from ringcast.channels import ORPHANED, exit_with


def main() -> None:
    """Take the boot frame from the link and become the actor that it describes."""
    link_fd, parent_pid, lane_fd = (int(word) for word in sys.argv[1:])
    try:
        parent = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        os._exit(ORPHANED)
    if os.getppid() != parent_pid:  # it died, and the number may be somebody else's by now
        os._exit(ORPHANED)
    exit_with([parent], lane=lane_fd)
    os.close(lane_fd)
    cpus = os.environ.pop("RINGCAST_CPUS", "")  # boot.CPUS_VARIABLE; before any library counts the processors
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})

    import faulthandler
    import signal

    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)  # launch.DUMP_SIGNAL
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the app; it stops us in order

    from .child_process import run_child

    sys.exit(run_child(link_fd))
