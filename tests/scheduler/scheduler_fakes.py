"""A worker made of lists, and the outputs that a request has when it runs alone: the oracle of the scheduler's tests.

The next token is a checksum of every token before it *as read back from the KV blocks*, so a block with two owners,
a wrong block table or a wrong count of computed tokens changes the outputs or fails at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from ringcast.scheduler.messages import (
    AddRequest,
    KVCacheConfig,
    NewRow,
    RequestOutput,
    SamplingRule,
    StepOutputs,
    StepPlan,
    StepResult,
    StopRule,
)
from ringcast.scheduler.scheduler import Scheduler

VOCAB_SIZE = 97


def next_token(tokens: Iterable[int], seed: int) -> int:
    return zlib.crc32(f"{seed}:{list(tokens)}".encode()) % VOCAB_SIZE


def limits(
    num_blocks: int = 64,
    *,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 2048,
) -> KVCacheConfig:
    return KVCacheConfig(num_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len)


def request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 8,
    *,
    client: int = 1,
    eos: list[int] | None = None,
    stop: list[int] | None = None,
    seed: int = 0,
    outputs: list[int] | None = None,
) -> AddRequest:
    rule = StopRule(max_tokens, eos or [], stop or [])
    return AddRequest(request_id, client, prompt, SamplingRule(seed=seed), rule, outputs or [])


def solo(message: AddRequest, sizes: KVCacheConfig) -> tuple[list[int], str, int | None]:
    """Tokens, finish reason and stop reason of a request on an engine of its own."""
    tokens = list(message.prompt_token_ids)
    limit = min(len(tokens) + message.stop.max_tokens, sizes.max_model_len)
    while True:
        tokens.append(next_token(tokens, message.sampling.seed))
        outputs = tokens[len(message.prompt_token_ids) :]
        if tokens[-1] in message.stop.eos_token_ids:
            return outputs, "stop", None
        if tokens[-1] in message.stop.stop_token_ids:
            return outputs, "stop", tokens[-1]
        if len(tokens) == limit:
            return outputs, "length", None


class _Row:
    def __init__(self, new: NewRow) -> None:
        self.tokens = list(new.token_ids)
        self.num_computed = new.num_computed_tokens
        self.block_ids = list(new.block_ids)
        self.seed = new.sampling.seed


class ModelWorker:
    """Executes plans and asserts what a worker relies on."""

    def __init__(self, sizes: KVCacheConfig) -> None:
        self.sizes = sizes
        self.slots: list[int | None] = [None] * (sizes.num_blocks * sizes.block_size)
        self.rows: dict[int, _Row] = {}
        self.num_computed_tokens = 0

    def execute(self, plan: StepPlan) -> StepResult:
        sizes = self.sizes
        assert plan.rows and len(set(plan.rows)) == len(plan.rows)
        assert min(plan.num_tokens) >= 1 and sum(plan.num_tokens) <= sizes.max_num_batched_tokens
        for row in plan.freed_rows:
            del self.rows[row]
        for new in plan.new_rows:
            assert new.row not in self.rows and 0 <= new.row < sizes.max_num_seqs
            self.rows[new.row] = _Row(new)
        steps = zip(plan.rows, plan.num_tokens, plan.new_block_ids, strict=True)
        token_ids = [self._compute(*step) for step in steps]
        drawn = [i for i, draws in enumerate(plan.sample) if draws]
        for i, row in enumerate(plan.rows):
            caught_up = self.rows[row].num_computed == len(self.rows[row].tokens)
            assert caught_up == plan.sample[i]
        for i in drawn:
            self.rows[plan.rows[i]].tokens.append(token_ids[i])
        return StepResult(plan.step_id, [plan.rows[i] for i in drawn], [token_ids[i] for i in drawn])

    def _compute(self, row_number: int, num_tokens: int, new_block_ids: list[int]) -> int:
        """Write the next tokens of a row; the token that follows if it has caught up."""
        row = self.rows[row_number]
        row.block_ids += new_block_ids
        capacity = len(row.block_ids) * self.sizes.block_size
        assert row.num_computed + num_tokens <= min(len(row.tokens), capacity)
        for position in range(row.num_computed, row.num_computed + num_tokens):
            self.slots[self._slot(row, position)] = row.tokens[position]
        row.num_computed += num_tokens
        self.num_computed_tokens += num_tokens
        history = [self.slots[self._slot(row, position)] for position in range(row.num_computed)]
        assert history == row.tokens[: row.num_computed], "another request wrote into these blocks"
        return next_token(row.tokens[: row.num_computed], row.seed)

    def _slot(self, row: _Row, position: int) -> int:
        return row.block_ids[position // self.sizes.block_size] * self.sizes.block_size + (
            position % self.sizes.block_size
        )


class Collected:
    """What the frontends have been told so far. Asserts that nothing follows a request's last output."""

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}
        self.last: dict[str, RequestOutput] = {}

    def take(self, outputs: dict[int, StepOutputs]) -> None:
        for step in outputs.values():
            for output in step.each():
                self.take_one(output)

    def take_one(self, output: RequestOutput) -> None:
        assert output.request_id not in self.last
        self.token_ids.setdefault(output.request_id, []).extend(output.token_ids)
        if output.finish_reason is not None:
            self.last[output.request_id] = output


def run_all(scheduler: Scheduler, worker: ModelWorker, collected: Collected | None = None) -> Collected:
    """Step until there is nothing left to do, with the accounts checked at every step."""
    collected = collected or Collected()
    while (plan := scheduler.schedule()) is not None:
        scheduler.check()
        collected.take(scheduler.update(worker.execute(plan)))
        scheduler.check()
    return collected
