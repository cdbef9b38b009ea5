"""What test_kill_points.py builds with: victims that die at a named point, and survivors that must go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import native_finder
from channel_kit import EPOCH, Bells

from ringcast.channels import ALL_READERS, Inbox, Link, Outbox, RingReader, RingWriter, Segment, create_segment

US, ECHO, VICTIM = 0, 5, 6  # board slots
CAPACITY = 4096
GOES_ON_WITHIN_S = 1.0
PATIENCE_S = 20.0  # until a victim comes to its point


def number_of(payload: bytes | memoryview) -> int:
    """Which message of a stream this is."""
    return int(bytes(payload[:8]))


def numbered(number: int) -> bytes:
    """The message with that number; every 40th is oversized."""
    return b"%08d" % number + bytes(3000 if number % 40 == 39 else number * 7 % 57)


class Process:
    """A role of kill_peers.py. ``crash_at`` is name:count, or name:count:stop."""

    def __init__(self, native: Path, role: str, crash_at: str, fds: Iterable[int], **arguments: Any) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kill_peers.py")), role, json.dumps(arguments)],
            pass_fds=tuple(fds),
            stdout=subprocess.PIPE,
            env=os.environ | {native_finder.VARIABLE: str(native), "RINGCAST_CRASH_AT": crash_at},
        )
        self.pidfd = os.pidfd_open(self.popen.pid)

    def wait_ready(self) -> None:
        """Until it says so; a victim may have died at its point before."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line == b"ready\n" or self.popen.wait(5) == -signal.SIGKILL, (line, self.popen.returncode)

    def is_stopped(self) -> bool:
        found = os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return found is not None and found.si_code == os.CLD_STOPPED

    def send_signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self) -> int:
        """Its exit status; killed if it still runs."""
        if self.popen.poll() is None:
            self.popen.kill()
        status = self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        os.close(self.pidfd)
        return status


class Village:
    """This process with its bell, and an echo in another one: survivors of every victim."""

    def __init__(self, bells: Bells, native: Path) -> None:
        self.bells, self.native = bells, native
        self.bell = bells[US]
        assert bells[VICTIM]  # opened now, so that victims leave the descriptors as they were
        self._there, self._back = (create_segment(RingWriter.size_bytes(CAPACITY)) for _ in range(2))
        self._writer = RingWriter(self._there.fd, self.bell, epoch=EPOCH)
        self._writer.admit(bells[ECHO])
        fds, arguments = self.arguments(ECHO)
        self._echo = Process(
            native, "echo", "never:0", [*fds, self._there.fd, self._back.fd],
            inward=self._there.fd, outward=self._back.fd, **arguments,
        )  # fmt: skip
        self._echo.wait_ready()
        self._reader = RingReader(self._back.fd, 0, 0, bells[ECHO], EPOCH)
        self._said = 0

    def arguments(self, slot: int) -> tuple[list[int], dict[str, Any]]:
        """The descriptors and arguments of a process with that bell, which rings ours."""
        assert self.bells[slot]
        own, other, board = self.bells.eventfds[slot], self.bells.eventfds[US], self.bells.segment.fd
        return [own, other, board], {"board": board, "own": (slot, own), "other": (US, other)}

    def goes_on(self) -> None:
        """A round trip between survivors that both sleep, in time."""
        start = time.monotonic()
        self._said += 1
        assert self._writer.try_send(b"%d" % self._said, 1)
        self._writer.flush()
        while not (answer := self._reader.poll()):
            assert time.monotonic() - start < GOES_ON_WITHIN_S, "a survivor waits for a wake-up"
            self.bell.wait([self._reader], [], [], GOES_ON_WITHIN_S, 0.0)
        assert [message.payload for message in answer] == [b"%d" % self._said]

    def close(self) -> None:
        self._echo.end()
        for segment in (self._there, self._back):
            segment.close()


class MortalWriter:
    """A victim that writes to two inboxes of ours: one that it waits for, one that it spills to because it lags."""

    def __init__(self, village: Village, crash_at: str) -> None:
        self.village = village
        self.segment: Segment = create_segment(RingWriter.size_bytes(CAPACITY))
        self.links = [Link.pair() for _ in range(2)]
        fds, arguments = village.arguments(VICTIM)
        ends = [far.fileno() for _, far in self.links]
        self.process = Process(
            village.native, "write", crash_at, [*fds, self.segment.fd, *ends],
            outward=self.segment.fd, links=ends, pause_s=0.002, **arguments,
        )  # fmt: skip
        for _, far in self.links:
            far.close()
        self.inboxes: list[Inbox] = []
        self.counts = [0, 0]
        self._turn = 0
        self.process.wait_ready()
        if self.process.popen.poll() is None:
            for i, (near, _) in enumerate(self.links):
                reader = RingReader(self.segment.fd, i, 0, village.bells[VICTIM], EPOCH)
                self.inboxes.append(Inbox(reader, near))

    def read(self, everything: bool = False) -> None:
        """Take what is there; the second inbox lags unless ``everything``. Each stream is in order."""
        self._turn += 1
        if self._turn % 10 == 0 and not everything:
            time.sleep(0.01)  # the ring runs full
        for i, inbox in enumerate(self.inboxes):
            inbox.control_frames()
            if i == 1 and not everything and self._turn % 40 < 30:
                continue
            while messages := inbox.poll():
                for message in messages:
                    assert number_of(message.payload) == self.counts[i], "a gap, a double or disorder"
                    self.counts[i] += 1

    def wait(self, timeout_s: float) -> bool:
        """Sleep until there is something; True if the victim is dead."""
        links = [inbox.fileno() for inbox in self.inboxes if not inbox.link.eof]
        readers = [inbox.reader for inbox in self.inboxes[:1]]
        ready = self.village.bell.wait(readers, [], [self.process.pidfd, *links], timeout_s, 0.0)
        return self.process.pidfd in ready

    def drain(self) -> None:
        """After its death: everything that it committed, in time."""
        start = time.monotonic()
        self.read(everything=True)
        for inbox in self.inboxes:
            inbox.peer_died()
        while not all(inbox.finished for inbox in self.inboxes):
            assert time.monotonic() - start < GOES_ON_WITHIN_S, "the stream of a dead writer does not end"
            self.read(everything=True)
        for inbox in self.inboxes[:1]:
            assert inbox.reader.blocked or inbox.reader.position == inbox.reader.head

    def close(self) -> int:
        status = self.process.end()
        for inbox in self.inboxes:
            inbox.close()
        for near, _ in self.links:
            near.close()
        self.segment.close()
        return status


class MortalReader:
    """A victim that reads what we write, beside an inbox of ours that must get everything."""

    def __init__(self, village: Village, crash_at: str, policy: Any) -> None:
        self.village = village
        self.segment: Segment = create_segment(RingWriter.size_bytes(CAPACITY))
        self.outbox = Outbox(RingWriter(self.segment.fd, village.bell, epoch=EPOCH))
        pairs = [Link.pair() for _ in range(2)]
        self.victim_link = pairs[0][0]
        self.victim_slot = self.outbox.admit(village.bells[VICTIM], pairs[0][0], policy)
        slot = self.outbox.admit(village.bell, pairs[1][0])
        self.survivor = Inbox(RingReader(self.segment.fd, slot, 0, village.bell, EPOCH), pairs[1][1])
        self.links = [pairs[0][0], *pairs[1]]
        fds, arguments = village.arguments(VICTIM)
        far = pairs[0][1]
        self.process = Process(
            village.native, "read", crash_at, [*fds, self.segment.fd, far.fileno()],
            inward=self.segment.fd, slot=self.victim_slot, link=far.fileno(), pause_s=0.003, **arguments,
        )  # fmt: skip
        far.close()
        self.sent = self.received = 0
        self.process.wait_ready()

    def send(self, timeout_s: float) -> bool:
        """Send a message, waiting for space if need be; True if the victim is dead."""
        deadline = time.monotonic() + timeout_s
        while not self.outbox.try_send(numbered(self.sent), ALL_READERS):
            self.outbox.flush()
            self.read()
            left = deadline - time.monotonic()
            if left <= 0 or self._wait(min(left, 0.5)):
                return self.process.pidfd in self.village.bell.wait([], [], [self.process.pidfd], 0.0, 0.0)
        self.sent += 1
        self.outbox.flush()
        for link in self.outbox.links_pending():
            link.pump()
        self.read()
        return self.sent % 16 == 0 and self._wait(0.0)

    def _wait(self, timeout_s: float) -> bool:
        for link in self.outbox.links_pending():
            link.pump()
        pending = [link.fileno() for link in self.outbox.links_pending()]
        fds = [self.process.pidfd]
        ready = self.village.bell.wait([], [self.outbox.ring], fds, timeout_s, 0.0, pending)
        return self.process.pidfd in ready

    def read(self) -> None:
        self.survivor.control_frames()
        while messages := self.survivor.poll():
            for message in messages:
                assert number_of(message.payload) == self.received, "a gap, a double or disorder"
                self.received += 1

    def go_on(self) -> None:
        """After its death: it is evicted, and the other reader gets everything and more, in time."""
        start = time.monotonic()
        self.outbox.evict(self.victim_slot)
        goal = self.sent + 100
        while self.sent < goal or self.received < goal:
            assert time.monotonic() - start < GOES_ON_WITHIN_S, "the writer does not go on"
            if self.sent < goal and self.outbox.try_send(numbered(self.sent), ALL_READERS):
                self.sent += 1
                self.outbox.flush()
            for link in self.outbox.links_pending():
                link.pump()
            self.read()

    def close(self) -> int:
        status = self.process.end()
        self.survivor.close()
        for link in self.links:
            link.close()
        self.segment.close()
        return status
