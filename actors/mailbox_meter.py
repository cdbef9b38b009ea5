"""What one mailbox counts: depth, ages, times. Fed by its cell; read by `System.statistics`."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cell import Incoming
    from .statistics import MailboxStatistics

BUCKETS = 48  # of a histogram: bucket b counts times below 2**b microseconds, and at or above half of that


class MailboxMeter:
    """See the module."""

    def __init__(self) -> None:
        self.peak_depth = 0
        self.handled = 0
        self.failed = 0
        self.expired = 0
        self.taken_at = 0.0  # when a message left the mailbox last
        self.queue_time_s = 0.0
        self.handling_time_s = 0.0
        self._queue_histogram = [0] * BUCKETS
        self._handling_histogram = [0] * BUCKETS

    def took(self, now: float, waited_s: float) -> None:
        """A message left the mailbox."""
        self.taken_at = now
        self.queue_time_s += waited_s
        self._queue_histogram[int(waited_s * 1e6).bit_length()] += 1

    def handled_since(self, began_at: float) -> None:
        """A handler ended."""
        spent_s = time.monotonic() - began_at
        self.handled += 1
        self.handling_time_s += spent_s
        self._handling_histogram[int(spent_s * 1e6).bit_length()] += 1

    def handled_at_once(self, began_at: float) -> None:
        """A message came, was taken at that moment, and its handler has ended."""
        spent_s = time.monotonic() - began_at
        self.taken_at = began_at
        self.peak_depth = self.peak_depth or 1
        self.handled += 1
        self.handling_time_s += spent_s
        self._queue_histogram[0] += 1
        self._handling_histogram[int(spent_s * 1e6).bit_length()] += 1

    def statistics(self, queue: deque[Incoming]) -> MailboxStatistics:
        """The figures of this moment."""
        from .statistics import MailboxStatistics

        return MailboxStatistics(
            depth=len(queue),
            peak_depth=self.peak_depth,
            oldest_age_s=time.monotonic() - queue[0].arrived_at if queue else 0.0,
            handled=self.handled,
            failed=self.failed,
            expired=self.expired,
            queue_time_s=self.queue_time_s,
            handling_time_s=self.handling_time_s,
            queue_time_histogram=list(self._queue_histogram),
            handling_time_histogram=list(self._handling_histogram),
        )
