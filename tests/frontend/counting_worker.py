"""A worker without a model: the token after t is t + 1. For tests of the real engine core and frontend over rings."""

from __future__ import annotations

import time

import ringcast.actors as rt
from ringcast.scheduler.messages import (
    KVCacheConfig,
    KVCacheSpec,
    StepPlan,
    StepResult,
    WorkerInterface,
)

VOCAB_SIZE = 49152
MAX_MODEL_LEN = 256


class CountingWorker(WorkerInterface):
    """``step_s`` is how long a step takes; ``start_error`` makes every start fail with it."""

    def __init__(self, step_s: float = 0.0, start_error: str = "") -> None:
        self._step_s = step_s
        self._start_error = start_error
        self._last: dict[int, int] = {}

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        if self._start_error:
            raise ValueError(self._start_error)

    @rt.call
    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        return KVCacheSpec(1024, 1 << 20, MAX_MODEL_LEN, VOCAB_SIZE)

    @rt.call
    def initialize_from_config(self, config: KVCacheConfig) -> None:
        self._last.clear()

    @rt.call
    def execute_model(self, plan: StepPlan) -> StepResult:
        time.sleep(self._step_s)
        for new in plan.new_rows:
            self._last[new.row] = new.token_ids[-1]
        rows = [row for row, sampled in zip(plan.rows, plan.sample, strict=True) if sampled]
        for row in rows:
            self._last[row] = (self._last[row] + 1) % VOCAB_SIZE
        return StepResult(plan.step_id, rows, [self._last[row] for row in rows])
