"""Which KV blocks a request holds. The scheduler's only door to the block pool.

A prefix cache goes in behind this boundary: it is the manager's business where a request's blocks come from.
"""

from __future__ import annotations

from collections.abc import Iterable

from .block_pool import BlockPool
from .config import blocks_for
from .request import Request


class KVManager:
    """Gives requests blocks for their tokens and takes them back. O(1) per block that changes hands."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._acknowledged_step = 0
        self._latest_step = 0

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    def fits_now(self, num_computed_tokens: int) -> bool:
        """Whether the free blocks could hold the keys and values of so many tokens."""
        return blocks_for(num_computed_tokens, self.block_size) <= self._pool.num_free

    def allocate(self, request: Request, num_tokens: int) -> list[int] | None:
        """Blocks so that ``num_tokens`` more tokens of ``request`` can be computed.

        The new ids, appended to ``request.block_ids`` already (an empty list when its last block has room),
        or None and no change when too few are free.
        """
        wanted = blocks_for(request.num_computed_tokens + num_tokens, self.block_size)
        missing = wanted - len(request.block_ids)
        if not missing:
            return []
        block_ids = self._pool.allocate(missing, request.arrival)
        if block_ids is not None:
            request.block_ids.extend(block_ids)
        return block_ids

    def free(self, request: Request) -> None:
        """Take back every block of ``request``; those that a step in flight may write are reused after it."""
        in_flight = self._latest_step if request.last_step > self._acknowledged_step else None
        self._pool.free(request.block_ids, request.arrival, in_flight)
        request.block_ids.clear()

    def begin_step(self, step_id: int) -> None:
        """A plan was made: the blocks of its requests may be written until it is acknowledged."""
        self._latest_step = step_id

    def acknowledge(self, step_id: int) -> None:
        """The worker writes nothing more for this step or an earlier one."""
        self._acknowledged_step = step_id
        self._pool.acknowledge(step_id)

    def check(self, requests: Iterable[Request]) -> None:
        """Raise `AccountError` unless these requests own every used block, once each. O(blocks)."""
        self._pool.check({request.arrival: request.block_ids for request in requests})
