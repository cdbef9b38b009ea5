"""The block pool's account: nothing lost, nothing given twice, reused in the right order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.scheduler.block_pool import BlockPool
from ringcast.scheduler.errors import AccountError
from ringcast.scheduler.free_list import FreeList


class Kept:
    """A pool, the blocks that count as kept, and those that were kept and reused."""

    def __init__(self, num_blocks: int) -> None:
        self.kept: set[int] = set()
        self.reused: list[int] = []
        self.pool = BlockPool(num_blocks, self.kept.__contains__, self._reuse)

    def _reuse(self, block_id: int) -> None:
        self.kept.remove(block_id)
        self.reused.append(block_id)


def pool_of(num_blocks: int) -> BlockPool:
    return Kept(num_blocks).pool


def test_allocation_is_all_or_nothing() -> None:
    pool = pool_of(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) is None
    assert (pool.num_free, pool.num_used) == (1, 3)
    assert pool.allocate(1) == [3]
    assert pool.allocate(0) == []


def test_block_freed_last_is_reused_first() -> None:
    pool = pool_of(4)
    pool.allocate(4)
    pool.release([2, 0], None)
    assert pool.allocate(2) == [0, 2]


def test_kept_blocks_are_reused_after_all_others_and_oldest_first() -> None:
    kept = Kept(5)
    pool = kept.pool
    pool.allocate(5)
    kept.kept |= {0, 1, 3}
    pool.release([3, 1], None)
    pool.release([0, 4], None)
    pool.release([2], None)
    assert pool.allocate(2) == [2, 4]
    assert kept.reused == []
    assert pool.allocate(3) == [3, 1, 0]
    assert kept.reused == [3, 1, 0]


def test_shared_block_is_free_when_its_last_owner_lets_go() -> None:
    pool = pool_of(2)
    pool.allocate(1)
    pool.share(0)
    pool.release([0], None)
    assert (pool.num_free, pool.num_used) == (1, 1)
    pool.check([[0]])
    pool.release([0], None)
    assert (pool.num_free, pool.num_used) == (2, 0)


def test_free_block_that_is_shared_again_is_not_given_to_anybody_else() -> None:
    pool = pool_of(3)
    pool.share(1)
    assert pool.allocate(3) is None
    assert pool.allocate(2) == [0, 2]
    pool.check([[1], [0, 2]])


def test_double_release_raises_and_changes_nothing() -> None:
    pool = pool_of(4)
    pool.allocate(3)
    pool.release([2], None)
    with pytest.raises(AccountError, match="block 2 is released, but it is free"):
        pool.release([0, 1, 2], None)
    assert (pool.num_free, pool.num_used) == (2, 2)
    pool.release([0, 1], None)
    assert pool.num_free == 4


def test_block_named_twice_in_one_release_raises() -> None:
    pool = pool_of(2)
    pool.allocate(2)
    with pytest.raises(AccountError):
        pool.release([0, 0], None)
    pool.check([[0, 1]])


def test_block_of_a_step_in_flight_is_not_reused_before_its_acknowledgement() -> None:
    pool = pool_of(2)
    pool.allocate(2)
    pool.release([0], 7)
    pool.release([1], 8)
    assert pool.allocate(1) is None
    with pytest.raises(AccountError, match="it is retiring"):
        pool.release([0], None)
    pool.acknowledge(6)
    assert (pool.num_free, pool.num_retiring) == (0, 2)
    pool.acknowledge(7)
    assert pool.allocate(1) == [0]
    pool.acknowledge(9)
    assert (pool.num_free, pool.num_retiring, pool.num_used) == (1, 0, 1)


def test_retiring_block_that_is_shared_stays_used_when_its_step_is_over() -> None:
    pool = pool_of(2)
    pool.allocate(1)
    pool.release([0], 7)
    pool.share(0)
    pool.acknowledge(7)
    assert (pool.num_free, pool.num_used, pool.num_retiring) == (1, 1, 0)
    pool.release([0], 8)
    pool.share(0)
    pool.release([0], 9)
    pool.acknowledge(8)
    assert (pool.num_free, pool.num_retiring) == (1, 1)
    pool.acknowledge(9)
    assert (pool.num_free, pool.num_retiring) == (2, 0)


def test_negative_count_is_caught() -> None:
    with pytest.raises(AccountError):
        pool_of(2).allocate(-1)


def test_number_of_freed_blocks_stands_still_while_none_is_freed() -> None:
    pool = pool_of(3)
    pool.allocate(3)
    pool.release([0], 5)
    assert pool.num_freed == 0
    pool.acknowledge(5)
    assert pool.num_freed == 1
    pool.allocate(1)
    assert pool.num_freed == 1


@pytest.mark.parametrize("wrong", ["put_first", "put_last"])
def test_free_list_takes_no_block_twice(wrong: str) -> None:
    blocks = FreeList(3)
    with pytest.raises(AccountError, match="block 1 is put on the free list, but it is there"):
        getattr(blocks, wrong)(1)
    blocks.remove(1)
    with pytest.raises(AccountError, match="block 1 is taken from the free list, but it is not there"):
        blocks.remove(1)


def test_empty_free_list_gives_nothing() -> None:
    blocks = FreeList(1)
    assert blocks.take() == 0
    with pytest.raises(AccountError):
        blocks.take()


@given(st.lists(st.tuples(st.sampled_from(["take", "first", "last", "remove"]), st.integers(0, 5)), max_size=60))
def test_free_list_is_in_the_order_of_a_plain_list(actions: list[tuple[str, int]]) -> None:
    blocks, model = FreeList(6), list(range(6))
    for action, block_id in actions:
        if action == "take" and model:
            assert blocks.take() == model.pop(0)
        elif action == "remove" and block_id in model:
            blocks.remove(block_id)
            model.remove(block_id)
        elif action == "first" and block_id not in model:
            blocks.put_first(block_id)
            model.insert(0, block_id)
        elif action == "last" and block_id not in model:
            blocks.put_last(block_id)
            model.append(block_id)
        assert blocks.ids() == model and len(blocks) == len(model)
        assert [b in blocks for b in range(6)] == [b in model for b in range(6)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), st.booleans()), max_size=60))
def test_account_matches_a_model_of_lists(actions: list[tuple[int, int, bool]]) -> None:
    pool = pool_of(12)
    owned: dict[int, list[int]] = {owner: [] for owner in range(4)}
    retiring: set[int] = set()
    for step, (owner, action, later) in enumerate(actions, start=1):
        others = [block_id for blocks in owned.values() for block_id in blocks]
        if action == 0:
            pool.release(owned[owner], step if later else None)
            mine, owned[owner] = owned[owner], []
            left = {block_id for blocks in owned.values() for block_id in blocks}
            retiring |= {block_id for block_id in mine if block_id not in left} if later else set()
        elif action == 6:
            pool.acknowledge(step)
            retiring = set()
        elif action == 7:
            shared = next((b for b in [*others, *sorted(retiring)] if b not in owned[owner]), None)
            if shared is not None:
                pool.share(shared)
                owned[owner].append(shared)
                retiring.discard(shared)
        else:
            block_ids = pool.allocate(action)
            free = 12 - len(set(others)) - len(retiring)
            assert (block_ids is None) == (action > free)
            owned[owner] += block_ids or []
        pool.check(owned.values())
        assert pool.num_retiring == len(retiring)
