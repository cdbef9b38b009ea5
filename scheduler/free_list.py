"""Block ids in the order of their reuse. Used by `BlockPool` alone; knows no owners and no contents."""

from __future__ import annotations

from .errors import AccountError

_ABSENT = -1


class FreeList:
    """A doubly linked list inside two arrays: every operation is O(1) and makes no object.

    It starts with the ids 0 to ``num_blocks - 1``, in order. An id is in it once or not at all; whatever would break
    that raises `AccountError`.
    """

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks  # the id of a sentinel between last and first
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self._length = num_blocks

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block_id: int) -> bool:
        return self._next[block_id] != _ABSENT

    def ids(self) -> list[int]:
        """All ids, the next to be taken first. O(blocks): for tests and checks."""
        ids: list[int] = []
        block_id = self._next[self._end]
        while block_id != self._end and len(ids) <= self._length:
            ids.append(block_id)
            block_id = self._next[block_id]
        return ids

    def take(self) -> int:
        """Remove and return the first."""
        block_id = self._next[self._end]
        self.remove(block_id)
        return block_id

    def put_first(self, block_id: int) -> None:
        """It is taken before all others."""
        self._link(self._end, block_id, self._next[self._end])

    def put_last(self, block_id: int) -> None:
        """It is taken after all others."""
        self._link(self._previous[self._end], block_id, self._end)

    def remove(self, block_id: int) -> None:
        """Take it out, wherever it is."""
        after = self._next[block_id]
        if after == _ABSENT or block_id == self._end:
            raise AccountError(f"block {block_id} is taken from the free list, but it is not there")
        before = self._previous[block_id]
        self._next[before] = after
        self._previous[after] = before
        self._next[block_id] = _ABSENT
        self._length -= 1

    def _link(self, before: int, block_id: int, after: int) -> None:
        if self._next[block_id] != _ABSENT:
            raise AccountError(f"block {block_id} is put on the free list, but it is there")
        self._next[before] = self._previous[after] = block_id
        self._previous[block_id] = before
        self._next[block_id] = after
        self._length += 1
