"""The block pool's account: one owner a block, nothing lost, nothing given twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringcast.scheduler.block_pool import BlockPool
from ringcast.scheduler.errors import AccountError


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3, owner=1) == [0, 1, 2]
    assert pool.allocate(2, owner=2) is None
    assert (pool.num_free, pool.num_used) == (1, 3)
    assert pool.allocate(1, owner=2) == [3]
    assert pool.allocate(0, owner=2) == []


def test_block_freed_last_is_reused_first() -> None:
    pool = BlockPool(4)
    pool.allocate(4, owner=1)
    pool.free([2, 0], owner=1, in_flight_step=None)
    assert pool.allocate(2, owner=2) == [0, 2]


def test_double_free_raises_and_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(3, owner=1)
    pool.free([2], owner=1, in_flight_step=None)
    with pytest.raises(AccountError, match="block 2 is freed by 1, but it is free"):
        pool.free([0, 1, 2], owner=1, in_flight_step=None)
    assert (pool.num_free, pool.num_used) == (2, 2)
    pool.free([0, 1], owner=1, in_flight_step=None)
    assert pool.num_free == 4


def test_block_named_twice_in_one_free_raises() -> None:
    pool = BlockPool(2)
    pool.allocate(2, owner=1)
    with pytest.raises(AccountError):
        pool.free([0, 0], owner=1, in_flight_step=None)
    pool.check({1: [0, 1]})


def test_freeing_a_block_of_somebody_else_raises() -> None:
    pool = BlockPool(4)
    pool.allocate(1, owner=1)
    pool.allocate(1, owner=2)
    with pytest.raises(AccountError, match="its owner is 2"):
        pool.free([1], owner=1, in_flight_step=None)


def test_block_of_a_step_in_flight_is_not_reused_before_its_acknowledgement() -> None:
    pool = BlockPool(2)
    pool.allocate(2, owner=1)
    pool.free([0], owner=1, in_flight_step=7)
    pool.free([1], owner=1, in_flight_step=8)
    assert pool.allocate(1, owner=2) is None
    with pytest.raises(AccountError, match="it is retiring"):
        pool.free([0], owner=1, in_flight_step=None)
    pool.acknowledge(6)
    assert (pool.num_free, pool.num_retiring) == (0, 2)
    pool.acknowledge(7)
    assert pool.allocate(1, owner=2) == [0]
    pool.acknowledge(9)
    assert (pool.num_free, pool.num_retiring, pool.num_used) == (1, 0, 1)


def test_negative_count_is_caught() -> None:
    pool = BlockPool(2)
    with pytest.raises(AccountError):
        pool.allocate(-1, owner=1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.booleans()), max_size=60))
def test_account_matches_a_model_of_dictionaries(actions: list[tuple[int, int, bool]]) -> None:
    pool = BlockPool(12)
    owned: dict[int, list[int]] = {owner: [] for owner in range(4)}
    retiring = 0
    for step, (owner, count, later) in enumerate(actions):
        if count == 0:
            pool.free(owned[owner], owner, in_flight_step=step if later else None)
            retiring += len(owned[owner]) if later else 0
            owned[owner] = []
        elif count == 6:
            pool.acknowledge(step)
            retiring = 0
        else:
            block_ids = pool.allocate(count, owner)
            free = 12 - sum(map(len, owned.values())) - retiring
            assert (block_ids is None) == (count > free)
            owned[owner] += block_ids or []
        pool.check(owned)
        assert pool.num_retiring == retiring
