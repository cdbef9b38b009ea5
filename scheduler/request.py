"""One request as the scheduler sees it. Changed by `Scheduler` and `KVManager` alone; knows no plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .messages import SamplingRule

NO_ROW = -1


class RequestStatus(Enum):
    """Where a request stands. The value of a FINISHED status is the ``finish_reason`` that the user gets."""

    WAITING = "waiting"  # never ran
    RUNNING = "running"  # has a row and blocks in the worker
    PREEMPTED = "preempted"  # ran, lost row and blocks, and waits to be re-added with all its tokens
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"
    FINISHED_ERROR = "error"


FINISHED = frozenset(status for status in RequestStatus if status.name.startswith("FINISHED"))


@dataclass(slots=True, eq=False)
class Request:
    """Tokens, limits and place of one request. Compared by identity: an id may come again later."""

    request_id: str
    client: int
    arrival: int  # unique number in order of admission; it is also the request's name as an owner of blocks
    sampling: SamplingRule
    all_token_ids: list[int]  # prompt, then outputs
    num_prompt_tokens: int
    max_num_tokens: int  # prompt and outputs together: max_tokens clipped by max_model_len
    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0  # their keys and values are in the blocks once the step in flight is over
    row: int = NO_ROW
    block_ids: list[int] = field(default_factory=list)
    last_step: int = 0  # the step that last wrote into the blocks

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    def stop_by_last_token(self) -> tuple[RequestStatus, int | None] | None:
        """The status and stop reason if the newest output token ends the request; EOS first, length last."""
        token_id = self.all_token_ids[-1]
        if token_id in self.eos_token_ids:
            return RequestStatus.FINISHED_STOPPED, None
        if token_id in self.stop_token_ids:
            return RequestStatus.FINISHED_STOPPED, token_id
        if len(self.all_token_ids) >= self.max_num_tokens:
            return RequestStatus.FINISHED_LENGTH, None
        return None
