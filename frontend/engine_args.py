"""`EngineArgs`: everything a user may choose about an engine. Plain data for `LLM`, `AsyncLLM`, server and CLI.

The layers below validate their own settings; this only carries them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringcast.gpu.worker_config import WorkerConfig
from ringcast.scheduler.config import SchedulerConfig


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """An engine's settings. ``model`` is a built-in name, a path, or a hub id.

    ``max_model_len`` bounds prompt plus answer, in tokens (None: the model's own limit). ``num_kv_blocks``
    fixes the number of KV blocks; None takes what ``kv_cache_memory_bytes`` holds (None: a
    quarter of the free memory, at most 4 GiB). ``num_threads`` are the worker's (None: one per CPU).
    """

    model: str = "smollm2"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    num_threads: int | None = None

    def scheduler_config(self) -> SchedulerConfig:
        """The scheduler's share. Its `ConfigError` (a ValueError) names field, value and remedy."""
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            num_blocks=self.num_kv_blocks,
        )

    def worker_config(self, model_path: Path) -> WorkerConfig:
        """The worker's share. Its `WorkerConfigError` (a ValueError) names field, value and remedy.

        ``max_model_len`` is not in it: the engine core bounds requests, against what the worker says it can do.
        """
        return WorkerConfig(
            model_path=str(model_path),
            dtype=self.dtype,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            num_threads=self.num_threads or 0,
        )
