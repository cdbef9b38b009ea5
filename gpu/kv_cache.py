"""`KVCache`: the keys and values of all layers, in blocks. Allocated by the runner, written and read by the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import KVCacheMemoryError
from .machine import available_memory
from .model_config import ModelConfig

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One layer's blocks. ``view`` is what native code takes: addresses, sizes and type (kernels.h, CacheView)."""

    keys: Tensor  # [blocks, kv_heads, head_dim, block_size]: 16 neighbouring tokens are one vector
    values: Tensor  # [blocks, kv_heads, block_size, head_dim]
    num_kv_heads: int
    head_dim: int
    view: tuple[int, int, int, int, int, int]


class KVCache:
    """All layers' blocks. Fresh memory: nothing may be read from a block before it was written."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        """Allocate. `KVCacheMemoryError` if the memory is not there; asked before, not after, it is taken."""
        needed = num_blocks * bytes_per_block(config, block_size, dtype)
        available = available_memory()
        if needed > available:
            raise KVCacheMemoryError(
                f"no memory for the KV cache: {num_blocks} blocks need {needed / _GIB:.2f} GiB, "
                f"{available / _GIB:.2f} GiB available; lower --max-model-len or --kv-cache-memory"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        heads, size = config.num_kv_heads, config.head_dim
        try:
            keys = torch.empty((config.num_layers, num_blocks, heads, size, block_size), dtype=dtype)
            values = torch.empty((config.num_layers, num_blocks, heads, block_size, size), dtype=dtype)
        except RuntimeError as error:  # torch's out-of-memory error on the CPU has no class of its own
            raise KVCacheMemoryError(
                f"no memory for the KV cache: {num_blocks} blocks need {needed / _GIB:.2f} GiB, which the system "
                f"refused ({error}); lower --max-model-len or --kv-cache-memory"
            ) from error
        number = {torch.float32: 0, torch.bfloat16: 1}[dtype]
        self.layers = [
            CacheLayer(
                keys[index], values[index], heads, size,
                (keys[index].data_ptr(), values[index].data_ptr(), heads, size, block_size, number),
            )
            for index in range(config.num_layers)
        ]  # fmt: skip


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block in all layers, keys and values."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * dtype.itemsize
