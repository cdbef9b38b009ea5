"""Settings are checked once, and the sizes that follow from them fit model and memory or are refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from ringcast.channels.codec import Codec
from ringcast.scheduler.config import SchedulerConfig, resolve
from ringcast.scheduler.errors import ConfigError
from ringcast.scheduler.messages import KVCacheConfig, KVCacheSpec

MIB = 1 << 20


def spec(available_bytes: int = 1000 * MIB, max_model_len: int = 2048) -> KVCacheSpec:
    return KVCacheSpec(bytes_per_block=MIB, available_bytes=available_bytes, max_model_len=max_model_len, vocab_size=97)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("max_num_batched_tokens", 0),
        ("max_num_batched_tokens", 1.5),
        ("max_num_batched_tokens", None),
        ("max_model_len", 1),
        ("block_size", 0),
        ("num_kv_blocks", -3),
        ("num_kv_blocks", "10"),
        ("max_num_seqs", 10**12),
        ("max_num_batched_tokens", 10**12),
        ("max_model_len", 10**12),
        ("block_size", 10**9),
        ("num_kv_blocks", 10**30),
        ("kv_event_log_size", -1),
    ],
)
def test_bad_setting_is_named_with_value_and_remedy(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        SchedulerConfig(**{field: value})
    least = {"max_model_len": 2, "kv_event_log_size": 0}.get(field, 1)
    assert str(error.value).startswith(f"{field}={value!r}: give a whole number from {least} to ")
    assert isinstance(error.value, ValueError)


def test_settings_travel() -> None:
    config = SchedulerConfig(max_num_seqs=3, num_kv_blocks=10)
    assert Codec().decode(Codec().encode(config)) == config


def test_blocks_follow_from_memory() -> None:
    assert resolve(SchedulerConfig(), spec()) == KVCacheConfig(1000, 16, 64, 512, 2048)


def test_blocks_are_capped_at_what_the_limits_can_use() -> None:
    sizes = resolve(SchedulerConfig(max_num_seqs=2, max_model_len=100), spec())
    assert sizes == KVCacheConfig(14, 16, 2, 512, 100)


def test_memory_for_less_than_one_request_is_refused_with_sizes_and_remedy() -> None:
    assert resolve(SchedulerConfig(), spec(128 * MIB)).num_blocks == 128
    with pytest.raises(ConfigError) as error:
        resolve(SchedulerConfig(), spec(127 * MIB))
    assert str(error.value) == (
        "max_model_len=2048 needs 128 KV blocks of 16 tokens, but there is 127.0 MiB for the KV cache at 1.0 MiB a "
        "block, enough for 127: free memory, or set max_model_len to 2032 or less"
    )
    assert resolve(SchedulerConfig(max_model_len=2032), spec(127 * MIB)).num_blocks == 127


def test_no_memory_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is 1000 bytes for the KV cache .* use a smaller model"):
        resolve(SchedulerConfig(), spec(1000))


def test_more_blocks_than_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_kv_blocks=2000 needs 2.0 GiB, but there is 1000.0 MiB"):
        resolve(SchedulerConfig(num_kv_blocks=2000), spec())


def test_explicit_small_pool_lowers_the_longest_request() -> None:
    assert resolve(SchedulerConfig(num_kv_blocks=10), spec()) == KVCacheConfig(10, 16, 64, 512, 161)


def test_longer_than_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len=4096 is more than the model's context of 2048"):
        resolve(SchedulerConfig(max_model_len=4096), spec())
