"""A worker without a model: the token after t is t + 1. For tests of the real engine core and frontend over rings."""

from __future__ import annotations

import os
import signal
import time

import psutil

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
CORE_KILLER = 666  # a prompt that ends in it kills the engine core, each time its row is entered
HANG = 777  # a prompt that ends in it makes the step hang


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
            if new.token_ids[-1] == CORE_KILLER:
                _kill_core()
            while new.token_ids[-1] == HANG:
                time.sleep(0.01)
            self._last[new.row] = new.token_ids[-1]
        rows = [row for row, sampled in zip(plan.rows, plan.sample, strict=True) if sampled]
        for row in rows:
            self._last[row] = (self._last[row] + 1) % VOCAB_SIZE
        return StepResult(plan.step_id, rows, [self._last[row] for row in rows])


def _kill_core() -> None:
    for process in psutil.Process(os.getppid()).children():
        if "engine-core" in " ".join(process.cmdline()):
            process.send_signal(signal.SIGSEGV)  # as a crash: a SIGKILL would be no evidence
