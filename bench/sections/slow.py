"""One of three readers is stopped by SIGSTOP while a paced stream runs, and goes on after SIGCONT."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import ExitStack, closing
from typing import Any, Final

from ringcast.channels import Link, Policy, RingWriter, create_segment

from ..report import Cell, Figure, Table, Target
from ..transports import Peer
from ..transports.paced import BUCKET_S
from ..transports.ring import Bells
from ..workers import Worker
from . import OURS, Bench

POLICIES: Final[tuple[Policy, ...]] = ("wait", "spill")
READERS: Final = 3
SIZE_BYTES: Final = 1024
PER_SECOND: Final = 20_000
LEAD_SHARE: Final = 0.3  # before the stop and after it, of the time stopped


def measure(bench: Bench) -> None:
    """A row for each policy of full rings."""
    rows = []
    for policy in POLICIES:
        bench.say(f"slow reader, policy {policy}: stopped for {bench.plan.stopped_s:g} s")
        rows.append(_run(bench, policy))
    columns = (
        "policy",
        "others before",
        "others while it is stopped",
        "rate kept",
        "longest wait of a send",
        "the stopped one received",
    )
    note = (
        f"{SIZE_BYTES} B x {PER_SECOND:,} messages a second to {READERS} processes; one is stopped for "
        f"{bench.plan.stopped_s:g} s. A figure has one value for each of the others."
    )
    bench.report.tables.append(Table("A stopped reader", columns, tuple(rows), note))


def _run(bench: Bench, policy: Policy) -> tuple[Cell, ...]:
    stopped_s, lead_s = bench.plan.stopped_s, bench.plan.stopped_s * LEAD_SHARE
    with ExitStack() as stack:
        writer, *readers = _start(bench, stack, policy)
        for reader in readers:
            reader.post("run")
        started = time.monotonic()
        writer.post("run", SIZE_BYTES, PER_SECOND, stopped_s + 2 * lead_s)
        time.sleep(lead_s)
        readers[0].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(stopped_s)
        readers[0].send_signal(signal.SIGCONT)
        continued = time.monotonic()
        longest_s = float(writer.answer())
        slow, *others = [reader.answer() for reader in readers]
    total = int(PER_SECOND * (stopped_s + 2 * lead_s))
    before = Figure(tuple(_rate(other["buckets"], started, stopped) for other in others), "/s")
    meanwhile = Figure(tuple(_rate(other["buckets"], stopped, continued) for other in others), "/s")
    in_order = int(slow["in_order"])
    kept = meanwhile.ratio_to(before)
    if policy == "spill":
        bench.report.targets += [
            Target("rate that the others keep, spill", kept, 0.9, at_least=True),
            Target("records in order after SIGCONT, of all", Figure((in_order / total,), ""), 1, at_least=True),
        ]
    return (policy, before, meanwhile, kept, Figure((longest_s,), "s"), f"{in_order:,} of {total:,} in order")


def _start(bench: Bench, stack: ExitStack, policy: Policy) -> list[Worker]:
    """The writer and the readers, connected."""
    bells = Bells.create(READERS + 1)
    stack.callback(_close_all, bells.fds)
    segment = stack.enter_context(closing(create_segment(RingWriter.size_bytes())))
    links = [Link.pair() for _ in range(READERS)]
    workers, peers = [], []
    for i in range(READERS + 1):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peers.append(Peer(stack.enter_context(here)))
        name = "PacedWriter" if i == 0 else "CountingReader"
        core = bench.cores.near if i == 0 else bench.cores.far
        with there:
            path = f"bench.transports.paced:{name}"
            workers.append(Worker(path, "near" if i == 0 else "far", there.fileno(), core, OURS.python, ()))
        stack.callback(workers[-1].close)
    peers[0].send(policy, [*bells.fds, segment.fd, *(ours.fileno() for ours, _ in links)])
    workers[0].answer()  # the ring is open and everybody admitted
    for slot, (peer, (_, theirs)) in enumerate(zip(peers[1:], links, strict=True)):
        peer.send(slot, [*bells.fds, segment.fd, theirs.fileno()])
    for worker in workers[1:]:
        worker.answer()
    for pair in links:
        for link in pair:
            link.close()
    return workers


def _rate(buckets: list[list[Any]], begin: float, end: float) -> float:
    """Messages a second over the whole buckets between two times."""
    first, last = int(begin / BUCKET_S) + 1, int(end / BUCKET_S)
    if last <= first:
        raise ValueError(f"no whole {BUCKET_S} s between {begin} and {end}")
    counts = [float(count) for bucket, count in buckets if first <= bucket < last]
    return sum(counts) / ((last - first) * BUCKET_S)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
