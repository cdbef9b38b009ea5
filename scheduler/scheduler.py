"""The token-gap scheduler: which request computes how many tokens in the next step, and what its tokens mean.

The engine core calls it; it calls the KV manager. Pure Python, no clock, no randomness: the same calls give
the same plans. It never talks to a worker or a frontend.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from .admission import admit
from .errors import AccountError, RequestRefused, ResultError
from .kv_manager import KVManager
from .messages import (
    AddRequest,
    KVCacheConfig,
    NewRow,
    RequestOutput,
    SchedulerStatistics,
    StepOutputs,
    StepPlan,
    StepResult,
)
from .request import NO_ROW, Request, RequestStatus

Outputs = dict[int, StepOutputs]  # by client


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    """A plan that the worker has not answered yet: the requests whose next token it draws, and their rows."""

    step_id: int
    sampled: list[Request]
    rows: list[int]


class Scheduler:
    """Plans steps by one rule: let each request's computed tokens catch up with its tokens.

    There is no prefill or decode phase. Running requests go first, in order of (re-)entry, within the token
    budget; then waiting ones, unless something was preempted in this step. A waiting request enters when
    blocks for all its present tokens are free, even if the budget computes only a chunk of them now: it would
    be preempted half way otherwise. When blocks are missing the last of the running is preempted: it gives up
    row and blocks and goes to the head of the waiting; it enters again by a `NewRow` with all its tokens. The
    first of the running is never preempted, so every step makes progress.

    One plan is in flight at a time. Plans carry step ids, a request's tokens count as computed once planned,
    and blocks given back during a step retire until its result (`BlockPool`); that is what several plans in
    flight need of the accounts. What they need besides is a count of tokens not yet drawn per request.

    Cost: O(1) per running request and step, plus O(tokens) when a request enters. ``limits`` are the resolved
    sizes; ``vocab_size`` bounds token ids.
    """

    def __init__(self, limits: KVCacheConfig, vocab_size: int) -> None:
        self.limits = limits
        self.vocab_size = vocab_size
        self._kv = KVManager(limits.num_blocks, limits.block_size)
        self._requests: dict[str, Request] = {}
        self._running: dict[str, Request] = {}  # in order of entry
        self._waiting: OrderedDict[str, Request] = OrderedDict()
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        self._rows_to_forget: list[int] = []  # freed since the last plan
        self._in_flight: _StepInFlight | None = None
        self.step_id = 0  # of the latest plan
        self._num_arrived = 0
        self._num_preemptions = 0
        self._num_generated_tokens = 0

    def add(self, message: AddRequest) -> RequestOutput | None:
        """Queue a request, new or generated in part before. None, or its last output if it ends here and now.

        It ends at once with "error" when it can never be run or its id is in use (the earlier one goes on),
        and with its reason when ``output_token_ids`` complete it already.
        """
        try:
            if message.request_id in self._requests:
                raise RequestRefused(f"request id {message.request_id!r} is in use: choose another")
            request = admit(message, self.limits, self.vocab_size, arrival=self._num_arrived)
        except RequestRefused as refusal:
            return RequestOutput(message.request_id, [], finish_reason="error", error=str(refusal))
        if message.output_token_ids and (stop := request.stop_by_last_token()):
            status, stop_reason = stop
            return RequestOutput(message.request_id, [], finish_reason=status.value, stop_reason=stop_reason)
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._waiting[request.request_id] = request
        return None

    def abort(self, request_ids: Iterable[str]) -> Outputs:
        """End requests in any state with "abort"; unknown ids have finished already and are passed over.

        What a step in flight still draws for them is dropped when its result comes.
        """
        requests = [self._requests[request_id] for request_id in request_ids if request_id in self._requests]
        return self._end(requests, RequestStatus.FINISHED_ABORTED, None)

    def abort_client(self, client: int) -> None:
        """End every request of a frontend that is gone. Nobody is left to be told. O(requests)."""
        self.abort([r.request_id for r in self._requests.values() if r.client == client])

    def worker_lost(self, message: str) -> Outputs:
        """The worker's rows and blocks are gone: end what ran there with "error" and ``message``.

        Waiting and preempted requests hold nothing in the worker; they stay queued and run on its successor.
        A step in flight counts as over.
        """
        outputs = self._end(list(self._running.values()), RequestStatus.FINISHED_ERROR, message)
        self._in_flight = None
        self._rows_to_forget.clear()
        self._kv.acknowledge(self.step_id)
        return outputs

    def fail_all(self, message: str) -> Outputs:
        """The worker will not come back: end every request with "error" and ``message``."""
        outputs = self.worker_lost(message)
        for client, late in self._end(list(self._waiting.values()), RequestStatus.FINISHED_ERROR, message).items():
            outputs.setdefault(client, StepOutputs(self.step_id, [])).outputs.extend(late.outputs)
        return outputs

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is no request. `AccountError` while a step is in flight."""
        if self._in_flight is not None:
            raise AccountError(f"step {self._in_flight.step_id} is in flight: its result goes to update() first")
        if not self._requests:
            return None
        planned: dict[Request, tuple[int, list[int]]] = {}  # tokens and new blocks of this step
        budget, preempted = self._plan_running(planned)
        new_rows = [] if preempted else self._plan_waiting(planned, budget)
        if not planned:
            raise AccountError(
                f"no step is possible: {len(self._requests)} requests, {self._kv.num_free_blocks} free blocks"
            )
        return self._commit(planned, new_rows)

    def update(self, result: StepResult) -> Outputs:
        """Take the tokens of the step in flight: append, apply the stop rules, free what finished.

        `ResultError` (and no change) when the result does not answer the plan.
        """
        step = self._in_flight
        if step is None or result.step_id != step.step_id or result.rows != step.rows:
            expected = "no step" if step is None else f"step {step.step_id} with rows {step.rows}"
            raise ResultError(
                f"the worker answered step {result.step_id} with rows {result.rows}; in flight is {expected}"
            )
        if len(result.token_ids) != len(step.rows) or not all(
            0 <= token_id < self.vocab_size for token_id in result.token_ids
        ):
            raise ResultError(
                f"step {step.step_id} drew {result.token_ids} for {len(step.rows)} rows: one id below "
                f"{self.vocab_size} a row was due"
            )
        self._in_flight = None
        self._kv.acknowledge(step.step_id)
        outputs: Outputs = {}
        for request, token_id in zip(step.sampled, result.token_ids, strict=True):
            if request.is_finished:  # aborted while the step ran
                continue
            request.all_token_ids.append(token_id)
            self._num_generated_tokens += 1
            stop = request.stop_by_last_token()
            if stop is None:
                output = RequestOutput(request.request_id, [token_id])
            else:
                status, stop_reason = stop
                self._finish(request, status)
                output = RequestOutput(request.request_id, [token_id], status.value, stop_reason)
            outputs.setdefault(request.client, StepOutputs(step.step_id, [])).outputs.append(output)
        return outputs

    @property
    def num_running(self) -> int:
        return len(self._running)

    def statistics(self) -> SchedulerStatistics:
        """A snapshot of the accounts. O(1)."""
        return SchedulerStatistics(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_free_blocks=self._kv.num_free_blocks,
            num_blocks=self._kv.num_blocks,
            num_steps=self.step_id,
            num_preemptions=self._num_preemptions,
            num_generated_tokens=self._num_generated_tokens,
        )

    def check(self) -> None:
        """Compare all accounts, O(requests + blocks); `AccountError` if one is wrong. For tests."""
        self._kv.check(self._running.values())
        rows = sorted([request.row for request in self._running.values()] + self._free_rows)
        if rows != list(range(self.limits.max_num_seqs)):
            raise AccountError(f"rows are held twice or lost: {rows}")
        if self._running.keys() & self._waiting.keys() or (
            self._running.keys() | self._waiting.keys() != self._requests.keys()
        ):
            raise AccountError("a request is in both queues, or in none")
        for request in self._requests.values():
            if not 0 <= request.num_computed_tokens <= request.num_tokens < request.max_num_tokens:
                raise AccountError(f"token counts of request {request.request_id!r} are out of order")
        for request in self._waiting.values():
            if request.num_computed_tokens or request.block_ids or request.row != NO_ROW:
                raise AccountError(f"waiting request {request.request_id!r} holds something in the worker")

    def _plan_running(self, planned: dict[Request, tuple[int, list[int]]]) -> tuple[int, bool]:
        """Plan the running requests; the budget that is left, and whether one was preempted."""
        budget = self.limits.max_num_batched_tokens
        preempted = False
        for request in list(self._running.values()):
            if budget == 0:
                break
            if request.status is not RequestStatus.RUNNING:  # preempted by one before it
                continue
            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            new_block_ids = self._kv.allocate(request, num_tokens)
            while new_block_ids is None:
                victim = self._victim()
                preempted = True
                self._preempt(victim)
                # First come, first served never takes one that is planned already; other policies may.
                given_back, _ = planned.pop(victim, (0, []))
                budget += given_back
                if victim is request:
                    break
                new_block_ids = self._kv.allocate(request, num_tokens)
            if new_block_ids is not None:
                planned[request] = (num_tokens, new_block_ids)
                budget -= num_tokens
        return budget, preempted

    def _plan_waiting(self, planned: dict[Request, tuple[int, list[int]]], budget: int) -> list[NewRow]:
        """Let waiting requests enter, in order, while budget, rows and blocks last."""
        new_rows: list[NewRow] = []
        while budget and self._waiting and self._free_rows:
            request = next(iter(self._waiting.values()))
            if not self._kv.fits_now(request.num_tokens):
                break
            num_tokens = min(request.num_tokens, budget)
            if self._kv.allocate(request, num_tokens) is None:
                raise AccountError("blocks that fitted a moment ago are gone")
            del self._waiting[request.request_id]
            self._running[request.request_id] = request
            request.status = RequestStatus.RUNNING
            request.row = self._free_rows.pop()
            # Copies: an actor in this process would get the very lists that change here later.
            new_rows.append(
                NewRow(request.row, list(request.all_token_ids), 0, list(request.block_ids), request.sampling)
            )
            planned[request] = (num_tokens, [])
            budget -= num_tokens
        return new_rows

    def _commit(self, planned: dict[Request, tuple[int, list[int]]], new_rows: list[NewRow]) -> StepPlan:
        self.step_id += 1
        self._kv.begin_step(self.step_id)
        sample: list[bool] = []
        for request, (num_tokens, _) in planned.items():
            request.num_computed_tokens += num_tokens
            request.last_step = self.step_id
            sample.append(request.num_computed_tokens == request.num_tokens)
        rows = [request.row for request in planned]
        sampled = [request for request, draws in zip(planned, sample, strict=True) if draws]
        self._in_flight = _StepInFlight(self.step_id, sampled, [request.row for request in sampled])
        freed_rows, self._rows_to_forget = self._rows_to_forget, []
        return StepPlan(
            step_id=self.step_id,
            freed_rows=freed_rows,
            new_rows=new_rows,
            rows=rows,
            num_tokens=[num_tokens for num_tokens, _ in planned.values()],
            new_block_ids=[block_ids for _, block_ids in planned.values()],
            sample=sample,
        )

    def _victim(self) -> Request:
        """The policy: first come, first served, so the last of the running gives way."""
        return next(reversed(self._running.values()))

    def _preempt(self, request: Request) -> None:
        """Back to the head of the waiting, to be re-added with all its tokens."""
        del self._running[request.request_id]
        self._release(request)
        request.status = RequestStatus.PREEMPTED
        self._waiting[request.request_id] = request
        self._waiting.move_to_end(request.request_id, last=False)
        self._num_preemptions += 1

    def _finish(self, request: Request, status: RequestStatus) -> None:
        del self._requests[request.request_id]
        if request.status is RequestStatus.RUNNING:
            del self._running[request.request_id]
            self._release(request)
        else:
            del self._waiting[request.request_id]
        request.status = status

    def _release(self, request: Request) -> None:
        """Give back everything that a running request holds in the worker."""
        self._kv.free(request)
        self._rows_to_forget.append(request.row)
        self._free_rows.append(request.row)
        request.row = NO_ROW
        request.num_computed_tokens = 0

    def _end(self, requests: Iterable[Request], status: RequestStatus, error: str | None) -> Outputs:
        outputs: Outputs = {}
        for request in requests:
            if request.is_finished:  # named twice
                continue
            self._finish(request, status)
            output = RequestOutput(request.request_id, [], finish_reason=status.value, error=error)
            outputs.setdefault(request.client, StepOutputs(self.step_id, [])).outputs.append(output)
        return outputs
