"""One reader's receiving side: a ring reader and the link of the same writer, merged into one ordered stream.

Its owner polls it, passes ``reader`` to arm and wait, and watches the link's descriptor. It never blocks and never
judges whether the writer lives: its owner says so, or the link's end does.
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

    Both ways of reading the link are supported: let the inbox do it (`poll` when it needs a frame, `control_frames`
    whenever the link is readable), or read it elsewhere and hand over the channels' own frames with `feed`.
    """

    def __init__(self, reader: RingReader, link: Link) -> None:
        self.reader = reader
        self.link = link
        self._overflows: dict[int, Frame] = {}
        self._control: list[Frame] = []
        self._failure: ChannelError | None = None
        self._proven_dead = False
        self._cut_off = False

    def poll(self, max_messages: int = 256) -> list[Message]:
        """The next messages, at most so many; empty if there is none yet. Unpack each as (type, payload).

        The payload of an oversized message is a read-only memoryview of shared memory, unmapped when the last view
        of it goes; others are bytes. While an oversized one has not arrived, nothing behind it is delivered and
        ``reader.blocked`` is True: poll again when the link is readable. `RingCorrupt`, `LinkError` or
        `SegmentError` are raised after everything before them was delivered.
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
        """The frames that are not the channels' own, in order. Reads the link: call when it is readable."""
        self._read_link()
        frames, self._control = self._control, []
        return frames

    @property
    def control_pending(self) -> bool:
        """`poll` came upon control frames while it read the link: fetch them with `control_frames`."""
        return bool(self._control)

    def feed(self, frame: Frame) -> None:
        """Take a frame of the channels' own kinds that the owner read from the link."""
        if frame.kind != OVERFLOW_FRAME or len(frame.fds) != 1:
            for fd in frame.fds:
                os.close(fd)
            raise LinkError(f"a frame of kind {frame.kind} with {len(frame.fds)} descriptors is no overflow frame")
        self._overflows[frame.id] = frame

    def fileno(self) -> int:
        """The link's descriptor, for event loops."""
        return self.link.fileno()

    def peer_died(self) -> None:
        """The owner has proof (the pidfd) that the writer is dead: `finished` when everything is drained."""
        self._proven_dead = True

    @property
    def dead(self) -> bool:
        """The writer is proven dead, or the link has ended: nothing new will come, but poll may have more."""
        return self._proven_dead or self.link.eof

    @property
    def finished(self) -> bool:
        """Nothing will ever come any more: the writer closed the ring, or is dead and all is drained."""
        reader = self.reader
        return self._cut_off or reader.closed or (self.dead and reader.position == reader.head)

    def close(self) -> None:
        """Close the descriptors of oversized messages that were never taken. The link stays its owner's."""
        for frame in self._overflows.values():
            for fd in frame.fds:
                os.close(fd)
        self._overflows.clear()

    def _claim(self, record: Message) -> memoryview | None:
        """The payload of an OVERFLOW record; None, with the reader blocked, if its frame is not there yet."""
        number, size_bytes = unpack_record(record.payload)
        if number not in self._overflows and not self.link.eof:
            self._read_link()
        frame = self._overflows.get(number)
        if frame is None:
            self.reader.blocked = True
            self._cut_off = self.dead
            return None
        payload = _native.map_sealed(frame.fds[0], size_bytes)
        del self._overflows[number]
        os.close(frame.fds[0])
        self.reader.blocked = False
        return payload

    def _read_link(self) -> None:
        for frame in self.link.receive():
            if frame.kind == OVERFLOW_FRAME:
                self.feed(frame)
            else:
                self._control.append(frame)

    def __del__(self) -> None:
        self.close()
