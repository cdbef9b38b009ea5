"""One request as the scheduler sees it. Changed by `Scheduler` and `KVManager` alone; knows no plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .messages import Logprobs, SamplingRule
from .prefix_cache import Chain

NO_ROW = -1
NEVER = 1 << 62  # a number of tokens that no request reaches


class RequestStatus(Enum):
    """Where a request stands. The value of a FINISHED status is the ``finish_reason`` that the user gets."""

    WAITING = "waiting"  # never ran
    RUNNING = "running"  # has a row and blocks in the worker
    PREEMPTED = "preempted"  # ran, lost row and blocks, and waits to be re-added with all its tokens
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """Tokens, limits and place of one request. Compared by identity: an id may come again later."""

    request_id: str
    client: int
    arrival: int  # unique number in order of admission
    arrival_s: float  # by the scheduler's clock
    rank: tuple[int, int]  # the lowest goes first, the highest gives way first; unique
    sampling: SamplingRule
    all_token_ids: list[int]  # prompt, then outputs
    num_prompt_tokens: int
    min_num_tokens: int  # prompt and outputs together, before which no token id ends it
    max_num_tokens: int  # prompt and outputs together: max_tokens clipped by max_model_len
    eos_token_ids: frozenset[int]
    ending_token_ids: frozenset[int]  # EOS and the ids that the user named
    chain: Chain  # what the prefix cache knows of its tokens
    status: RequestStatus = RequestStatus.WAITING
    has_ended: bool = False  # its status is a FINISHED one

    # Its place in the worker; `leave_worker` takes all of it away.
    row: int = NO_ROW
    block_ids: list[int] = field(default_factory=list)
    capacity: int = 0  # tokens that its blocks hold
    num_computed_tokens: int = 0  # their keys and values are in the blocks once the steps in flight are over
    num_pending_tokens: int = 0  # drawn by steps in flight, not known yet
    next_record_at: int = NEVER  # computed tokens with which the prefix cache gets its next block
    prompt_logprobs: list[Logprobs] = field(default_factory=list)  # of the chunks computed so far
    last_step: int = 0  # the step that last wrote into its blocks

    # What its frontend has been told, and what it has been through.
    draws_plainly: bool = False  # its next token goes out as one number, unless it ends the request
    awaits_first_output: bool = True
    num_cached_tokens: int = 0  # of its prompt, when it first ran
    started_s: float | None = None  # when it first ran
    num_losses: int = 0  # crashes of the worker while it was in flight, since its last token

    @property
    def num_tokens(self) -> int:
        """All tokens that are known."""
        return len(self.all_token_ids)

    @property
    def queue_time_s(self) -> float:
        """What it waited until it first ran; 0 while it has not."""
        return 0.0 if self.started_s is None else self.started_s - self.arrival_s

    @property
    def owes_prompt_logprobs(self) -> bool:
        """Its frontend still waits for them, so the whole prompt has to be computed."""
        return self.sampling.prompt_logprobs is not None

    def leave_worker(self) -> None:
        """It holds nothing in the worker any more; its blocks have been given back or are gone."""
        self.row = NO_ROW
        self.block_ids = []
        self.capacity = 0
        self.num_computed_tokens = 0
        self.num_pending_tokens = 0
        self.next_record_at = NEVER
        self.prompt_logprobs = []
        self.chain.restart()

    def stop_by_last_token(self) -> tuple[RequestStatus, int | None] | None:
        """The status and stop reason if the newest output token ends the request; EOS first, length last."""
        token_id = self.all_token_ids[-1]
        if token_id in self.ending_token_ids and len(self.all_token_ids) >= self.min_num_tokens:
            return RequestStatus.FINISHED_STOPPED, None if token_id in self.eos_token_ids else token_id
        if len(self.all_token_ids) >= self.max_num_tokens:
            return RequestStatus.FINISHED_LENGTH, None
        return None
