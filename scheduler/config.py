"""The scheduler's settings, and how they become sizes on a machine.

The frontend makes a `SchedulerConfig`; the engine core resolves it once, when it has asked the worker for its
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ringcast.channels.codec import message

from .errors import ConfigError
from .messages import KVCacheConfig, KVCacheSpec

POLICIES = ("fcfs", "priority")
_MAX = 2**31 - 1  # block ids and positions are int32
# The least and the most of each number. Below the most, model and memory decide when the engine starts (`resolve`);
# above it nothing could come of it but an allocation that fails in a library's words.
_RANGES = {
    "max_num_seqs": (1, 2**16),
    "max_num_batched_tokens": (1, 2**20),
    "max_model_len": (2, _MAX),  # one prompt token and one output token
    "block_size": (1, 2**16),
    "num_kv_blocks": (1, _MAX),
    "long_prefill_token_threshold": (1, _MAX),
    "max_plans_in_flight": (1, 2**10),
    "kv_event_log_size": (0, _MAX),  # 0: no log
}
_OPTIONAL = ("max_model_len", "num_kv_blocks", "long_prefill_token_threshold")


@message(49)
@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the user chooses. `ConfigError` (a ValueError) names the field, the value and the remedy."""

    max_num_seqs: int = 64  # requests that run at the same time, one worker row each
    # Tokens that one step computes; longer prompts are chunked. More would not be faster on a CPU, where the products
    # are at their best from 64 rows on, and everybody who waits for a token waits for the whole step.
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None  # tokens of a request, prompt and outputs; None: the model's own limit
    block_size: int = 16  # tokens per KV block
    num_kv_blocks: int | None = None  # None: as many as the worker's memory holds and the limits above can use
    scheduling_policy: str = "fcfs"  # who goes first: who came first, or by "priority" who has the lowest number
    long_prefill_token_threshold: int | None = None  # tokens of one request in one step; None: no cap
    enable_prefix_caching: bool = True  # requests that begin alike share KV blocks
    max_plans_in_flight: int = 1  # 2: the worker has its next plan before its result was looked at
    kv_event_log_size: int = 0  # the last so many events of the prefix cache are kept for whoever asks

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "scheduling_policy":
                is_right, remedy = value in POLICIES, f"use one of {', '.join(POLICIES)}"
            elif field.name == "enable_prefix_caching":
                is_right, remedy = isinstance(value, bool), "use True or False"
            else:
                least, most = _RANGES[field.name]
                is_right = type(value) is int and least <= value <= most
                remedy = f"give a whole number from {least} to {most}"
                if field.name in _OPTIONAL:
                    is_right = is_right or value is None
                    remedy += ", or leave it out"
            if not is_right:
                raise ConfigError(f"{field.name}={value!r}: {remedy}")


def resolve(config: SchedulerConfig, spec: KVCacheSpec) -> KVCacheConfig:
    """The sizes that this model and this machine allow.

    Without ``num_kv_blocks`` the pool takes what the memory holds, capped at what ``max_num_seqs`` requests of
    ``max_model_len`` tokens could use, and must hold one such request. With ``num_kv_blocks`` the user decides:
    the memory must hold them, and a pool too small for ``max_model_len`` lowers ``max_model_len`` to what it
    holds, so that a request that can never fit is refused at admission. `ConfigError` names the sizes and the
    remedy.
    """
    max_model_len = spec.max_model_len if config.max_model_len is None else config.max_model_len
    if max_model_len > spec.max_model_len:
        raise ConfigError(
            f"max_model_len={max_model_len} is more than the model's context of {spec.max_model_len} tokens: "
            f"set it to {spec.max_model_len} or less"
        )
    affordable = spec.available_bytes // spec.bytes_per_block
    memory = f"{_size(spec.available_bytes)} for the KV cache at {_size(spec.bytes_per_block)} a block"
    if config.num_kv_blocks is not None:
        num_blocks = config.num_kv_blocks
        if num_blocks > affordable:
            raise ConfigError(
                f"num_kv_blocks={num_blocks} needs {_size(num_blocks * spec.bytes_per_block)}, but there is "
                f"{memory}, enough for {affordable}: lower num_kv_blocks or free memory"
            )
        # The last token of a request is never computed, so it needs no slot.
        max_model_len = min(max_model_len, num_blocks * config.block_size + 1)
    else:
        num_blocks = min(affordable, config.max_num_seqs * blocks_for(max_model_len, config.block_size))
        needed = blocks_for(max_model_len - 1, config.block_size)
        if num_blocks < needed:
            longest = affordable * config.block_size
            remedy = "free memory, or use a smaller model"
            if longest >= _RANGES["max_model_len"][0]:
                remedy = f"free memory, or set max_model_len to {longest} or less"
            raise ConfigError(
                f"max_model_len={max_model_len} needs {needed} KV blocks of {config.block_size} tokens, but "
                f"there is {memory}, enough for {affordable}: {remedy}"
            )
    return KVCacheConfig(
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
    )


def fit_again(limits: KVCacheConfig, spec: KVCacheSpec) -> KVCacheConfig:
    """The same limits with no more blocks than a restarted worker has memory for; at least one."""
    affordable = spec.available_bytes // spec.bytes_per_block
    return replace(limits, num_blocks=max(1, min(limits.num_blocks, affordable)))


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


def _size(size_bytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"
