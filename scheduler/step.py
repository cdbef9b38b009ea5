"""A plan that the worker has not answered yet: whom it computes, and what its answer must look like."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import ResultError
from .messages import Logprobs, StepResult
from .request import Request

_INT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Prompt tokens whose log-probabilities a step owes: ``count`` from index ``first`` on."""

    request: Request
    row: int
    first: int
    count: int


@dataclass(slots=True)
class StepInFlight:
    """Made by `Scheduler` with every plan."""

    step_id: int
    requests: list[Request]  # all that it computes
    sampled: list[Request]  # those of them that draw a token
    rows: list[int]  # the rows of ``sampled``
    prompt_chunks: list[PromptChunk] = field(default_factory=list)

    def check(self, result: StepResult, vocab_size: int) -> None:
        """`ResultError` when ``result`` does not answer this plan. O(rows), and nothing but C loops for most."""
        if result.step_id != self.step_id or result.rows != self.rows:
            raise ResultError(
                f"the worker answered step {result.step_id} with rows {result.rows}; the oldest in flight is step "
                f"{self.step_id} with rows {self.rows}"
            )
        drawn = result.token_ids
        fits = len(drawn) == len(self.rows)
        if result.errors is not None:  # rows that failed have no token
            fits = fits and len(result.errors) == len(self.rows)
            drawn = [token_id for token_id, error in zip(drawn, result.errors, strict=False) if error is None]
        if not fits or (drawn and not (min(drawn) >= 0 and max(drawn) < vocab_size)):
            raise ResultError(
                f"step {self.step_id} drew {result.token_ids} for {len(self.rows)} rows (errors: {result.errors}): one "
                f"id below {vocab_size} a row was due"
            )
        self._check_prompt_logprobs(result)

    def check_logprobs(self, result: StepResult) -> None:
        """The same for log-probabilities of drawn tokens: to be called when anybody asked for them, or got some."""
        given = result.logprobs or [None] * len(self.rows)
        if len(given) != len(self.rows):
            raise ResultError(f"step {self.step_id} has {len(given)} logprobs for {len(self.rows)} rows")
        errors = result.errors or [None] * len(self.rows)
        for row, request, logprobs, error in zip(self.rows, self.sampled, given, errors, strict=True):
            count = request.sampling.logprobs if error is None else None
            if not (logprobs is None if count is None else logprobs is not None and _fits(logprobs, 1, count)):
                raise ResultError(f"step {self.step_id} has other logprobs than row {row} asked for")

    def _check_prompt_logprobs(self, result: StepResult) -> None:
        given = result.prompt_logprobs or []
        due = self.prompt_chunks
        if [(chunk.row, chunk.first) for chunk in due] != [(one.row, one.first) for one in given]:
            raise ResultError(
                f"step {self.step_id} has prompt logprobs for rows {[one.row for one in given]}, but "
                f"{[chunk.row for chunk in due]} were due"
            )
        for chunk, one in zip(due, given, strict=True):
            if not _fits(one.logprobs, chunk.count, chunk.request.sampling.prompt_logprobs or 0):
                raise ResultError(
                    f"step {self.step_id} has other prompt logprobs for row {chunk.row} than the {chunk.count} "
                    f"positions that were due"
                )


def join(pieces: list[Logprobs], width: int) -> Logprobs:
    """Log-probabilities of successive chunks as one."""
    return Logprobs(
        width,
        b"".join(piece.token_ids for piece in pieces),
        b"".join(piece.logprobs for piece in pieces),
        b"".join(piece.ranks for piece in pieces),
    )


def _fits(logprobs: Logprobs, positions: int, count: int) -> bool:
    candidates = positions * (count + 1) * _INT32_BYTES
    return (
        logprobs.width == count + 1
        and len(logprobs.token_ids) == len(logprobs.logprobs) == candidates
        and len(logprobs.ranks) == positions * _INT32_BYTES
    )
