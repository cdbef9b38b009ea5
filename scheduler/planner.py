"""Decides who computes how many tokens in the next step, and who gives way. Used by `Scheduler` alone.

It changes who is in the worker; requests come, end and draw tokens elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from .draft import Draft
from .errors import AccountError
from .messages import NewRow
from .policy import WaitingQueue, victim
from .quarantine import Quarantine
from .request import NO_ROW, Request, RequestStatus
from .residents import Residents
from .tally import Tally


class Planner:
    """Plans steps by one rule: let each request's computed tokens catch up with its tokens.

    There is no prefill or decode phase. Running requests go first, in order of (re-)entry, within the token
    budget; then waiting ones, by rank (`policy`), unless something was preempted in this step. A waiting request
    enters when blocks for all its present tokens are there, even if the budget computes only a chunk of them now: it
    would be preempted half way otherwise. When blocks are missing the running request of the highest rank gives up row
    and blocks and waits again; it enters again by a `NewRow` with all its tokens. The one of the lowest rank is never
    preempted, so every step makes progress.

    While there are suspects (`Quarantine`) one of them is planned, alone, and nothing else.
    """

    def __init__(
        self,
        residents: Residents,
        waiting: WaitingQueue,
        quarantine: Quarantine[Request],
        tally: Tally,
        clock: Callable[[], float],
        *,
        budget: int,
        max_chunk: int,
    ) -> None:
        """``budget``: tokens a step; ``max_chunk``: of one request in it."""
        self._residents = residents
        self._kv = residents.kv
        self._waiting = waiting
        self._quarantine = quarantine
        self._tally = tally
        self._clock = clock
        self._budget = budget
        self._max_chunk = max_chunk

    def plan(self, step_id: int, may_preempt: bool) -> Draft | None:
        """The next step, which may be empty. None, and no change, when somebody has to give way but may not."""
        draft = Draft(step_id, self._budget, may_preempt)
        if len(self._quarantine):
            return draft if self._plan_suspect(draft) else None
        if not self._plan_running(draft):
            return None
        if not draft.has_preempted:
            self._plan_waiting(draft)
        return draft

    def _plan_running(self, draft: Draft) -> bool:
        max_chunk = self._max_chunk
        for request in list(self._residents.running.values()):
            if draft.budget == 0:
                break
            total = len(request.all_token_ids) + request.num_pending_tokens
            if request.row == NO_ROW or total >= request.max_num_tokens:
                continue  # preempted by one before it, or its last token is in flight
            num_tokens = total - request.num_computed_tokens
            if num_tokens > 1:
                num_tokens = min(num_tokens, draft.budget, max_chunk)
            if request.num_computed_tokens + num_tokens <= request.capacity:
                draft.add(request, num_tokens)
            elif (new_block_ids := self._allocate(request, num_tokens, draft)) is not None:
                draft.add(request, num_tokens, new_block_ids)
            elif not draft.may_preempt:
                for planned, block_ids in draft.undo():
                    self._kv.take_back(planned, block_ids)
                return False
        self._record(draft)
        return True

    def _allocate(self, request: Request, num_tokens: int, draft: Draft) -> list[int] | None:
        """Blocks for a running request, others giving way; None if it had to itself, or if nobody may."""
        block_ids = self._kv.allocate(request, num_tokens)
        while block_ids is None and draft.may_preempt:
            loser = victim(self._residents.running.values())
            draft.remove(loser)
            draft.has_preempted = True
            self._preempt(loser)
            if loser is request:
                return None
            block_ids = self._kv.allocate(request, num_tokens)
        return block_ids

    def _plan_waiting(self, draft: Draft) -> None:
        """Let waiting requests enter, in order, while budget, rows and blocks last."""
        while draft.budget and len(self._waiting) and self._residents.has_free_row:
            request = self._waiting.first()
            if not self._kv.enter(request, look_up=not request.owes_prompt_logprobs):
                break
            self._waiting.remove(request)
            self._start(request, draft)

    def _plan_suspect(self, draft: Draft) -> bool:
        """Plan the suspect whose turn it is, alone. False when others have to leave first but may not."""
        if self._quarantine.alone is None:
            if not draft.may_preempt:
                return False
            for request in list(self._residents.running.values()):
                self._preempt(request)
        suspect = self._quarantine.next()
        assert suspect is not None
        if suspect.row != NO_ROW:
            return self._plan_running(draft)
        if not self._kv.enter(suspect, look_up=not suspect.owes_prompt_logprobs):
            raise AccountError(f"nothing runs, but request {suspect.request_id!r} does not fit")
        self._start(suspect, draft)
        return True

    def _start(self, request: Request, draft: Draft) -> None:
        """Give a row to a request that has its blocks, and plan its first chunk."""
        self._residents.settle(request)
        num_cached_tokens = request.num_computed_tokens
        num_tokens = min(request.num_tokens - num_cached_tokens, draft.budget, self._max_chunk)
        if self._kv.allocate(request, num_tokens) is None:
            raise AccountError("blocks that fitted a moment ago are gone")
        # Copies: an actor in this process would get the very lists that change here later.
        draft.new_rows.append(
            NewRow(
                row=request.row,
                token_ids=list(request.all_token_ids),
                num_computed_tokens=num_cached_tokens,
                block_ids=list(request.block_ids),
                sampling=request.sampling,
                num_prompt_tokens=request.num_prompt_tokens,
            )
        )
        draft.add(request, num_tokens)
        self._record(draft)
        if request.started_s is None:
            request.started_s = self._clock()
            request.num_cached_tokens = min(num_cached_tokens, request.num_prompt_tokens)
            self._tally.started(request, num_cached_tokens)

    def _record(self, draft: Draft) -> None:
        """Let the prefix cache know the blocks that this plan fills: who enters next may share them."""
        for request in draft.to_record:
            self._kv.record(request)
        draft.to_record.clear()

    def _preempt(self, request: Request) -> None:
        """Back to the waiting, to be re-added with all its tokens."""
        self._residents.leave(request)
        request.status = RequestStatus.PREEMPTED
        self._waiting.put(request)
        self._tally.num_preemptions += 1
