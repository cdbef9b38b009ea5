"""What has happened since the start, in numbers. Counted by `Scheduler`, told as `SchedulerStatistics`."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import SchedulerStatistics
from .request import Request, RequestStatus


@dataclass(slots=True)
class Tally:
    """Sums over all requests so far; `SchedulerStatistics` says what each is."""

    num_arrived: int = 0
    num_started: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_preemptions: int = 0
    num_generated_tokens: int = 0
    num_looked_up_tokens: int = 0
    num_cached_tokens: int = 0
    num_worker_losses: int = 0
    queue_time_s: float = 0.0

    def started(self, request: Request, num_cached_tokens: int) -> None:
        """A request runs for the first time, with so many of its tokens found in the prefix cache."""
        self.num_started += 1
        self.queue_time_s += request.queue_time_s
        if not request.owes_prompt_logprobs:
            self.num_looked_up_tokens += request.num_tokens
            self.num_cached_tokens += num_cached_tokens

    def ended(self, status: RequestStatus) -> None:
        """A request ended."""
        self.num_finished += 1
        self.num_aborted += status is RequestStatus.FINISHED_ABORTED
        self.num_failed += status is RequestStatus.FINISHED_ERROR

    def statistics(
        self,
        *,
        num_running: int,
        num_waiting: int,
        num_free_blocks: int,
        num_blocks: int,
        num_steps: int,
        num_cached_blocks: int,
        num_evicted_blocks: int,
        num_quarantined: int,
    ) -> SchedulerStatistics:
        """The sums, with what stands in the accounts now."""
        return SchedulerStatistics(
            num_running=num_running,
            num_waiting=num_waiting,
            num_free_blocks=num_free_blocks,
            num_blocks=num_blocks,
            num_steps=num_steps,
            num_preemptions=self.num_preemptions,
            num_generated_tokens=self.num_generated_tokens,
            num_finished=self.num_finished,
            num_aborted=self.num_aborted,
            num_failed=self.num_failed,
            num_started=self.num_started,
            queue_time_s=self.queue_time_s,
            num_looked_up_tokens=self.num_looked_up_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_cached_blocks=num_cached_blocks,
            num_evicted_blocks=num_evicted_blocks,
            num_worker_losses=self.num_worker_losses,
            num_quarantined=num_quarantined,
        )
