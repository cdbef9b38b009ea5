"""Fifty thousand tiny requests: nothing grows."""

from __future__ import annotations

import gc

import psutil
from scheduler_fakes import VOCAB_SIZE, limits, request

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.messages import StepResult
from ringcast.scheduler.scheduler import Scheduler

NUM_REQUESTS = 50_000
ROUND = 50  # requests that are there at the same time
WARM = 10_000  # requests after which nothing may grow any more


def test_fifty_thousand_tiny_requests_leave_no_trace() -> None:
    """Short answers, aborts, salts that never come again, a full prefix cache, two plans in flight, losses."""
    sizes = limits(256, max_num_seqs=32, max_num_batched_tokens=512)
    scheduler = Scheduler(sizes, VOCAB_SIZE, SchedulerConfig(kv_event_log_size=100))
    process = psutil.Process()
    sizes_bytes: list[int] = []
    plans = []
    for first in range(0, NUM_REQUESTS, ROUND):
        for i in range(first, first + ROUND):
            prompt = [i % VOCAB_SIZE, i // VOCAB_SIZE % VOCAB_SIZE] * (1 + i % 20)
            salt = str(i) if i % 3 == 0 else None
            assert scheduler.add(request(f"r{i}", prompt, 1 + i % 4, client=i % 3, salt=salt)) is None
        scheduler.abort([f"r{first}"])
        for number in range(1000):
            while len(plans) < 2 and (plan := scheduler.schedule()) is not None:
                plans.append(plan)
            if not plans:
                break
            if number == 2:
                scheduler.abort([f"r{first + 1}", f"r{first + 7}"])
            if number == 3 and first % 5000 == 0:
                scheduler.worker_lost("killed")
                scheduler.worker_ready(sizes.num_blocks)
                plans.clear()
                continue
            plan = plans.pop(0)
            rows = [row for row, draws in zip(plan.rows, plan.sample, strict=True) if draws]
            scheduler.update(StepResult(plan.step_id, rows, [row % VOCAB_SIZE for row in rows]))
        now = scheduler.statistics()
        assert (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, 256)
        if first % WARM == WARM - ROUND:
            gc.collect()
            sizes_bytes.append(process.memory_info().rss)
    scheduler.check()
    assert now.num_finished == NUM_REQUESTS
    assert now.num_evicted_blocks > NUM_REQUESTS // 2 and now.num_cached_blocks <= 256
    assert not scheduler._requests and not scheduler._residents.running
    assert len(scheduler._waiting._heap) <= 2 * ROUND
    grown = sizes_bytes[-1] - sizes_bytes[0]
    assert grown < 1 << 20, f"{grown} bytes in {NUM_REQUESTS - WARM} requests: {sizes_bytes}"
