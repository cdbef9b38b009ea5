"""A live table of the actors of running systems, read from their boards. It disturbs nobody and asks nobody.

`ringcast top [PID]`, or `python -m ringcast.actors.top [PID]` where only the runtime is installed. A board has no name:
it is found through the file descriptors that the system's first process holds, so one sees what one's user may see.
Writing to the board is for its system alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from ringcast.channels import Board, ChannelError

from .boot import BOARD_CONNECTED, BOARD_READY, BOARD_SPARE, BOARD_STARTING, ROOT_SLOT

BOARD_FILES: Final = ("/dev/shm/#", "/memfd:ringcast")  # what a segment's descriptor is called
STATES: Final = {
    BOARD_STARTING: "starting",
    BOARD_READY: "ready",
    BOARD_SPARE: "spare",
    BOARD_CONNECTED: "connected",  # a program that came by name
}


@dataclass(frozen=True, slots=True)
class ActorRow:
    """One process of a system and the actor in it, at one moment."""

    system_pid: int
    pid: int
    name: str
    state: str
    incarnation: int
    is_busy: bool
    depth: int  # messages that waited when its last handler ended
    oldest_age_s: float  # of the first of them
    handled: int
    handling_s: float  # the sum over all
    cpu_s: float  # user and system, of the process
    memory_bytes: int  # resident


def find_systems(pid: int | None = None) -> list[int]:
    """The pids of the first processes of systems; only that one if a pid is given and it is one."""
    candidates = [pid] if pid is not None else [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [candidate for candidate in candidates if any(True for _ in _boards(candidate))]


def rows(system_pid: int) -> list[ActorRow]:
    """What the boards of that process's systems show now; empty if it has ended."""
    now_us = time.monotonic_ns() // 1000
    found = []
    for board in _boards(system_pid):
        for slot in range(board.slots):
            incarnation, state = board.state(slot)
            pid_text, _, name = board.label(slot).partition(" ")
            if state not in STATES:
                continue
            depth, oldest_us, handled, handling_us, *_ = board.gauges(slot)
            _, handler = board.progress(slot)
            cpu_s, memory_bytes = _usage(int(pid_text))
            found.append(
                ActorRow(
                    system_pid=system_pid,
                    pid=int(pid_text),
                    name=name,
                    state=STATES[state],
                    incarnation=incarnation,
                    is_busy=handler != 0,
                    depth=depth,
                    oldest_age_s=(now_us - oldest_us) / 1e6 if oldest_us else 0.0,
                    handled=handled,
                    handling_s=handling_us / 1e6,
                    cpu_s=cpu_s,
                    memory_bytes=memory_bytes,
                )
            )
    return found


def table(before: list[ActorRow], now: list[ActorRow], seconds: float) -> str:
    """Rows of now, with rates since before, as text."""
    earlier = {(row.system_pid, row.name, row.incarnation): row for row in before}
    heads = ("ACTOR", "PID", "STATE", "RESTARTS", "MAILBOX", "OLDEST", "MSG/S", "MEAN", "CPU", "MEMORY")
    lines = [heads]
    for row in now:
        old = earlier.get((row.system_pid, row.name, row.incarnation), row)
        messages = row.handled - old.handled
        mean_us = (row.handling_s - old.handling_s) / messages * 1e6 if messages else 0.0
        lines.append(
            (
                row.name,
                str(row.pid),
                f"{row.state}{', busy' if row.is_busy else ''}",
                str(max(0, row.incarnation - 1)),
                str(row.depth),
                f"{row.oldest_age_s:.1f} s",
                f"{messages / seconds:,.0f}",
                f"{mean_us:,.0f} µs",
                f"{(row.cpu_s - old.cpu_s) / seconds * 100:.0f} %",
                f"{row.memory_bytes / 2**20:,.0f} MiB",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, 2) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def watch(pid: int | None, interval_s: float, count: int | None) -> int:
    """Print the table every so many seconds, ``count`` times or until interrupted; the exit code."""
    systems = find_systems(pid)
    if not systems:
        where = f"process {pid} runs no system" if pid is not None else "no system is running"
        print(f"{where}, or it belongs to another user", file=sys.stderr)
        return 1
    before = [row for system in systems for row in rows(system)]
    shown = 0
    while count is None or shown < count:
        time.sleep(interval_s)
        now = [row for system in systems for row in rows(system)]
        if not now:
            print("the system has ended", file=sys.stderr)
            return 0
        if sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
        print(table(before, now, interval_s), flush=True)
        before = now
        shown += 1
    return 0


def _boards(pid: int) -> Iterator[Board]:
    """The boards of which that process holds the descriptor and the first slot."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"{folder}/{number}")
            if not target.startswith(BOARD_FILES):
                continue
            fd = os.open(f"{folder}/{number}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a pipe
        except OSError:
            continue
        try:
            board = Board.look(fd)
        except (ChannelError, ValueError):  # a ring, or another program's file
            continue
        finally:
            os.close(fd)
        if board.label(ROOT_SLOT).partition(" ")[0] == str(pid):
            yield board


def _usage(pid: int) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of a process; zeros if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def main(program: str = "python -m ringcast.actors.top", arguments: list[str] | None = None) -> NoReturn:
    """The command line: an optional pid, and --count N for a fixed number of tables. Exits with its status.

    Args:
        program: what the usage line calls it.
        arguments: the words behind it; None takes them from `sys.argv`.
    """
    import argparse

    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("pid", type=int, nargs="?", help="a system's first process (default: all that can be seen)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between tables, 0.05 at least")
    parser.add_argument("--count", type=int, help="how many tables (default: until interrupted)")
    options = parser.parse_args(arguments)
    if not 0.05 <= options.interval < float("inf"):
        parser.error(f"--interval {options.interval}: give seconds, 0.05 at least")
    if options.count is not None and options.count < 1:
        parser.error(f"--count {options.count}: give 1 or more")
    try:
        sys.exit(watch(options.pid, options.interval, options.count))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read the tables has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's last flush
        sys.exit(1)


if __name__ == "__main__":
    main()
