"""What the channel tests build with: bells on a board, rings with readers, and other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ringcast.channels import (
    Board,
    Doorbell,
    Inbox,
    Link,
    Outbox,
    Policy,
    RingReader,
    RingWriter,
    create_segment,
)

EPOCH = 7  # of every ring under test
WRITER_BELL = 63  # the board slot of every writer under test; reader i has slot i


class Bells:
    """A board and the doorbells on it, each with the eventfd that other processes would be given."""

    def __init__(self) -> None:
        self.segment = create_segment(Board.size_bytes())
        self.board = Board.create(self.segment.fd)
        self.eventfds: dict[int, int] = {}
        self._bells: dict[int, Doorbell] = {}

    def __getitem__(self, slot: int) -> Doorbell:
        if slot not in self._bells:
            self.eventfds[slot] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._bells[slot] = Doorbell(self.board, slot, self.eventfds[slot])
        return self._bells[slot]

    def close(self) -> None:
        for fd in self.eventfds.values():
            os.close(fd)
        for bell in self._bells.values():
            bell.close()
        self._bells.clear()
        self.segment.close()


class Ring:
    """A writer and as many readers, all in this process."""

    def __init__(self, bells: Bells, capacity: int, readers: int) -> None:
        self.bells = bells
        self.segment = create_segment(RingWriter.size_bytes(capacity))
        self.writer = RingWriter(self.segment.fd, bells[WRITER_BELL], epoch=EPOCH)
        self.readers = [self.admit() for _ in range(readers)]

    def admit(self) -> RingReader:
        free = ~self.writer.readers
        slot = self.writer.admit(self.bells[(free & -free).bit_length() - 1])
        return RingReader(self.segment.fd, slot, self.writer.position, self.bells[WRITER_BELL], EPOCH)


class Lane:
    """An outbox, and the inboxes and links of its readers, all in this process."""

    def __init__(self, ring: Ring, policies: Iterable[Policy], spill_limit_bytes: int) -> None:
        self.ring = ring
        self.outbox = Outbox(ring.writer)
        self.links: list[Link] = []
        self.inboxes: list[Inbox] = []
        for policy in policies:
            self.admit(policy, spill_limit_bytes)

    def admit(self, policy: Policy = "wait", spill_limit_bytes: int = 1 << 26) -> int:
        near, far = Link.pair()
        slot = self.outbox.admit(self.ring.bells[len(self.links)], near, policy, spill_limit_bytes)
        writer, bell = self.ring.writer, self.ring.bells[WRITER_BELL]
        reader = RingReader(self.ring.segment.fd, slot, writer.position, bell, EPOCH)
        self.links.append(near)
        self.inboxes.append(Inbox(reader, far))
        return slot

    def carry(self, i: int) -> None:
        """Move everything that waits for the link of a reader."""
        self.inboxes[i].control_frames()
        while self.links[i].pending:
            self.links[i].pump()
            self.inboxes[i].control_frames()

    def read(self, i: int, max_messages: int = 1 << 20) -> list[bytes]:
        self.carry(i)
        return [bytes(payload) for _, payload in self.inboxes[i].poll(max_messages)]

    def close(self) -> None:
        for link, inbox in zip(self.links, self.inboxes, strict=True):
            link.close()
            inbox.close()
            inbox.link.close()


class Peer:
    """A role running as a process of its own, with just the descriptors that it is given."""

    def __init__(self, role: str, fds: Iterable[int], **arguments: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("channel_peers.py")), role, json.dumps(arguments)],
            pass_fds=tuple(fds),
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, kill: int | None = None) -> int:
        """Wait for its end (after that signal, if one is given); its exit status, negative for a signal."""
        if kill is not None:
            self.process.send_signal(kill)
        try:
            return self.process.wait(30)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
