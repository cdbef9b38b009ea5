"""The other processes of the channel tests: ``python channel_peers.py ROLE JSON``.

Every role prints "ready" once its ends of the rings are open.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys

from channel_kit import EPOCH

from ringcast.channels import (
    ALL_READERS,
    Board,
    Doorbell,
    Inbox,
    Link,
    Outbox,
    RingReader,
    RingWriter,
    exit_with,
)


def echo(board: Board, inward: int, outward: int, own: Doorbell, other: Doorbell, count: int, spin_s: float) -> None:
    """Send every message back, sleeping in between."""
    writer = RingWriter(outward, own, epoch=EPOCH)
    writer.admit(other)
    reader = RingReader(inward, 0, 0, other, EPOCH)
    print("ready", flush=True)
    done = 0
    while done < count:
        messages = reader.poll()
        for message in messages:
            assert writer.try_send(message.payload, 1)
            done += 1
        writer.flush()
        if not messages:
            own.wait([reader], [], [], None, spin_s)


def collect(board: Board, inward: int, slot: int, own: Doorbell, other: Doorbell, count: int) -> None:
    """Read that many messages; print how many were as expected and the digest of all."""
    reader = RingReader(inward, slot, 0, other, EPOCH)
    print("ready", flush=True)
    digest, seen = hashlib.sha256(), 0
    while seen < count:
        messages = reader.poll(5)
        for message in messages:
            digest.update(message.payload)
        seen += len(messages)
        if not messages:
            own.wait([reader], [], [], None, 0.0)
    print(seen, digest.hexdigest(), flush=True)


def collect_all(board: Board, inward: int, slot: int, link: int, own: Doorbell, other: Doorbell, count: int) -> None:
    """Read that many messages of ring and link; print how many, their digest, and how many came by link."""
    inbox = Inbox(RingReader(inward, slot, 0, other, EPOCH), Link(link))
    print("ready", flush=True)
    digest, seen = hashlib.sha256(), 0
    while seen < count:
        messages = inbox.poll(7)
        for message in messages:
            digest.update(message.payload)
        seen += len(messages)
        if not messages and own.wait([inbox.reader], [], [inbox.fileno()], None, 0.0):
            inbox.control_frames()
    print(seen, digest.hexdigest(), inbox.reader.statistics().spilled, flush=True)


def stream(board: Board, outward: int, own: Doorbell, other: Doorbell, link: int, big_every: int) -> None:
    """Send numbered messages for ever; every so many is oversized."""
    outbox = Outbox(RingWriter(outward, own, epoch=EPOCH))
    outbox.admit(other, Link(link))
    print("ready", flush=True)
    number = 0
    while True:
        size = 20_000 if number % big_every == 0 else number % 100
        while not outbox.try_send(b"%08d" % number + bytes(size), ALL_READERS):
            outbox.flush()
            for pending in outbox.links_pending():
                pending.pump()
            own.wait([], [outbox.ring], [], None, 0.0)
        outbox.flush()
        number += 1


def receive_some(board: Board, inward: int, own: Doorbell, other: Doorbell, link: int) -> None:
    """Read and sleep for ever: to be killed."""
    inbox = Inbox(RingReader(inward, 0, 0, other, EPOCH), Link(link))
    print("ready", flush=True)
    while True:
        inbox.control_frames()
        inbox.poll()
        own.wait([inbox.reader], [], [inbox.fileno()], None, 0.0)


def hold_the_gil(pidfd: int) -> None:
    """Watch a process while native code holds the GIL for minutes."""
    exit_with([pidfd], 44)
    print("ready", flush=True)
    re.match(r"(a+)+$", "a" * 40 + "b")


def main() -> None:
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "board" in arguments:
        arguments["board"] = Board(arguments["board"])
        for name, slot in (("own", arguments.pop("own_slot")), ("other", arguments.pop("other_slot"))):
            arguments[name] = Doorbell(arguments["board"], slot, arguments[name])
    roles = {f.__name__: f for f in (echo, collect, collect_all, stream, receive_some, hold_the_gil)}
    roles[role](**arguments)


if __name__ == "__main__":
    main()
