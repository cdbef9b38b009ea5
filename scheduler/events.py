"""What the prefix cache did last, for whoever wants to look: a bounded log. Written by `PrefixCache`."""

from __future__ import annotations

from array import array
from collections import deque

from .messages import KVCacheEvent, KVCacheEvents


class KVEventLog:
    """Keeps the last ``size`` events; 0 keeps none and costs nothing."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._events: deque[KVCacheEvent] = deque(maxlen=size)
        self._num_events = 0

    def stored(self, block_id: int, block_hash: bytes, parent_hash: bytes | None, content: bytes) -> None:
        if self._size:
            tokens = array("i", content).tolist()
            self._add(KVCacheEvent("stored", block_id, block_hash, parent_hash, tokens))

    def removed(self, block_id: int, block_hash: bytes) -> None:
        if self._size:
            self._add(KVCacheEvent("removed", block_id, block_hash))

    def cleared(self) -> None:
        if self._size:
            self._add(KVCacheEvent("cleared"))

    def since(self, first: int) -> KVCacheEvents:
        """The events from number ``first`` on that are still kept. O(kept events)."""
        oldest = self._num_events - len(self._events)
        start = min(max(first, oldest), self._num_events)
        return KVCacheEvents(start, list(self._events)[start - oldest :])

    def _add(self, event: KVCacheEvent) -> None:
        self._events.append(event)
        self._num_events += 1
