"""What one mailbox counts: depth, ages, times. Fed by its cell; read by `System.statistics`."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from ._native import BUCKETS as BUCKETS
from ._native import Incoming, MeterCore

if TYPE_CHECKING:
    from .statistics import MailboxStatistics


class MailboxMeter(MeterCore):
    """See the module. The counting is native."""

    __slots__ = ()

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
            queue_time_histogram=self.queue_histogram,
            handling_time_histogram=self.handling_histogram,
        )
