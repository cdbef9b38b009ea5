"""The token-gap scheduler: which request computes how many tokens in the next step, and what its tokens mean.

The engine core calls it; it calls the KV manager. Pure Python, no randomness, and the clock is for statistics alone:
the same calls give the same plans. It never talks to a worker or a frontend.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from .admission import admit, check_fits
from .config import SchedulerConfig
from .draft import Draft
from .errors import AccountError, RequestRefused, ResultError
from .events import KVEventLog
from .kv_manager import KVManager
from .messages import (
    AddRequest,
    KVCacheConfig,
    KVCacheEvents,
    Logprobs,
    RequestOutput,
    SchedulerStatistics,
    StepOutputs,
    StepPlan,
    StepResult,
)
from .planner import Planner
from .policy import WaitingQueue
from .quarantine import Quarantine, verdict
from .request import NO_ROW, Request, RequestStatus
from .residents import Residents
from .step import StepInFlight, join
from .tally import Tally

Outputs = dict[int, StepOutputs]  # by client


class Scheduler:
    """The requests of an engine from admission to their end, and the steps that bring them there.

    Any number of plans may be in flight. What a step will draw is planned for before it is known: the request's
    ``num_pending_tokens`` count it, and only its value is missing. Where a plan needs the outcome (somebody would have
    to give way, or nobody has anything left to compute) there is none until the steps in flight are over. A request
    that a token ends has then been computed one step too far; that draw is dropped.

    "Re-add with all tokens" is one operation: it serves preemption, resume and the loss of the worker.

    Cost: O(1) per running request and step, plus O(tokens) when a request enters. ``limits`` are the resolved
    sizes; ``vocab_size`` bounds token ids.
    """

    def __init__(
        self,
        limits: KVCacheConfig,
        vocab_size: int,
        config: SchedulerConfig = SchedulerConfig(),  # noqa: B008 (a frozen value)
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.vocab_size = vocab_size
        self.step_id = 0  # of the latest plan
        self._policy = config.scheduling_policy
        self._clock = clock
        self._kv = KVManager(
            limits.num_blocks,
            limits.block_size,
            caching=config.enable_prefix_caching,
            events=KVEventLog(config.kv_event_log_size),
        )
        self._requests: dict[str, Request] = {}
        self._residents = Residents(limits.max_num_seqs, self._kv)
        self._waiting = WaitingQueue()
        self._quarantine: Quarantine[Request] = Quarantine()
        self._tally = Tally()
        self._planner = Planner(
            self._residents,
            self._waiting,
            self._quarantine,
            self._tally,
            clock,
            budget=limits.max_num_batched_tokens,
            max_chunk=config.long_prefill_token_threshold or limits.max_num_batched_tokens,
        )
        self._in_flight: deque[StepInFlight] = deque()
        self._has_worker = True
        self._num_with_logprobs = 0  # requests that want them for what they draw

    def add(self, message: AddRequest) -> RequestOutput | None:
        """Queue a request, new or generated in part before. None, or its last output if it ends here and now.

        It ends at once with "error" when it can never be run or its id is in use (the earlier one goes on),
        and with its reason when ``output_token_ids`` complete it already.
        """
        try:
            if message.request_id in self._requests:
                raise RequestRefused(f"request id {message.request_id!r} is in use: choose another")
            request = admit(
                message,
                self.limits,
                self.vocab_size,
                policy=self._policy,
                arrival=self._tally.num_arrived,
                now_s=self._clock(),
            )
        except RequestRefused as refusal:
            self._tally.ended(RequestStatus.FINISHED_ERROR)
            return RequestOutput(message.request_id, [], finish_reason="error", error=str(refusal))
        known = len(message.output_token_ids)
        if known and (stop := request.stop_by_last_token()):
            status, stop_reason = stop
            self._tally.ended(status)
            return RequestOutput(message.request_id, [], status.value, stop_reason, start=known)
        self._tally.num_arrived += 1
        self._num_with_logprobs += request.sampling.logprobs is not None
        self._requests[request.request_id] = request
        self._waiting.put(request)
        return None

    def abort(self, request_ids: Iterable[str]) -> Outputs:
        """End requests in any state with "abort"; unknown ids have finished already and are passed over.

        What steps in flight still draw for them is dropped when their results come.
        """
        requests = [self._requests[request_id] for request_id in request_ids if request_id in self._requests]
        return self._end(requests, RequestStatus.FINISHED_ABORTED, None)

    def abort_client(self, client: int) -> None:
        """End every request of a frontend that is gone. Nobody is left to be told. O(requests)."""
        self.abort([r.request_id for r in self._requests.values() if r.client == client])

    def worker_lost(self, cause: str, *, is_evidence: bool = True) -> Outputs:
        """The worker's rows and blocks are gone, and with them the steps in flight and the prefix cache.

        Everything that ran waits to be re-added with all its tokens; there is no plan before `worker_ready`. With
        ``is_evidence`` the loss counts against the requests that were in flight (`Quarantine`): after two losses
        without a token in between a request runs alone, and when the worker is lost then, too, the request ends with an
        error that names ``cause``. Without, the loss cannot be a request's fault. Idempotent until `worker_ready`.
        """
        if not self._has_worker:
            return {}
        self._has_worker = False
        self._tally.num_worker_losses += 1
        in_flight = {request for step in self._in_flight for request in step.requests if not request.has_ended}
        self._in_flight.clear()
        for request in in_flight:
            request.draws_plainly = False
        outputs: Outputs = {}
        convicted = self._quarantine.lose(in_flight, is_evidence=is_evidence)
        if convicted is not None:
            error = verdict("the worker was lost", convicted, cause)
            outputs = self._end([convicted], RequestStatus.FINISHED_ERROR, error)
        for request in self._residents.lose_all(self.limits.num_blocks):
            request.status = RequestStatus.PREEMPTED
            if request not in self._quarantine:
                self._waiting.put(request)
        return outputs

    def worker_ready(self, num_blocks: int) -> Outputs:
        """A worker with empty rows and ``num_blocks`` empty blocks is there; who does not fit any more ends."""
        self._has_worker = True
        if num_blocks == self.limits.num_blocks:
            return {}
        self.limits = replace(self.limits, num_blocks=num_blocks)
        self._residents.lose_all(num_blocks)
        outputs: Outputs = {}
        for request in list(self._requests.values()):
            try:
                check_fits(request.max_num_tokens, self.limits)
            except RequestRefused as refusal:
                _merge(outputs, self._end([request], RequestStatus.FINISHED_ERROR, str(refusal)))
        return outputs

    def fail_all(self, message: str) -> Outputs:
        """The worker will not come back: end every request with "error" and ``message``."""
        outputs = self.worker_lost(message)
        _merge(outputs, self._end(list(self._requests.values()), RequestStatus.FINISHED_ERROR, message))
        return outputs

    def schedule(self) -> StepPlan | None:
        """The next step, or None: there is no request, no worker, or the steps in flight have to end first."""
        if not self._requests or not self._has_worker:
            return None
        draft = self._planner.plan(self.step_id + 1, may_preempt=not self._in_flight)
        if draft is not None and draft.requests:
            return self._commit(draft)
        if not self._in_flight:
            raise AccountError(
                f"no step is possible: {len(self._requests)} requests, {self._kv.num_free_blocks} free blocks"
            )
        return None

    def update(self, result: StepResult) -> Outputs:
        """Take the tokens of the oldest step in flight: append, apply the stop rules, free what finished.

        A request for which nothing could be drawn ends with "error"; the others go on.

        `ResultError` (and no change) when the result does not answer its plan.
        """
        if not self._in_flight:
            raise ResultError(f"the worker answered step {result.step_id}, but none is in flight")
        step = self._in_flight[0]
        step.check(result, self.vocab_size)
        if self._num_with_logprobs or result.logprobs is not None:
            step.check_logprobs(result)
        self._in_flight.popleft()
        self._kv.acknowledge(step.step_id)
        self._tally.num_generated_tokens += len(step.sampled)
        for chunk, one in zip(step.prompt_chunks, result.prompt_logprobs or (), strict=True):
            if not chunk.request.has_ended:
                chunk.request.prompt_logprobs.append(one.logprobs)
        outputs: Outputs = {}
        if result.errors is not None:
            for request, error in zip(step.sampled, result.errors, strict=True):
                if error is not None:
                    _merge(outputs, self._end([request], RequestStatus.FINISHED_ERROR, error))
        client = -1
        to_client: StepOutputs | None = None
        for index, (request, token_id) in enumerate(zip(step.sampled, result.token_ids, strict=True)):
            if request.has_ended:  # aborted or ended while the step ran
                self._tally.num_generated_tokens -= 1
                continue
            request.all_token_ids.append(token_id)
            num_tokens = len(request.all_token_ids)
            request.num_pending_tokens -= 1
            if to_client is None or request.client != client:
                client = request.client
                to_client = outputs.get(client)
                if to_client is None:
                    to_client = outputs[client] = StepOutputs(step.step_id, [])
            if (
                request.draws_plainly
                and token_id not in request.ending_token_ids
                and num_tokens < request.max_num_tokens
            ):
                to_client.request_ids.append(request.request_id)
                to_client.token_ids.append(token_id)
                to_client.starts.append(num_tokens - 1 - request.num_prompt_tokens)
            else:
                to_client.outputs.append(self._tell(request, result.logprobs[index] if result.logprobs else None))
        return outputs

    def reset_prefix_cache(self) -> None:
        """Nothing computed so far will be found by later requests; those that run keep what they have."""
        self._kv.reset_cache()

    def kv_cache_events(self, first: int) -> KVCacheEvents:
        """What the prefix cache did, from event ``first`` on, as far as it is kept (``kv_event_log_size``)."""
        return self._kv.events.since(first)

    @property
    def num_running(self) -> int:
        return len(self._residents.running)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def statistics(self) -> SchedulerStatistics:
        """A snapshot of the accounts. O(1)."""
        return self._tally.statistics(
            num_running=len(self._residents.running),
            num_waiting=len(self._requests) - len(self._residents.running),
            num_free_blocks=self._kv.num_free_blocks,
            num_blocks=self._kv.num_blocks,
            num_steps=self.step_id,
            num_cached_blocks=self._kv.num_cached_blocks,
            num_evicted_blocks=self._kv.num_evicted_blocks,
            num_quarantined=len(self._quarantine),
        )

    def check(self) -> None:
        """Compare all accounts, O(requests + blocks); `AccountError` if one is wrong. For tests."""
        not_running = [*self._waiting, *(suspect for suspect in self._quarantine if suspect.row == NO_ROW)]
        self._residents.check(not_running)
        places = sorted(request.request_id for request in [*self._residents.running.values(), *not_running])
        if places != sorted(self._requests):
            raise AccountError(f"a request is in two queues, or in none: {places} of {sorted(self._requests)}")
        for request in self._requests.values():
            total = request.num_tokens + request.num_pending_tokens
            if not 0 <= request.num_computed_tokens <= total <= request.max_num_tokens:
                raise AccountError(f"token counts of request {request.request_id!r} are out of order")

    def _commit(self, draft: Draft) -> StepPlan:
        self.step_id = draft.step_id
        self._kv.begin_step(self.step_id)
        rows = [request.row for request in draft.requests]
        sampled = [request for request, draws in zip(draft.requests, draft.sample, strict=True) if draws]
        sampled_rows = [request.row for request in sampled]
        self._in_flight.append(StepInFlight(self.step_id, draft.requests, sampled, sampled_rows, draft.prompt_chunks))
        return StepPlan(
            step_id=self.step_id,
            freed_rows=self._residents.take_freed_rows(),
            new_rows=draft.new_rows,
            rows=rows,
            num_tokens=draft.num_tokens,
            new_block_ids=draft.new_block_ids,
            sample=draft.sample,
        )

    def _tell(self, request: Request, logprobs: Logprobs | None) -> RequestOutput:
        """What the frontend hears of a request's newest token, if that is more than the token; it may end here."""
        if request.num_losses:
            self._quarantine.release(request)
        prompt_logprobs = None
        if request.owes_prompt_logprobs:
            prompt_logprobs = join(request.prompt_logprobs, (request.sampling.prompt_logprobs or 0) + 1)
            request.prompt_logprobs = []
            request.sampling = replace(request.sampling, prompt_logprobs=None)
        status, stop_reason = request.stop_by_last_token() or (None, None)
        is_first, request.awaits_first_output = request.awaits_first_output, False
        request.draws_plainly = request.sampling.logprobs is None
        if status is not None:
            self._finish(request, status)
        return RequestOutput(
            request_id=request.request_id,
            token_ids=request.all_token_ids[-1:],
            finish_reason=status.value if status else None,
            stop_reason=stop_reason,
            num_cached_tokens=request.num_cached_tokens if is_first else 0,
            start=request.num_tokens - 1 - request.num_prompt_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            queue_time_s=request.queue_time_s if is_first else 0.0,
        )

    def _finish(self, request: Request, status: RequestStatus) -> None:
        del self._requests[request.request_id]
        if request.row != NO_ROW:
            self._residents.leave(request)
        elif request not in self._quarantine:
            self._waiting.remove(request)
        self._quarantine.release(request)
        request.status = status
        request.has_ended = True
        self._num_with_logprobs -= request.sampling.logprobs is not None
        self._tally.ended(status)

    def _end(self, requests: Iterable[Request], status: RequestStatus, error: str | None) -> Outputs:
        outputs: Outputs = {}
        for request in requests:
            if request.has_ended:  # named twice
                continue
            self._finish(request, status)
            output = RequestOutput(
                request.request_id,
                [],
                finish_reason=status.value,
                error=error,
                start=request.num_tokens - request.num_prompt_tokens,
            )
            outputs.setdefault(request.client, StepOutputs(self.step_id, [])).outputs.append(output)
        return outputs


def _merge(outputs: Outputs, more: Outputs) -> None:
    for client, late in more.items():
        outputs.setdefault(client, StepOutputs(late.step_id, [])).outputs.extend(late.outputs)
