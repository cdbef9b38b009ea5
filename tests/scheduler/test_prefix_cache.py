"""Shared prefixes: found when they are there, never when they are not, and the outputs never tell."""

from __future__ import annotations

import itertools
from array import array

import pytest
from scheduler_fakes import Engine, limits, request, solo

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.errors import AccountError
from ringcast.scheduler.events import KVEventLog
from ringcast.scheduler.messages import AddRequest
from ringcast.scheduler.prefix_cache import Chain, PrefixCache, sha256

LONG = [i * 7 % 97 for i in range(200)]


def cached(engine: Engine, *messages: AddRequest) -> list[int]:
    """Run them one after the other; what each found, as its frontend hears it."""
    found = []
    for message in messages:
        engine.add(message)
        engine.run()
        engine.expect_solo(message)
        found.append(engine.collected.first[message.request_id].num_cached_tokens)
    engine.expect_empty()
    return found


def test_same_prompt_five_times_gives_the_same_answer_and_is_found_from_the_second_on() -> None:
    engine = Engine()
    assert cached(engine, *(request(f"r{i}", LONG, 64) for i in range(5))) == [0, 192, 192, 192, 192]
    assert len({tuple(tokens) for tokens in engine.collected.token_ids.values()}) == 1
    now = engine.scheduler.statistics()
    assert (now.num_looked_up_tokens, now.num_cached_tokens) == (1000, 4 * 192)
    assert now.num_cached_blocks == (200 + 64 - 1) // 16


@pytest.mark.parametrize("order", [list(range(8)), list(range(7, -1, -1)), [3, 0, 7, 1, 6, 2, 5, 4]])
@pytest.mark.parametrize("together", [True, False])
def test_prompts_that_share_most_of_their_prefix_answer_alike_in_any_order(order: list[int], together: bool) -> None:
    messages = [request(f"r{i}", LONG[:90] + [i] * 10, 20) for i in range(8)]
    engine = Engine(limits(max_num_batched_tokens=256))
    if together:
        engine.add(*(messages[i] for i in order))
        engine.run()
        engine.expect_solo(*messages)
        # They came in one step: the first computes the prefix, the others read it in that very step.
        hits = [engine.collected.first[f"r{i}"].num_cached_tokens for i in order]
        assert hits == [0] + [80] * 7
    else:
        assert cached(engine, *(messages[i] for i in order)) == [0] + [80] * 7


def test_prompt_that_branches_off_goes_on_from_cached_blocks() -> None:
    engine = Engine()
    a, b, c = LONG[:64], [1] * 20, [2] * 20
    assert cached(engine, request("ab", a + b), request("ac", a + c), request("abc", a + b + c)) == [0, 64, 80]


@pytest.mark.parametrize("length", [16, 32, 48])
def test_prompt_of_whole_blocks_that_is_all_cached_still_computes_its_last_block(length: int) -> None:
    engine = Engine()
    assert cached(engine, request("a", LONG[:length]), request("b", LONG[:length])) == [0, length - 16]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33])
def test_last_token_is_never_taken_from_the_cache(length: int) -> None:
    engine = Engine(limits(max_num_batched_tokens=16))
    first, second = cached(engine, request("a", LONG[:length], 20), request("b", LONG[:length], 20))
    assert (first, second) == (0, (length - 1) // 16 * 16)


def test_outputs_are_cached_like_prompts() -> None:
    engine = Engine()
    first = request("a", [5] * 10, 60)
    outputs = solo(first, engine.sizes)[0]
    assert cached(engine, first, request("b", [5] * 10 + outputs[:50])) == [0, 48]


def test_requests_of_different_salts_share_nothing() -> None:
    engine = Engine()
    salts = [None, "a", "b", "", "a", None, ""]
    messages = [request(f"r{i}", LONG[:40], salt=salt) for i, salt in enumerate(salts)]
    assert cached(engine, *messages) == [0, 0, 0, 0, 32, 32, 32]


def test_without_caching_nothing_is_found() -> None:
    engine = Engine(config=SchedulerConfig(enable_prefix_caching=False))
    assert cached(engine, request("a", LONG), request("b", LONG)) == [0, 0]
    assert engine.scheduler.statistics().num_cached_blocks == 0


def test_prefix_of_a_running_request_is_shared() -> None:
    engine = Engine()
    a, b = request("a", LONG[:40], 30), request("b", LONG[:40], 30)
    engine.add(a)
    engine.step(3)
    used = engine.scheduler.statistics().num_free_blocks
    engine.add(b)
    engine.step()
    assert engine.scheduler.statistics().num_free_blocks == used - 1
    engine.run()
    engine.expect_solo(a, b)
    engine.expect_empty()


def test_shared_blocks_outlive_the_request_that_wrote_them() -> None:
    engine = Engine(limits(8))
    short, long = request("short", LONG[:40], 2), request("long", LONG[:40], 40)
    engine.add(short)
    engine.step()
    engine.add(long)
    engine.run()
    engine.expect_solo(short, long)


def test_preempted_request_finds_its_own_blocks_again() -> None:
    engine = Engine(limits(10))
    a, b = request("a", [1] * 3, 80), request("b", [2] * 40, 60)
    engine.add(a, b)
    entered = []
    while (plan := engine.scheduler.schedule()) is not None:
        engine.plans.append(plan)
        entered += [new.num_computed_tokens for new in plan.new_rows]
        engine.finish()
    engine.expect_solo(a, b)
    assert engine.scheduler.statistics().num_preemptions == 1
    assert entered == [0, 0, 64]  # of six blocks the first request took the last two


def test_cache_hits_do_not_count_as_free_room() -> None:
    """All cached blocks of the second prompt are free: they are its own room, not somebody else's."""
    engine = Engine(limits(8, max_num_batched_tokens=256))
    first = request("first", LONG[:100], 2)
    engine.add(first)
    engine.run()
    again, other = request("again", LONG[:100], 20), request("other", [3] * 30, 2)
    engine.add(again, other)
    plan = engine.plan()
    assert [len(new.block_ids) for new in plan.new_rows] == [7]
    engine.finish()
    engine.run()
    engine.expect_solo(first, again, other)


def test_least_recently_used_goes_first_and_of_a_sequence_the_end() -> None:
    engine = Engine(limits(8))
    old, new = LONG[:65], [1] * 49
    assert cached(engine, request("old", old, 1), request("new", new, 1)) == [0, 0]
    # Seven of eight blocks are cached: old's four and new's three. A third request takes three.
    assert cached(engine, request("third", [2] * 40, 1)) == [0]
    assert cached(engine, request("old again", old, 1)) == [32]
    assert engine.scheduler.statistics().num_evicted_blocks >= 2


def test_reset_forgets_everything_and_disturbs_nobody() -> None:
    engine = Engine()
    a, b = request("a", LONG[:60], 40), request("b", LONG[:60], 40)
    engine.add(a)
    engine.step(20)
    engine.scheduler.reset_prefix_cache()
    assert engine.scheduler.statistics().num_cached_blocks == 0
    engine.add(b)
    engine.run()
    engine.expect_solo(a, b)
    assert engine.collected.first["b"].num_cached_tokens == 0
    engine.expect_empty()


def test_blocked_request_is_looked_up_again_only_when_blocks_were_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(limits(8))
    big, next_one = request("big", LONG[:100], 20), request("next", [1] * 60, 5)
    engine.add(big, next_one)
    lookups = []
    find = PrefixCache.find

    def counted(cache: PrefixCache, chain: Chain, *args: object) -> object:
        lookups.append(chain)
        return find(cache, chain, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PrefixCache, "find", counted)
    engine.run()
    engine.expect_solo(big, next_one)
    assert len(lookups) == 3  # big; next in vain; next when big has ended


def test_same_tokens_have_the_same_hash_in_every_run() -> None:
    """Written down: whoever stores hashes outside may rely on it."""
    engine = Engine(config=SchedulerConfig(kv_event_log_size=10))
    cached(engine, request("a", list(range(17)), 1), request("b", list(range(17)), 1, salt="x"))
    events = engine.scheduler.kv_cache_events(0)
    assert [event.kind for event in events.events] == ["stored", "stored"]
    assert [event.block_hash.hex()[:16] for event in events.events] == HASHES
    assert events.events[0].token_ids == list(range(16))


HASHES = ["b784ba3fcdebb1f6", "6aecd93cd00d163e"]


def test_events_tell_what_can_be_found() -> None:
    engine = Engine(limits(4), SchedulerConfig(kv_event_log_size=4))
    cached(engine, request("a", LONG[:33], 1))
    first, second = engine.scheduler.kv_cache_events(0).events
    assert (first.kind, first.token_ids, first.parent_hash) == ("stored", LONG[:16], None)
    assert (second.kind, second.token_ids, second.parent_hash) == ("stored", LONG[16:32], first.block_hash)
    cached(engine, request("b", [1] * 49, 1))
    later = engine.scheduler.kv_cache_events(2)
    assert [event.kind for event in later.events] == ["removed", "removed", "stored", "stored", "stored"][-4:]
    assert later.first == 3  # event 2 was dropped: the log holds four
    engine.scheduler.reset_prefix_cache()
    assert [event.kind for event in engine.scheduler.kv_cache_events(7).events] == ["cleared"]
    assert engine.scheduler.kv_cache_events(100).events == []


def test_lost_worker_takes_the_cache_with_it() -> None:
    engine = Engine()
    assert cached(engine, request("a", LONG), request("b", LONG)) == [0, 192]
    engine.lose_worker()
    assert cached(engine, request("c", LONG), request("d", LONG)) == [0, 192]


@pytest.mark.parametrize("hash_of", [lambda data: b"same", lambda data: bytes([sum(data) % 3])])
def test_hashes_that_collide_never_give_a_wrong_block(hash_of: object) -> None:
    """The fake worker reads the blocks: one of another prefix would fail at once."""
    engine = Engine(limits(12, max_num_seqs=4))
    engine.scheduler._kv._cache._hash = hash_of  # type: ignore[assignment]
    prompts = [[a] * 16 + [b] * 16 + [c] * 5 for a, b, c in itertools.product((1, 2), repeat=3)]
    messages = [request(f"r{i}", prompt, 20, salt=str(i % 2) or None) for i, prompt in enumerate(prompts * 3)]
    engine.add(*messages)
    engine.run()
    engine.expect_solo(*messages)
    engine.expect_empty()


def test_child_of_an_evicted_parent_is_not_found_behind_another_of_the_same_hash() -> None:
    x, y, tail = [1] * 4, [2] * 4, [5] * 4
    collide = {array("i", x).tobytes(), array("i", y).tobytes()}
    cache = PrefixCache(4, KVEventLog(0), lambda data: b"x or y" if data[-16:] in collide else sha256(data))
    one, other = Chain(), Chain()
    cache.record(one, x + tail, [0, 1])
    cache.forget(0)
    cache.record(other, y, [2])
    assert cache.find(Chain(), x + tail, 2) == []
    assert [entry.block_id for entry in cache.find(Chain(), y + tail, 2)] == [2]
    assert cache.holds(1)  # it is there still, but nobody can reach it, until it is replaced or reused
    cache.record(other, y + tail, [2, 3])
    assert [entry.block_id for entry in cache.find(Chain(), y + tail, 2)] == [2, 3]
    assert not cache.holds(1)


def test_block_that_still_has_an_entry_is_not_entered_again() -> None:
    cache = PrefixCache(4, KVEventLog(0))
    cache.record(Chain(), [1] * 4, [0])
    with pytest.raises(AccountError, match="block 0 is written, but the prefix cache still has an entry"):
        cache.record(Chain(), [2] * 4, [0])


def test_two_requests_that_compute_the_same_keep_one_entry() -> None:
    """The last block of a prompt of whole blocks is never shared, so both compute it."""
    engine = Engine(limits(8, block_size=4))
    a, b = request("a", LONG[:8], 6), request("b", LONG[:8], 6)
    engine.add(a, b)
    engine.run()
    engine.expect_solo(a, b)
    assert engine.scheduler.statistics().num_cached_blocks == (8 + 6 - 1) // 4


def test_worker_reads_what_another_row_writes_in_the_same_step() -> None:
    """The contract with the worker: all keys and values of a step are written before any row attends."""
    engine = Engine(limits(max_num_batched_tokens=256))
    engine.add(*(request(f"r{i}", LONG[:100], 4, seed=i) for i in range(4)))
    plan = engine.plan()
    assert plan.num_tokens == [100, 4, 4, 4]
    assert [new.num_computed_tokens for new in plan.new_rows] == [0, 96, 96, 96]
    engine.finish()
    engine.run()
