"""Records that are read or built in place where there is no place in a ring: the same manners, on memory of our own.

Made by outbox and inbox when a reader's records travel over its link; `_native.Reservation` and `RecordView` are the
usual kind.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from ._native import Message, Reservation


class PlacedRecord:
    """A reservation for readers of which some are detached: built once, published in the ring and on their links."""

    def __init__(self, inner: Reservation | None, size: int, push: Callable[[bytes], None]) -> None:
        self._inner = inner
        self._push = push
        self._open = True
        self.payload = memoryview(bytearray(size)) if inner is None else inner.payload

    def commit(self, size: int | None = None) -> None:
        """Send the record, or only its first bytes."""
        if not self._open:
            raise ValueError("the reservation was committed or cancelled before")
        if size is not None and not 0 <= size <= self.payload.nbytes:
            raise ValueError(f"size is {size}: it must be between 0 and {self.payload.nbytes}")
        data = bytes(self.payload[:size])
        if self._inner is not None:
            self._inner.commit(size)
        self._open = False
        self.payload.release()
        self._push(data)

    def cancel(self) -> None:
        """Send nothing. Again is allowed."""
        if self._open:
            if self._inner is not None:
                self._inner.cancel()
            self._open = False
            self.payload.release()

    def __enter__(self) -> memoryview:
        return self.payload

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            if kind is None:
                self.commit()
            else:
                self.cancel()


class HeldRecord:
    """The view of a message that is in memory of this process already: oversized, or come over the link."""

    def __init__(self, message: Message) -> None:
        self.type = message.type
        self.seq = message.seq
        self.payload = memoryview(message.payload)

    def release(self) -> None:
        """End the view. Again is allowed."""
        self.payload.release()

    def __enter__(self) -> HeldRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
