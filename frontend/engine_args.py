"""`EngineArgs`: everything a user may choose about an engine. Plain data for `LLM`, `AsyncLLM`, server and CLI.

The layers below know what is right for them; this carries the settings there, and has them checked when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ringcast.gpu.worker_config import WorkerConfig, check_block_size
from ringcast.scheduler.config import SchedulerConfig

from .input_processor import AdmissionLimits
from .parameter_checks import MAX_TOKEN_ID, integer, number

_MAX_STALL_S = 1e6


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """An engine's settings. ``model`` is a built-in name, a path, or a hub id.

    ``max_model_len`` bounds prompt plus answer, in tokens (None: the model's own limit). ``num_kv_blocks``
    fixes the number of KV blocks; None takes what ``kv_cache_memory_bytes`` holds (None: a
    quarter of the free memory, at most 4 GiB). ``num_threads`` are the worker's (None: one per CPU).
    ``enable_prefix_caching``: requests that begin alike share KV blocks. ``scheduling_policy`` "fcfs" takes requests in
    the order of their arrival, "priority" those of the lowest ``priority`` first. ``max_logprobs`` bounds what requests
    may ask for as ``logprobs`` and ``prompt_logprobs`` (-1: no bound). ``quantization`` "gguf" keeps a GGUF file's
    blocks of Q4_0, Q4_1 and Q8_0 packed (less memory, faster steps); "none" dequantises them at the start.
    ``stall_after``: seconds after which worker or engine core count as stalled that have made no progress with a
    request. ``restart_stalled``: seconds after which a stalled one is killed and started again (None: never).
    """

    model: str = field(default="smollm2", kw_only=False)
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    num_threads: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    max_logprobs: int = 20
    quantization: str = "none"
    stall_after: float = 10.0
    restart_stalled: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no machine and no model could do now, before anything is looked for, downloaded or started.

        The errors are the layers' own, all of them ValueErrors; they name the field, the value and the remedy.
        """
        integer("max_logprobs", self.max_logprobs, -1, MAX_TOKEN_ID)
        number("stall_after", self.stall_after, 0, _MAX_STALL_S, above=True)
        if self.restart_stalled is not None:
            number("restart_stalled", self.restart_stalled, 0, _MAX_STALL_S, above=True)
        self.scheduler_config()
        check_block_size(self.block_size)
        self.worker_config(Path("model"))  # its files are looked for later

    def admission_limits(self) -> AdmissionLimits:
        """The front end's share."""
        return AdmissionLimits(self.max_logprobs, has_priorities=self.scheduling_policy == "priority")

    def scheduler_config(self) -> SchedulerConfig:
        """The scheduler's share. Its `ConfigError` (a ValueError) names field, value and remedy."""
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            num_kv_blocks=self.num_kv_blocks,
            scheduling_policy=self.scheduling_policy,
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def worker_config(self, model_path: Path) -> WorkerConfig:
        """The worker's share. Its `WorkerConfigError` (a ValueError) names field, value and remedy.

        ``max_model_len`` is in it too: a model whose rope is made for it can do more than its default context.
        """
        return WorkerConfig(
            model_path=str(model_path),
            dtype=self.dtype,
            max_model_len=self.max_model_len,
            kv_cache_memory_bytes=self.kv_cache_memory_bytes,
            num_threads=0 if self.num_threads is None else self.num_threads,
            quantization=self.quantization,
        )
