"""One reader's receiving side: a ring reader and the link of the same writer, merged into one ordered stream.

Its owner polls it, passes ``reader`` to arm and wait, and reads the link whenever it is readable. It never blocks and
never judges whether the writer lives: its owner says so, or the link's end does.
"""

from __future__ import annotations

import os

from . import _native
from ._native import Message
from .errors import ChannelError, LinkError
from .link import Frame, Link
from .overflow import OVERFLOW_FRAME, unpack_record
from .ring import RingReader


class Inbox:
    """The messages of one writer, in ring order, oversized ones included.

    Whenever the link is readable, call `control_frames` (or read the link yourself and hand the channels' own frames
    to `feed`), and poll again: an oversized message may have become complete.
    """

    def __init__(self, reader: RingReader, link: Link) -> None:
        self.reader = reader
        self.link = link
        self._overflows: dict[int, Frame] = {}
        self._failure: ChannelError | None = None
        self._proven_dead = False

    def poll(self, max_messages: int = 256) -> list[Message]:
        """The next messages, at most so many; empty if there is none yet. Unpack each as (type, payload).

        The payload of an oversized message is a read-only memoryview of shared memory, unmapped when the last view
        of it goes; others are bytes. While an oversized one has not arrived, nothing behind it is delivered and
        ``reader.blocked`` is True: poll again when the link was read. `RingCorrupt` or `SegmentError` are raised
        after everything before them was delivered.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        messages = self.reader.poll(max_messages)
        while messages and messages[-1].kind != _native.DATA:
            last = messages.pop()
            if last.kind == _native.CLOSE:
                break
            try:
                payload = self._claim(last)
            except ChannelError as error:
                if not messages:
                    raise
                self._failure = error
                break
            if payload is None:
                break
            self.reader.step()
            messages.append(Message((last.type, payload, _native.DATA, last.seq)))
            if len(messages) < max_messages:
                messages += self.reader.poll(max_messages - len(messages))
        return messages

    def control_frames(self) -> list[Frame]:
        """Read the link: its frames in order, without the channels' own, which are kept for `poll`."""
        frames = []
        for frame in self.link.receive():
            if frame.kind == OVERFLOW_FRAME:
                self.feed(frame)
            else:
                frames.append(frame)
        return frames

    def feed(self, frame: Frame) -> None:
        """Take a frame of the channels' own kinds that the owner read from the link; `LinkError` if it is none."""
        if frame.kind != OVERFLOW_FRAME or len(frame.fds) != 1:
            for fd in frame.fds:
                os.close(fd)
            raise LinkError(f"a frame of kind {frame.kind} with {len(frame.fds)} descriptors is no overflow frame")
        self._overflows[frame.id] = frame
        self.reader.blocked = False  # perhaps: the next poll finds out

    def fileno(self) -> int:
        """The link's descriptor, for event loops."""
        return self.link.fileno()

    def peer_died(self) -> None:
        """The owner has proof (the pidfd) that the writer is dead. Read the link once more before."""
        self._proven_dead = True

    @property
    def dead(self) -> bool:
        """The writer is proven dead, or the link has ended: nothing new will come, but `poll` may have more."""
        return self._proven_dead or self.link.eof

    @property
    def finished(self) -> bool:
        """Nothing will ever come any more.

        The writer closed the ring, or it is dead and everything up to its last committed record was delivered; an
        oversized message whose bytes it did not get out, and what is behind it, is lost with it.
        """
        reader = self.reader
        return reader.closed or (self.dead and (reader.blocked or reader.position == reader.head))

    def close(self) -> None:
        """Close the descriptors of oversized messages that were never taken. The link stays its owner's."""
        for frame in self._overflows.values():
            os.close(frame.fds[0])
        self._overflows.clear()

    def _claim(self, record: Message) -> memoryview | None:
        """The payload of an OVERFLOW record; None, with the reader blocked, if its frame is not there yet."""
        number, size_bytes = unpack_record(record.payload)
        frame = self._overflows.get(number)
        self.reader.blocked = frame is None
        if frame is None:
            return None
        payload = _native.map_sealed(frame.fds[0], size_bytes)
        del self._overflows[number]
        os.close(frame.fds[0])
        return payload

    def __del__(self) -> None:
        if hasattr(self, "_overflows"):
            self.close()
