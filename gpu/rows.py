"""`Rows`: the worker's state of every running request, in fixed rows of arrays. Owned by the runner; knows no model.

A request keeps its row from NewRow until it is freed. What comes from outside (token ids, block ids, counts) is checked
here, once, when it enters; a step then only gathers by row index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringcast.scheduler.messages import KVCacheConfig, NewRow, StepPlan

from .errors import KVCacheMemoryError, PlanError
from .machine import available_memory
from .sampling_rules import NONE, SamplingRows, SamplingRules, checked_ids


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Prompt tokens of a row whose log-probabilities this step foretells: ``token_ids`` from index ``first`` on."""

    row: int
    first: int
    token_ids: NDArray[np.int64]
    count: int  # how many of the likeliest tokens are told of, or ALL


@dataclass(frozen=True, slots=True)
class StepArrays:
    """What a step computes, as arrays; the fields are those of `Batch`.

    ``sampled`` are the rows to draw for: the first of ``logit_tokens`` are theirs. Those of ``prompt_parts`` follow.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    query_starts: NDArray[np.int32]
    kv_lengths: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    logit_tokens: NDArray[np.int64]
    sampled: NDArray[np.int64]
    prompt_parts: list[PromptPart]


class Rows:
    """Tokens, progress, blocks and sampling rule of up to ``max_num_seqs`` requests."""

    def __init__(self, config: KVCacheConfig, vocab_size: int) -> None:
        self._config = config
        self._vocab_size = vocab_size
        rows, length = config.max_num_seqs, config.max_model_len
        max_blocks = -(-length // config.block_size)
        needed, available = rows * (length + 1 + max_blocks) * 4, available_memory()
        if needed > available:  # asked before: memory that is not there is missed only when it is written
            raise KVCacheMemoryError(
                f"no memory for the tokens of max_num_seqs={rows} requests of max_model_len={length}: they need "
                f"{needed / 2**30:.2f} GiB, {available / 2**30:.2f} GiB available; lower one of them"
            )
        self._in_use = np.zeros(rows, np.bool_)
        # One place more than the limit: the last token drawn is kept, though it will never be computed.
        self._token_ids = np.zeros((rows, length + 1), np.int32)
        self._num_tokens = np.zeros(rows, np.int64)
        self._num_computed = np.zeros(rows, np.int64)
        self._block_tables = np.zeros((rows, max_blocks), np.int32)
        self._num_blocks = np.zeros(rows, np.int64)
        self._num_prompt = np.zeros(rows, np.int64)
        self._rules = SamplingRules(rows, vocab_size)

    def apply(self, plan: StepPlan) -> None:
        """Forget the freed rows, enter the new ones, append the blocks. `PlanError` if any of it does not fit."""
        where = f"step {plan.step_id}"
        for row in plan.freed_rows:
            if not self._holds(row):
                raise PlanError(f"{where} frees row {row}, which holds no request")
            self._in_use[row] = False
        for new_row in plan.new_rows:
            self._enter(new_row, where)
        if not len(plan.rows) == len(plan.num_tokens) == len(plan.new_block_ids) == len(plan.sample):
            raise PlanError(
                f"{where} has {len(plan.rows)} rows, {len(plan.num_tokens)} counts, {len(plan.new_block_ids)} block "
                f"lists and {len(plan.sample)} sample flags; they must be as many"
            )
        for row, block_ids in zip(plan.rows, plan.new_block_ids, strict=True):
            if not self._holds(row):
                raise PlanError(f"{where} computes row {row}, which holds no request")
            if block_ids:
                self._append_blocks(row, block_ids, f"{where}, row {row}")

    def gather(self, plan: StepPlan) -> StepArrays:
        """The inputs of an applied plan, which has at least one row. `PlanError` if its counts do not fit."""
        rows = np.array(plan.rows, np.int64)
        counts = np.array(plan.num_tokens, np.int64)
        sample = np.array(plan.sample, np.bool_)
        starts = self._num_computed[rows]
        ends = starts + counts
        self._check_counts(plan, rows, counts, ends, sample)
        query_starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=query_starts[1:])
        row_of_token = np.repeat(rows, counts)
        positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], counts)
        block_size = self._config.block_size
        blocks = self._block_tables[row_of_token, positions // block_size].astype(np.int64)
        longest = -(-int(ends.max()) // block_size)
        parts, part_tokens = self._prompt_parts(rows, starts, ends, query_starts)
        return StepArrays(
            token_ids=self._token_ids[row_of_token, positions].astype(np.int64),
            positions=positions,
            slots=blocks * block_size + positions % block_size,
            query_starts=query_starts.astype(np.int32),
            kv_lengths=ends.astype(np.int32),
            block_tables=np.ascontiguousarray(self._block_tables[rows, :longest]),
            logit_tokens=np.concatenate([query_starts[1:][sample] - 1, *part_tokens]),
            sampled=rows[sample],
            prompt_parts=parts,
        )

    def rules(self, rows: NDArray[np.int64]) -> SamplingRows:
        """The sampling rules for drawing the next token of each of ``rows``."""
        return self._rules.gather(rows, self._token_ids, self._num_tokens, self._num_prompt)

    def advance(self, plan: StepPlan, sampled: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Note that the plan's tokens are computed and that ``sampled`` rows drew ``token_ids``.

        A row that could draw none (-1) goes on with token 0: the core ends it, but may have planned it once more.
        """
        self._num_computed[plan.rows] += plan.num_tokens
        self._token_ids[sampled, self._num_tokens[sampled]] = np.maximum(token_ids, 0)
        self._num_tokens[sampled] += 1

    def _holds(self, row: int) -> bool:
        return 0 <= row < len(self._in_use) and bool(self._in_use[row])

    def _enter(self, new: NewRow, where: str) -> None:
        where = f"{where}, new row {new.row}"
        if not 0 <= new.row < len(self._in_use):
            raise PlanError(f"{where}: there are rows 0 to {len(self._in_use) - 1}")
        if self._in_use[new.row]:
            raise PlanError(f"{where}: the row holds another request, which must be freed first")
        tokens, limit = len(new.token_ids), self._config.max_model_len
        if not 1 <= tokens <= limit:
            raise PlanError(f"{where} has {tokens} tokens; 1 to {limit} are possible")
        if not 0 <= new.num_prompt_tokens <= tokens:
            raise PlanError(f"{where}: {new.num_prompt_tokens} of {tokens} tokens cannot be the prompt")
        if not 0 <= new.num_computed_tokens < tokens:
            raise PlanError(f"{where}: {new.num_computed_tokens} of {tokens} tokens cannot be computed already")
        token_ids = checked_ids(new.token_ids, self._vocab_size, "token id", where)
        if len(new.block_ids) * self._config.block_size < new.num_computed_tokens:
            raise PlanError(f"{where}: {len(new.block_ids)} blocks do not hold {new.num_computed_tokens} tokens")
        self._rules.enter(new.row, new.sampling, where)
        self._num_blocks[new.row] = 0
        self._append_blocks(new.row, new.block_ids, where)
        self._token_ids[new.row, :tokens] = token_ids
        self._num_tokens[new.row] = tokens
        self._num_prompt[new.row] = new.num_prompt_tokens
        self._num_computed[new.row] = new.num_computed_tokens
        self._in_use[new.row] = True

    def _prompt_parts(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        query_starts: NDArray[np.int64],
    ) -> tuple[list[PromptPart], list[NDArray[np.int64]]]:
        """Which prompt tokens are foretold for whom, and by which tokens of the batch."""
        counts = self._rules.prompt_logprobs(rows)
        parts: list[PromptPart] = []
        part_tokens: list[NDArray[np.int64]] = []
        for index in np.nonzero(counts != NONE)[0].tolist():
            row, start = int(rows[index]), int(starts[index])
            stop = min(int(ends[index]), int(self._num_prompt[row]) - 1)  # the last prompt token foretells no other
            if stop > start:
                foretold = self._token_ids[row, start + 1 : stop + 1].astype(np.int64)
                parts.append(PromptPart(row, start + 1, foretold, int(counts[index])))
                part_tokens.append(np.arange(stop - start) + query_starts[index])
        return parts, part_tokens

    def _append_blocks(self, row: int, block_ids: Sequence[int], where: str) -> None:
        start = int(self._num_blocks[row])
        end = start + len(block_ids)
        if end > self._block_tables.shape[1]:
            raise PlanError(f"{where} would have {end} blocks; a row holds {self._block_tables.shape[1]}")
        self._block_tables[row, start:end] = checked_ids(block_ids, self._config.num_blocks, "block id", where)
        self._num_blocks[row] = end

    def _check_counts(
        self, plan: StepPlan, rows: NDArray[Any], counts: NDArray[Any], ends: NDArray[Any], sample: NDArray[Any]
    ) -> None:
        where = f"step {plan.step_id}"
        if len(set(plan.rows)) != len(rows):
            raise PlanError(f"{where} computes a row twice: {plan.rows}")
        if counts.sum() > self._config.max_num_batched_tokens:
            raise PlanError(f"{where} has {counts.sum()} tokens; the limit is {self._config.max_num_batched_tokens}")
        known = self._num_tokens[rows]
        room = np.minimum(self._num_blocks[rows] * self._config.block_size, self._config.max_model_len)
        for wrong, what in (
            (counts < 1, "no tokens to compute"),
            (ends > known, "more tokens to compute than it knows"),
            (ends > room, "more tokens than its blocks and the model's context hold"),
            (sample & (ends < known), "a token to draw before it has caught up"),
        ):
            if wrong.any():
                index = int(wrong.argmax())
                raise PlanError(
                    f"{where} gives row {rows[index]} {what}: {counts[index]} more after "
                    f"{ends[index] - counts[index]} of {known[index]}, with room for {room[index]}"
                )
