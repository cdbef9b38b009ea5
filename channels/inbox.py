"""One reader's receiving side: a ring reader and the link of the same writer, merged into one ordered stream.

Its owner polls it, passes ``reader`` to arm and wait, and reads the link whenever it is readable. It never blocks and
never judges whether the writer lives: its owner says so, or the link's end does.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from . import _native
from ._native import Board, InboxCore, Message, RecordView
from .errors import ChannelError, LinkError, RingCorrupt
from .link import Frame, Link
from .overflow import OVERFLOW_FRAME, STREAM_FRAME, unpack_record
from .placed import HeldRecord
from .ring import RingReader
from .spill import NOTICE_FRAME, SPILL_FRAME, unpack_notice, unpack_records, weight

if TYPE_CHECKING:
    from .statistics import StallReport

_FDS: Final = {OVERFLOW_FRAME: 1, STREAM_FRAME: 0, SPILL_FRAME: 0, NOTICE_FRAME: 0}  # the channels' own kinds


class Inbox(InboxCore):
    """The messages of one writer in the order of sending, whatever way they take.

    Whenever the link is readable, call `control_frames` (or read the link yourself and hand the channels' own frames
    to `feed`), and poll again: an oversized message may have become complete, or spilled records have come.
    """

    def __new__(cls, reader: RingReader, link: Link) -> Inbox:
        return super().__new__(cls, reader)

    def __init__(self, reader: RingReader, link: Link) -> None:
        self.link = link
        self._overflows: dict[int, Frame] = {}
        self._spilled: deque[Message | tuple[int, int]] = deque()  # records, and (position, seq) of notices
        self._spilled_count = 0  # ever received
        self._closed = False
        self._proven_dead = False
        self._missing_since: float | None = None  # an oversized message's record is here, its bytes are not

    def view(self) -> RecordView | HeldRecord | None:
        """The next message in place, if it lies in the ring: ``with view as record:`` and use ``record.payload``.

        Its space is kept until the block ends, then using the memoryview raises ValueError. None if there is no
        message yet. While a view is open, nothing else can be read.
        """
        if self._failure is None and not self.reader.detached:
            view = self.reader.view()
            if view is not None:
                return view
        messages = self.poll(1)
        return HeldRecord(messages[0]) if messages else None

    def control_frames(self) -> list[Frame]:
        """Read the link: its frames in order, without the channels' own, which are kept for `poll`."""
        frames = []
        for frame in self.link.receive():
            if frame.kind in _FDS:
                self.feed(frame)
            else:
                frames.append(frame)
        return frames

    def feed(self, frame: Frame) -> None:
        """Take a frame of the channels' own kinds that the owner read from the link; `LinkError` if it is none."""
        if len(frame.fds) != _FDS.get(frame.kind, -1):
            for fd in frame.fds:
                os.close(fd)
            raise LinkError(f"a frame of kind {frame.kind} with {len(frame.fds)} descriptors is no frame of a channel")
        if frame.kind == SPILL_FRAME:
            if frame.id != self._spilled_count:
                raise LinkError(f"spilled record {frame.id} has come, expected {self._spilled_count}")
            before = len(self._spilled)
            self._spilled.extend(unpack_records(frame.payload))
            self._spilled_count += len(self._spilled) - before
        elif frame.kind == NOTICE_FRAME:
            self._spilled.append(unpack_notice(frame.payload))
        else:
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
    def closed(self) -> bool:
        """The writer has said that nothing will follow, and everything before was delivered."""
        return self._closed or self.reader.closed

    @property
    def finished(self) -> bool:
        """Nothing will ever come any more.

        The writer closed the ring, or it is dead and everything up to its last committed record was delivered; an
        oversized message whose bytes it did not get out, records that it was still spilling, and what is behind
        them, are lost with it.
        """
        reader = self.reader
        return self.closed or (self.dead and (reader.blocked or reader.position == reader.head))

    def stall(self, board: Board | None = None) -> StallReport | None:
        """What we wait for the writer to send over the link; None if nothing. The board tells what it is doing."""
        reader = self.reader
        if self._missing_since is None:
            return None
        from .statistics import StallReport, progress_of

        phase, progress = progress_of(board, reader.writer_bell_slot)
        return StallReport(
            side="reader",
            reason="the bytes of an oversized message have not come over the link",
            epoch=reader.epoch,
            slot=reader.slot,
            bell_slot=reader.writer_bell_slot,
            lag_bytes=reader.head - reader.position,
            lag_records=len(self._spilled),
            age_s=time.monotonic() - self._missing_since,
            phase=phase,
            progress=progress,
        )

    def close(self) -> None:
        """Close the descriptors of oversized messages that were never taken. The link stays its owner's."""
        for frame in self._overflows.values():
            for fd in frame.fds:
                os.close(fd)
        self._overflows.clear()

    def _go_on(self, messages: list[Message], limit: int) -> None:
        """After a look at the ring that ended at an unusual record, or found us detached: up to ``limit`` messages."""
        try:
            while self._settle(messages, limit) and len(messages) < limit:
                if self.reader.detached:
                    continue
                more = self.reader.poll(limit - len(messages))
                messages += more
                if not more and not self.reader.detached:
                    return
        except ChannelError as error:
            if not messages:
                raise
            self._failure = error
        finally:
            if self.reader.detached:
                self.reader.blocked = not self._has_spilled()

    def _settle(self, messages: list[Message], limit: int) -> bool:
        """Deal with what stopped the last step; whether another may bring more."""
        if messages and messages[-1].kind != _native.DATA:
            last = messages.pop()
            if last.kind == _native.CLOSE:
                return False
            if not self._take_overflow(last, messages):
                return self.reader.detached
        if self.reader.detached:
            return self._take_spilled(messages, limit)
        return True

    def _take_overflow(self, record: Message, messages: list[Message]) -> bool:
        """An OVERFLOW record is the next in the ring: deliver it; False if its bytes are not here, or not yet ours."""
        payload = self._payload_of(record)
        self.reader.blocked = payload is None
        if payload is None or not self.reader.step():
            return False
        self._forget(record)
        messages.append(Message((record.type, payload, _native.DATA, record.seq)))
        return True

    def _take_spilled(self, messages: list[Message], limit: int) -> bool:
        """Deliver from the link; True if we went on into the ring."""
        spilled = self._spilled
        records = size_bytes = 0
        attached = False
        try:
            while spilled and len(messages) < limit and not attached:
                item = spilled[0]
                if not isinstance(item, Message):
                    self.reader.attach(*item)
                    attached = True
                elif item.kind == _native.DATA:
                    messages.append(item)
                elif item.kind == _native.CLOSE:
                    self._closed = True
                else:
                    payload = self._payload_of(item)
                    if payload is None:
                        break
                    self._forget(item)
                    messages.append(Message((item.type, payload, _native.DATA, item.seq)))
                spilled.popleft()
                if isinstance(item, Message):
                    records += 1
                    size_bytes += weight(item.kind, item.payload)
        finally:
            if records:
                self.reader.took(records, size_bytes)
        return attached

    def _has_spilled(self) -> bool:
        """Whether the next message from the link is complete."""
        if not self._spilled:
            return False
        item = self._spilled[0]
        return (
            not isinstance(item, Message)
            or item.kind != _native.OVERFLOW
            or unpack_record(item.payload)[0] in self._overflows
        )

    def _payload_of(self, record: Message) -> bytes | memoryview | None:
        """The bytes that an OVERFLOW record stands for; None if they have not come."""
        number, size_bytes = unpack_record(record.payload)
        frame = self._overflows.get(number)
        if frame is None:
            if self._missing_since is None:
                self._missing_since = time.monotonic()
            return None
        self._missing_since = None
        if frame.fds:
            return _native.map_sealed(frame.fds[0], size_bytes)
        if len(frame.payload) != size_bytes:
            raise RingCorrupt(f"an oversized message of {size_bytes} bytes came as {len(frame.payload)}")
        return frame.payload

    def _forget(self, record: Message) -> None:
        frame = self._overflows.pop(unpack_record(record.payload)[0])
        for fd in frame.fds:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_overflows"):
            self.close()
