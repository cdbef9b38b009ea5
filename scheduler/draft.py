"""A plan in the making: the rows chosen so far, with what each computes and draws. Used by `Scheduler` alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .messages import NewRow
from .request import Request
from .step import PromptChunk

_NO_BLOCKS: list[int] = []  # one for all rows that need none; nobody changes the lists of a plan


@dataclass(slots=True)
class Draft:
    """Parallel lists over the rows. A request's counts advance when it is added, as if its step were over."""

    step_id: int
    budget: int  # tokens that the step may still compute
    may_preempt: bool  # no other step is in flight
    requests: list[Request] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    new_block_ids: list[list[int]] = field(default_factory=list)
    sample: list[bool] = field(default_factory=list)
    new_rows: list[NewRow] = field(default_factory=list)
    prompt_chunks: list[PromptChunk] = field(default_factory=list)
    to_record: list[Request] = field(default_factory=list)  # requests that fill a block for the prefix cache
    has_preempted: bool = False

    def add(self, request: Request, num_tokens: int, new_block_ids: list[int] = _NO_BLOCKS) -> None:
        """The request computes its next ``num_tokens`` tokens, and draws one if it has then caught up."""
        first = request.num_computed_tokens
        computed = first + num_tokens
        draws = computed == len(request.all_token_ids) + request.num_pending_tokens
        if draws:
            request.num_pending_tokens += 1
        if first < request.num_prompt_tokens and request.owes_prompt_logprobs:
            count = min(computed, request.num_prompt_tokens - 1) - first
            if count:
                self.prompt_chunks.append(PromptChunk(request, request.row, first + 1, count))
        if computed >= request.next_record_at:
            self.to_record.append(request)
        request.num_computed_tokens = computed
        request.last_step = self.step_id
        self.budget -= num_tokens
        self.requests.append(request)
        self.num_tokens.append(num_tokens)
        self.new_block_ids.append(new_block_ids)
        self.sample.append(draws)

    def remove(self, request: Request) -> None:
        """Forget a row, if it is in: its request has to give way. O(rows)."""
        if request not in self.requests:
            return
        index = self.requests.index(request)
        self.budget += self.num_tokens[index]
        request.num_computed_tokens -= self.num_tokens[index]
        request.num_pending_tokens -= self.sample[index]
        for column in (self.requests, self.num_tokens, self.new_block_ids, self.sample):
            del column[index]
        self.prompt_chunks = [chunk for chunk in self.prompt_chunks if chunk.request is not request]
        self.to_record = [other for other in self.to_record if other is not request]

    def undo(self) -> Iterator[tuple[Request, list[int]]]:
        """There will be no such plan: counts go back; the requests, with the blocks that they got for it."""
        while self.requests:
            request, block_ids = self.requests[-1], self.new_block_ids[-1]
            self.remove(request)
            yield request, block_ids
