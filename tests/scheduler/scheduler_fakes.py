"""A worker made of lists, and the outputs that a request has when it runs alone: the oracle of the scheduler's tests.

As in a model, what a position stores depends on every token before it: the value of a slot is made of the token there
and of the value before *as read back from the KV blocks*, and the next token of all values. So a block with two owners,
a block of another prefix, a wrong block table or a wrong count of computed tokens changes the outputs or fails at once.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.messages import (
    AddRequest,
    KVCacheConfig,
    Logprobs,
    NewRow,
    PromptLogprobs,
    RequestOutput,
    SamplingRule,
    StepOutputs,
    StepPlan,
    StepResult,
    StopRule,
)
from ringcast.scheduler.scheduler import Scheduler

VOCAB_SIZE = 97


class PoisonError(Exception):
    """The worker met the token that kills it."""


def value_after(value: int, token_id: int) -> int:
    return zlib.crc32(b"%d:%d" % (value, token_id))


def values_of(tokens: Iterable[int], value: int = 0) -> list[int]:
    """What the slots of a sequence hold, behind a slot that holds ``value``."""
    values = []
    for token_id in tokens:
        value = value_after(value, token_id)
        values.append(value)
    return values


def next_token(value: int, seed: int) -> int:
    return zlib.crc32(b"%d:%d" % (seed, value)) % VOCAB_SIZE


def logprobs_of(token_ids: list[int], values: list[int], count: int) -> Logprobs:
    """Made-up log-probabilities of ``token_ids``, which stand behind slots with ``values``."""
    ids = [i for token_id in token_ids for i in (token_id, *range(count))]
    numbers = [-float(value % 1000) for value in values for _ in range(count + 1)]
    ranks = [1 + value % VOCAB_SIZE for value in values]
    return Logprobs(
        count + 1,
        struct.pack(f"{len(ids)}i", *ids),
        struct.pack(f"{len(numbers)}f", *numbers),
        struct.pack(f"{len(ranks)}i", *ranks),
    )


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
    min_tokens: int = 0,
    seed: int = 0,
    outputs: list[int] | None = None,
    priority: int = 0,
    salt: str | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> AddRequest:
    rule = StopRule(max_tokens, eos or [], stop or [], min_tokens)
    sampling = SamplingRule(seed=seed, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    return AddRequest(request_id, client, prompt, sampling, rule, outputs or [], priority, salt)


def solo(message: AddRequest, sizes: KVCacheConfig) -> tuple[list[int], str, int | None]:
    """Tokens, finish reason and stop reason of a request on an engine of its own."""
    stop = message.stop
    ending = {*stop.eos_token_ids, *stop.stop_token_ids}
    num_prompt_tokens = len(message.prompt_token_ids)
    limit = min(num_prompt_tokens + stop.max_tokens, sizes.max_model_len) - num_prompt_tokens
    value = values_of(message.prompt_token_ids)[-1]
    outputs: list[int] = []
    while True:
        outputs.append(_draw(value, message.sampling.seed, ending if len(outputs) < stop.min_tokens else set()))
        value = value_after(value, outputs[-1])
        if outputs[-1] in ending and len(outputs) >= stop.min_tokens:
            return outputs, "stop", None if outputs[-1] in stop.eos_token_ids else outputs[-1]
        if len(outputs) == limit:
            return outputs, "length", None


def _draw(value: int, seed: int, forbidden: Iterable[int]) -> int:
    """The next token; the nearest that is allowed instead of a forbidden one."""
    token_id = next_token(value, seed)
    while token_id in forbidden:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


class _Row:
    def __init__(self, new: NewRow) -> None:
        self.tokens = list(new.token_ids)
        self.values = values_of(self.tokens)  # what the slots of its tokens have to hold
        self.num_computed = new.num_computed_tokens
        self.block_ids = list(new.block_ids)
        self.num_prompt_tokens = new.num_prompt_tokens
        self.rule = new.sampling

    def append(self, token_id: int) -> None:
        self.values.append(value_after(self.values[-1], token_id))
        self.tokens.append(token_id)

    def draw(self) -> int:
        too_few = len(self.tokens) - self.num_prompt_tokens < self.rule.min_tokens
        return _draw(self.values[-1], self.rule.seed, (self.rule.stop_token_ids or ()) if too_few else ())


class ModelWorker:
    """Executes plans and asserts what a worker relies on. Computing ``poison`` raises `PoisonError`."""

    def __init__(self, sizes: KVCacheConfig, poison: int | None = None) -> None:
        self.sizes = sizes
        self.slots: list[int | None] = [None] * (sizes.num_blocks * sizes.block_size)
        self.rows: dict[int, _Row] = {}
        self.num_computed_tokens = 0
        self.step_id = 0
        self._poison = poison

    def execute(self, plan: StepPlan) -> StepResult:
        sizes = self.sizes
        assert plan.step_id > self.step_id
        self.step_id = plan.step_id
        assert plan.rows and len(set(plan.rows)) == len(plan.rows)
        assert min(plan.num_tokens) >= 1 and sum(plan.num_tokens) <= sizes.max_num_batched_tokens
        for row_number in plan.freed_rows:
            del self.rows[row_number]
        for new in plan.new_rows:
            assert new.row not in self.rows and 0 <= new.row < sizes.max_num_seqs
            assert 0 <= new.num_computed_tokens < len(new.token_ids)
            self.rows[new.row] = _Row(new)
        rows = [self.rows[row_number] for row_number in plan.rows]
        for row, num_tokens, new_block_ids in zip(rows, plan.num_tokens, plan.new_block_ids, strict=True):
            row.block_ids += new_block_ids
            assert row.num_computed + num_tokens <= min(len(row.tokens), len(row.block_ids) * sizes.block_size)
        # Everything is written before anything is read, as in a layer of a model.
        for row, num_tokens in zip(rows, plan.num_tokens, strict=True):
            self._write(row, num_tokens)
        prompt_logprobs = []
        for row_number, row, num_tokens in zip(plan.rows, rows, plan.num_tokens, strict=True):
            first = row.num_computed
            row.num_computed += num_tokens
            self._read(row)
            end = min(row.num_computed + 1, row.num_prompt_tokens)
            if row.rule.prompt_logprobs is not None and first + 1 < end:
                logprobs = logprobs_of(
                    row.tokens[first + 1 : end], row.values[first : end - 1], row.rule.prompt_logprobs
                )
                prompt_logprobs.append(PromptLogprobs(row_number, first + 1, logprobs))
        drawing = []
        for row_number, row, draws in zip(plan.rows, rows, plan.sample, strict=True):
            assert draws == (row.num_computed == len(row.tokens))
            if draws:
                drawing.append((row_number, row, row.draw()))
        logprobs = [
            None if row.rule.logprobs is None else logprobs_of([token_id], row.values[-1:], row.rule.logprobs)
            for _, row, token_id in drawing
        ]
        for _, row, token_id in drawing:
            row.append(token_id)
        return StepResult(
            plan.step_id,
            [row_number for row_number, _, _ in drawing],
            [token_id for _, _, token_id in drawing],
            logprobs if any(logprobs) else None,
            prompt_logprobs or None,
        )

    def _write(self, row: _Row, num_tokens: int) -> None:
        before = self.slots[self._slot(row, row.num_computed - 1)] if row.num_computed else 0
        assert before is not None, "a block counts as computed that nobody wrote"
        tokens = row.tokens[row.num_computed : row.num_computed + num_tokens]
        if self._poison in tokens:
            raise PoisonError
        for position, value in enumerate(values_of(tokens, before), row.num_computed):
            self.slots[self._slot(row, position)] = value
        self.num_computed_tokens += num_tokens

    def _read(self, row: _Row) -> None:
        size = self.sizes.block_size
        history: list[int | None] = []
        for block_id in row.block_ids:
            history += self.slots[block_id * size : (block_id + 1) * size]
        assert history[: row.num_computed] == row.values[: row.num_computed], "these blocks hold something else"

    def _slot(self, row: _Row, position: int) -> int:
        size = self.sizes.block_size
        return row.block_ids[position // size] * size + position % size


class Collected:
    """What the frontends have been told so far. Asserts that nothing comes twice, out of turn or after the end."""

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}
        self.first: dict[str, RequestOutput] = {}
        self.last: dict[str, RequestOutput] = {}
        self.logprobs: dict[str, list[Logprobs]] = {}
        self.known: dict[str, int] = {}  # outputs that a request was added with

    def take(self, outputs: dict[int, StepOutputs]) -> None:
        for step in outputs.values():
            assert step.outputs or step.request_ids, "an empty message"
            for output in step.each():
                self.take_one(output)

    def take_one(self, output: RequestOutput) -> None:
        request_id = output.request_id
        assert request_id not in self.last
        tokens = self.token_ids.setdefault(request_id, [])
        if output.error is None or tokens:
            assert output.start == self.known.get(request_id, 0) + len(tokens)
        tokens.extend(output.token_ids)
        if output.token_ids:
            self.first.setdefault(request_id, output)
        if output.logprobs is not None:
            self.logprobs.setdefault(request_id, []).append(output.logprobs)
        if output.finish_reason is not None:
            self.last[request_id] = output


class Engine:
    """A scheduler and its worker, stepped by hand, with the accounts checked at every turn."""

    def __init__(
        self,
        sizes: KVCacheConfig | None = None,
        config: SchedulerConfig = SchedulerConfig(),  # noqa: B008
        *,
        poison: int | None = None,
    ) -> None:
        self.sizes = sizes or limits()
        self.scheduler = Scheduler(self.sizes, VOCAB_SIZE, config)
        self.worker = ModelWorker(self.sizes, poison)
        self.collected = Collected()
        self.plans: list[StepPlan] = []  # in flight
        self._poison = poison

    def add(self, *messages: AddRequest) -> None:
        """Queue requests that are not refused."""
        for message in messages:
            self.collected.known[message.request_id] = len(message.output_token_ids)
            output = self.scheduler.add(message)
            assert output is None, output
            self.scheduler.check()

    def plan(self) -> StepPlan:
        """Begin a step, which must be possible."""
        plan = self.scheduler.schedule()
        assert plan is not None
        self.scheduler.check()
        self.plans.append(plan)
        return plan

    def finish(self, plan: StepPlan | None = None) -> dict[int, StepOutputs]:
        """End the oldest step in flight, which is ``plan`` if that is given."""
        oldest = self.plans.pop(0)
        assert plan is None or plan is oldest
        outputs = self.scheduler.update(self.worker.execute(oldest))
        self.scheduler.check()
        self.collected.take(outputs)
        return outputs

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.plan()
            self.finish()

    def run(self, in_flight: int = 1) -> Collected:
        """Step until there is nothing left to do, with so many plans in flight where there are."""
        while True:
            while len(self.plans) < in_flight and (plan := self.scheduler.schedule()) is not None:
                self.scheduler.check()
                self.plans.append(plan)
            if not self.plans:
                return self.collected
            self.finish()

    def abort(self, *request_ids: str) -> dict[int, StepOutputs]:
        outputs = self.scheduler.abort(request_ids)
        self.collected.take(outputs)
        self.scheduler.check()
        return outputs

    def lose_worker(self, cause: str = "crashed", num_blocks: int | None = None, *, is_evidence: bool = True) -> None:
        """The worker dies and is there again, perhaps with fewer blocks."""
        self.collected.take(self.scheduler.worker_lost(cause, is_evidence=is_evidence))
        self.plans.clear()
        self.scheduler.check()
        assert self.scheduler.schedule() is None
        num_blocks = num_blocks or self.sizes.num_blocks
        self.sizes = KVCacheConfig(
            num_blocks,
            self.sizes.block_size,
            self.sizes.max_num_seqs,
            self.sizes.max_num_batched_tokens,
            self.sizes.max_model_len,
        )
        self.worker = ModelWorker(self.sizes, self._poison)
        self.collected.take(self.scheduler.worker_ready(num_blocks))
        self.scheduler.check()

    def run_through_losses(self) -> Collected:
        """`run`, with a new worker whenever one meets its poison."""
        while True:
            try:
                return self.run()
            except PoisonError:
                self.lose_worker("poisoned")

    def expect_solo(self, *messages: AddRequest) -> None:
        """These requests have ended like alone."""
        for message in messages:
            tokens, reason, stop_reason = solo(message, self.sizes)
            known = len(message.output_token_ids)
            last = self.collected.last[message.request_id]
            assert last.error is None, last
            assert message.output_token_ids + self.collected.token_ids[message.request_id] == tokens
            assert (last.finish_reason, last.stop_reason) == (reason, stop_reason)
            assert known <= len(tokens)

    def expect_empty(self) -> None:
        """Nothing is held or queued."""
        now = self.scheduler.statistics()
        assert (now.num_running, now.num_waiting, now.num_free_blocks) == (0, 0, self.sizes.num_blocks)
        assert self.scheduler.num_in_flight == 0
