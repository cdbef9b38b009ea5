"""The ids of the KV blocks and who owns each. Used by `KVManager` alone; it knows no tokens and no requests.

A block is free, owned, or retiring: given back while a step that may write it is still in flight. A retiring
block is free when that step has been acknowledged, so nobody reads another request's late write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from .errors import AccountError

_FREE = -1
_RETIRING = -2


class BlockPool:
    """Block ids 0 to ``num_blocks - 1``. Owners are numbers >= 0.

    Every block has exactly one owner or none, and free + used + retiring = total; each call checks the blocks
    it touches and the sum, at O(1) a block, and raises `AccountError` on the first violation.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the block given back last is warm
        self._owner = [_FREE] * num_blocks
        self._retiring: deque[tuple[int, Sequence[int]]] = deque()  # (step, blocks), steps ascending
        self._num_used = 0
        self._num_retiring = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self._num_used

    @property
    def num_retiring(self) -> int:
        return self._num_retiring

    def allocate(self, count: int, owner: int) -> list[int] | None:
        """``count`` blocks for ``owner``, or None (and no change) when fewer are free."""
        if count > len(self._free):
            return None
        block_ids = [self._free.pop() for _ in range(count)]
        for block_id in block_ids:
            if self._owner[block_id] != _FREE:
                raise AccountError(f"block {block_id} is on the free list, but {self._describe(block_id)}")
            self._owner[block_id] = owner
        self._num_used += count
        self._check_sum()
        return block_ids

    def free(self, block_ids: Sequence[int], owner: int, in_flight_step: int | None) -> None:
        """Take back blocks of ``owner``, the last one to be reused first.

        With ``in_flight_step`` they retire until that step is acknowledged. `AccountError` when a block is
        not the owner's, for instance because it is freed twice; nothing is taken back then.
        """
        for position, block_id in enumerate(block_ids):
            if self._owner[block_id] != owner:
                for undo in block_ids[:position]:
                    self._owner[undo] = owner
                raise AccountError(f"block {block_id} is freed by {owner}, but {self._describe(block_id)}")
            self._owner[block_id] = _FREE if in_flight_step is None else _RETIRING
        self._num_used -= len(block_ids)
        if in_flight_step is None:
            self._free.extend(block_ids)
        elif block_ids:
            self._retiring.append((in_flight_step, tuple(block_ids)))
            self._num_retiring += len(block_ids)
        self._check_sum()

    def acknowledge(self, step: int) -> None:
        """Step ``step`` and all before it are over: what retired up to there is free."""
        while self._retiring and self._retiring[0][0] <= step:
            _, block_ids = self._retiring.popleft()
            for block_id in block_ids:
                self._owner[block_id] = _FREE
            self._free.extend(block_ids)
            self._num_retiring -= len(block_ids)
        self._check_sum()

    def check(self, owned: Mapping[int, Sequence[int]]) -> None:
        """Compare the whole account with the owners' own lists, at O(blocks): for tests and debugging."""
        claims = {block_id: owner for owner, block_ids in owned.items() for block_id in block_ids}
        if len(claims) != self._num_used or sum(map(len, owned.values())) != self._num_used:
            raise AccountError(f"{self._num_used} blocks are used, but the owners hold {len(claims)}")
        for block_id, owner in claims.items():
            if self._owner[block_id] != owner:
                raise AccountError(f"block {block_id} is held by {owner}, but {self._describe(block_id)}")
        if len(set(self._free)) != len(self._free) or any(self._owner[b] != _FREE for b in self._free):
            raise AccountError("the free list holds a block twice, or an owned one")

    def _check_sum(self) -> None:
        if len(self._free) + self._num_used + self._num_retiring != self.num_blocks:
            raise AccountError(
                f"{len(self._free)} free + {self._num_used} used + {self._num_retiring} retiring blocks "
                f"are not {self.num_blocks}"
            )

    def _describe(self, block_id: int) -> str:
        owner = self._owner[block_id]
        return {_FREE: "it is free", _RETIRING: "it is retiring"}.get(owner, f"its owner is {owner}")
