"""The processes that die in test_kill_points.py: ``python kill_peers.py ROLE JSON``, RINGCAST_CRASH_AT says where.

They run on the test build that native_finder finds. Each prints "ready" first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/, of native_finder
import native_finder

native_finder.install()

from channel_kit import EPOCH  # noqa: E402
from kill_kit import number_of, numbered  # noqa: E402

from ringcast.channels import ALL_READERS, Board, Doorbell, Inbox, Link, Outbox, RingReader, RingWriter  # noqa: E402


class LinkThatDies(Link):
    """Sends the first bytes of a frame and dies (RINGCAST_CRASH_AT="mid_frame:count")."""

    left = 0

    def _send_some(self, frame):  # type: ignore[no-untyped-def]
        LinkThatDies.left -= 1
        if LinkThatDies.left == 0:
            self._socket.send(bytes(frame.parts[0])[:10])
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._send_some(frame)


def write(board: Board, outward: int, own: Doorbell, other: Doorbell, links: list[int], pause_s: float) -> None:
    """Send numbered messages for ever to a reader that is waited for and one that is spilled to."""
    name, _, count = os.environ["RINGCAST_CRASH_AT"].partition(":")
    LinkThatDies.left = int(count) if name == "mid_frame" else 0
    outbox = Outbox(RingWriter(outward, own, epoch=EPOCH))
    outbox.admit(other, LinkThatDies(links[0]), "wait")
    outbox.admit(other, LinkThatDies(links[1]), "spill")
    print("ready", flush=True)
    number = 0
    while True:
        while not outbox.try_send(numbered(number), ALL_READERS):
            outbox.flush()
            for link in outbox.links_pending():
                link.pump()
            pending = [link.fileno() for link in outbox.links_pending()]
            own.wait([], [outbox.ring], [], None, 0.0, pending)
        outbox.flush()
        for link in outbox.links_pending():
            link.pump()
        number += 1
        if number % 16 == 0:
            time.sleep(pause_s)  # readers fall asleep, and detached ones catch up


def read(board: Board, inward: int, slot: int, own: Doorbell, other: Doorbell, link: int, pause_s: float) -> None:
    """Read for ever, in place at times, and lag at times."""
    inbox = Inbox(RingReader(inward, slot, 0, other, EPOCH), Link(link))
    print("ready", flush=True)
    turn = due = 0
    while True:
        turn += 1
        inbox.control_frames()
        if turn % 3 == 0:
            view = inbox.view()
            if view is not None:
                with view as record:
                    assert number_of(record.payload) == due
                due += 1
        else:
            for message in inbox.poll(5):
                assert number_of(message.payload) == due
                due += 1
        if turn % 8 == 0:
            time.sleep(pause_s)
        own.wait([inbox.reader], [], [inbox.fileno()], None, 0.0)


def echo(board: Board, inward: int, outward: int, own: Doorbell, other: Doorbell) -> None:
    """Send every message back."""
    writer = RingWriter(outward, own, epoch=EPOCH)
    writer.admit(other)
    reader = RingReader(inward, 0, 0, other, EPOCH)
    print("ready", flush=True)
    while True:
        for message in reader.poll():
            assert writer.try_send(message.payload, 1)
        writer.flush()
        own.wait([reader], [], [], None, 0.0)


def main() -> None:
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    arguments["board"] = Board(arguments["board"])
    for name in ("own", "other"):
        arguments[name] = Doorbell(arguments["board"], *arguments[name])
    {"write": write, "read": read, "echo": echo}[role](**arguments)


if __name__ == "__main__":
    main()
