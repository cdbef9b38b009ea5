"""The ids of the KV blocks and how many requests hold each. Used by `KVManager` alone; knows no tokens, no requests.

A block is free, used, or retiring: given back while a step that may write it is still in flight. A retiring block is
free when that step has been acknowledged, so nobody reads another request's late write.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from .errors import AccountError
from .free_list import FreeList


class BlockPool:
    """Block ids 0 to ``num_blocks - 1``.

    When a block becomes free, ``is_kept`` tells whether its contents are worth keeping. Such a block is reused after
    all that are free then, and ``on_reuse`` is told so; the others are reused at once, the one given back last first,
    since it is warm.

    free + used + retiring = total, and no block is given back more often than it was given out: each call checks the
    blocks it touches and the sum, at O(1) a block, and raises `AccountError` on the first violation.
    """

    def __init__(self, num_blocks: int, is_kept: Callable[[int], bool], on_reuse: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self.num_freed = 0  # how many blocks have become free since the start; while it stands still, none has
        self._is_kept = is_kept
        self._on_reuse = on_reuse
        self._free = FreeList(num_blocks)
        self._num_owners = [0] * num_blocks
        self._retires_after = [0] * num_blocks  # the step; 0 for a block that is not retiring
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

    def is_free(self, block_id: int) -> bool:
        return block_id in self._free

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks with one owner, or None (and no change) when fewer are free."""
        if count > len(self._free):
            return None
        block_ids = [self._free.take() for _ in range(count)]
        for block_id in block_ids:
            if self._num_owners[block_id]:
                raise AccountError(f"block {block_id} is on the free list, but {self._describe(block_id)}")
            self._num_owners[block_id] = 1
            if self._is_kept(block_id):
                self._on_reuse(block_id)
        self._num_used += count
        self._check_sum()
        return block_ids

    def share(self, block_id: int) -> None:
        """One owner more for a block that is used, retiring or free."""
        if self._num_owners[block_id] == 0:
            if self._retires_after[block_id]:
                self._retires_after[block_id] = 0
                self._num_retiring -= 1
            else:
                self._free.remove(block_id)
            self._num_used += 1
        self._num_owners[block_id] += 1
        self._check_sum()

    def release(self, block_ids: Sequence[int], in_flight_step: int | None) -> None:
        """One owner fewer for each; those without one are free, of kept ones the first to be reused first.

        With ``in_flight_step`` they retire until that step is acknowledged. `AccountError` when a block has no owner,
        for instance because it is released twice; nothing is taken back then.
        """
        let_go = []
        for position, block_id in enumerate(block_ids):
            if self._num_owners[block_id] < 1:
                for undo in block_ids[:position]:
                    self._num_owners[undo] += 1
                raise AccountError(f"block {block_id} is released, but {self._describe(block_id)}")
            self._num_owners[block_id] -= 1
            if not self._num_owners[block_id]:
                let_go.append(block_id)
        self._num_used -= len(let_go)
        if in_flight_step is None:
            self._set_free(let_go)
        elif let_go:
            for block_id in let_go:
                self._retires_after[block_id] = in_flight_step
            self._retiring.append((in_flight_step, let_go))
            self._num_retiring += len(let_go)
        self._check_sum()

    def acknowledge(self, step: int) -> None:
        """Step ``step`` and all before it are over: what retired up to there is free."""
        while self._retiring and self._retiring[0][0] <= step:
            retired_after, block_ids = self._retiring.popleft()
            # Some may have been shared meanwhile, and may even retire again, after a later step.
            free_now = [block_id for block_id in block_ids if self._retires_after[block_id] == retired_after]
            for block_id in free_now:
                self._retires_after[block_id] = 0
            self._num_retiring -= len(free_now)
            self._set_free(free_now)
        self._check_sum()

    def check(self, claims: Iterable[Sequence[int]]) -> None:
        """Compare the whole account with the owners' own lists, at O(blocks): for tests and debugging."""
        owners = Counter(block_id for block_ids in claims for block_id in block_ids)
        for block_id, num_owners in enumerate(self._num_owners):
            if owners[block_id] != num_owners:
                raise AccountError(f"block {block_id} is held by {owners[block_id]}, but {self._describe(block_id)}")
        if len(owners) != self._num_used:
            raise AccountError(f"{self._num_used} blocks are used, but the owners hold {len(owners)}")
        free = self._free.ids()
        if len(set(free)) != len(free) or len(free) != len(self._free):
            raise AccountError("the free list holds a block twice, or has lost one")
        for block_id in free:
            if self._num_owners[block_id] or self._retires_after[block_id]:
                raise AccountError(f"block {block_id} is on the free list, but {self._describe(block_id)}")

    def _set_free(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            if self._is_kept(block_id):
                self._free.put_last(block_id)
            else:
                self._free.put_first(block_id)
        self.num_freed += len(block_ids)

    def _check_sum(self) -> None:
        if len(self._free) + self._num_used + self._num_retiring != self.num_blocks:
            raise AccountError(
                f"{len(self._free)} free + {self._num_used} used + {self._num_retiring} retiring blocks "
                f"are not {self.num_blocks}"
            )

    def _describe(self, block_id: int) -> str:
        if self._retires_after[block_id]:
            return "it is retiring"
        owners = self._num_owners[block_id]
        return f"it has {owners} owner{'s' * (owners != 1)}" if owners else "it is free"
