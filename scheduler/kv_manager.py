"""Which KV blocks a request holds, and which of them it found ready. The scheduler's only door to pool and cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .block_pool import BlockPool
from .config import blocks_for
from .events import KVEventLog
from .prefix_cache import PrefixCache, sha256
from .request import NEVER, Request


class KVManager:
    """Gives requests blocks for their tokens and takes them back. O(1) per block that changes hands.

    With ``caching`` full blocks stay findable until they are reused for something else: least recently used first,
    and of one sequence the last block first, so that what is left of it is a prefix. A block counts as findable once
    the step that writes it is planned: a worker runs steps in order.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        caching: bool = True,
        events: KVEventLog | None = None,
        hash_function: Callable[[bytes], bytes] = sha256,
    ) -> None:
        self.block_size = block_size
        self.num_evicted_blocks = 0
        self.events = events or KVEventLog(0)
        self._caching = caching
        self._cache = PrefixCache(block_size, self.events, hash_function)
        self._pool = BlockPool(num_blocks, self._cache.holds, self._evict)
        self._acknowledged_step = 0
        self._latest_step = 0
        self._refused = (-1, -1)  # the request that did not fit last, and how many blocks had been freed by then

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        return len(self._cache)

    def enter(self, request: Request, look_up: bool) -> bool:
        """Let a request in if blocks for all its present tokens are there; False, and no change, if not.

        It holds then what the cache had of it, and that counts as computed: whole blocks, never its last token, since
        that token's logits are wanted. O(tokens), but O(1) when nothing was freed since it was refused.
        """
        attempt = (request.arrival, self._pool.num_freed)
        if attempt == self._refused:
            return False
        found = []
        if look_up and self._caching:
            max_blocks = (request.num_tokens - 1) // self.block_size
            found = self._cache.find(request.chain, request.all_token_ids, max_blocks)
        missing = blocks_for(request.num_tokens, self.block_size) - len(found)
        if missing > self._pool.num_free - sum(self._pool.is_free(entry.block_id) for entry in found):
            self._refused = attempt
            return False
        for entry in found:
            self._pool.share(entry.block_id)
        self._cache.adopt(request.chain, found)
        request.block_ids = [entry.block_id for entry in found]
        request.num_computed_tokens = request.capacity = len(found) * self.block_size
        request.next_record_at = request.capacity + self.block_size if self._caching else NEVER
        return True

    def allocate(self, request: Request, num_tokens: int) -> list[int] | None:
        """Blocks so that ``num_tokens`` more tokens of ``request`` can be computed.

        The new ids, appended to ``request.block_ids`` already (an empty list when its last block has room),
        or None and no change when too few are free.
        """
        missing = blocks_for(request.num_computed_tokens + num_tokens, self.block_size) - len(request.block_ids)
        if not missing:
            return []
        block_ids = self._pool.allocate(missing)
        if block_ids is not None:
            request.block_ids += block_ids
            request.capacity += missing * self.block_size
        return block_ids

    def take_back(self, request: Request, block_ids: list[int]) -> None:
        """Undo the request's latest `allocate`, whose blocks were in no plan."""
        if block_ids:
            del request.block_ids[-len(block_ids) :]
            request.capacity -= len(block_ids) * self.block_size
            self._pool.release(block_ids[::-1], None)

    def record(self, request: Request) -> None:
        """Make its full blocks findable. To be called when a plan reaches ``request.next_record_at``.

        A token that is drawn but not known yet delays its block.
        """
        num_known = min(request.num_computed_tokens, len(request.all_token_ids))
        chain = request.chain
        self._cache.record(chain, request.all_token_ids, request.block_ids[: num_known // self.block_size])
        request.next_record_at = (chain.num_recorded + 1) * self.block_size

    def free(self, request: Request) -> None:
        """Take back every block of ``request``; those that a step in flight may write are reused after it.

        What another request's step in flight only reads, since they shared it, may be reused at once: the worker runs
        steps in order, so the read is over before the next write.
        """
        if request.num_computed_tokens >= request.next_record_at:
            self.record(request)
        is_in_flight = min(request.last_step, self._latest_step) > self._acknowledged_step
        in_flight = self._latest_step if is_in_flight else None
        self._pool.release(request.block_ids[::-1], in_flight)
        request.block_ids = []
        request.chain.restart()

    def begin_step(self, step_id: int) -> None:
        """A plan was made: the blocks of its requests may be written until it is acknowledged."""
        self._latest_step = step_id

    def acknowledge(self, step_id: int) -> None:
        """The worker writes nothing more for this step or an earlier one."""
        self._acknowledged_step = step_id
        self._pool.acknowledge(step_id)

    def reset_cache(self) -> None:
        """Nothing that was computed so far will be found. Requests keep the blocks that they hold."""
        self._cache.clear()

    def lose_all(self, num_blocks: int) -> None:
        """The worker's memory is gone; the next one has so many blocks. Requests must hold none."""
        self._cache.clear()
        self._pool = BlockPool(num_blocks, self._cache.holds, self._evict)
        self._acknowledged_step = self._latest_step
        self._refused = (-1, -1)

    def check(self, requests: Iterable[Request]) -> None:
        """Raise `AccountError` unless these requests hold every used block. O(blocks)."""
        self._pool.check([request.block_ids for request in requests])

    def _evict(self, block_id: int) -> None:
        self._cache.forget(block_id)
        self.num_evicted_blocks += 1
