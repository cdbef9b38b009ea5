"""Messages between frontend, engine core and worker: the one module that scheduler and gpu share.

Plain frozen dataclasses, registered with the codec, and the two actor interfaces whose methods carry them.
Nothing here imports torch, and nothing here has behaviour.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import ringcast.actors as rt
from ringcast.channels.codec import message


@message(32)
@dataclass(frozen=True, slots=True)
class SamplingRule:
    """How the worker draws a request's next token.

    ``temperature`` 0 is greedy. ``top_k`` 0 keeps the whole vocabulary. ``seed`` is always set: the noise of
    a draw is a pure function of (seed, position, token id).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@message(33)
@dataclass(frozen=True, slots=True)
class StopRule:
    """When the scheduler ends a request: by count, by an EOS id of the model, or by an id the user named."""

    max_tokens: int
    eos_token_ids: list[int]  # empty when the user asked to ignore EOS
    stop_token_ids: list[int]


@message(34)
@dataclass(frozen=True, slots=True)
class AddRequest:
    """Frontend -> core: run this. ``prompt_token_ids`` is never empty and already validated."""

    request_id: str
    client: int  # the number that `attach` gave to the frontend; outputs go there
    prompt_token_ids: list[int]
    sampling: SamplingRule
    stop: StopRule
    output_token_ids: list[int]  # tokens generated earlier (a re-added request); empty for a new one


@message(35)
@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to one request. The last one has a ``finish_reason``.

    ``finish_reason``: "stop" (EOS, or ``stop_reason`` names the stop id), "length", "abort", "error"
    (``error`` says what happened, in one line for the user).
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0


@message(36)
@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Core -> frontend: all requests of that frontend that a step touched, in one message."""

    step_id: int
    outputs: list[RequestOutput]


@message(37)
@dataclass(frozen=True, slots=True)
class NewRow:
    """A request enters the worker, or enters it again: everything that its row needs.

    ``token_ids`` are all tokens known so far, prompt and outputs alike (re-adding after a preemption or a
    crash is the same message). ``num_computed_tokens`` of them already have their keys and values in
    ``block_ids``.
    """

    row: int
    token_ids: list[int]
    num_computed_tokens: int
    block_ids: list[int]
    sampling: SamplingRule


@message(38)
@dataclass(frozen=True, slots=True)
class StepPlan:
    """Core -> worker: one step.

    ``freed_rows`` are forgotten first, then ``new_rows`` are entered. ``rows[i]`` computes its next
    ``num_tokens[i]`` tokens; ``new_block_ids[i]`` are appended to its block table before that (blocks of a
    new row come in its NewRow instead). ``sample[i]`` says that the row has then caught up, so its next token
    is drawn. Decode rows carry no token ids: the worker keeps the token that it sampled last.
    """

    step_id: int
    freed_rows: list[int]
    new_rows: list[NewRow]
    rows: list[int]
    num_tokens: list[int]
    new_block_ids: list[list[int]]
    sample: list[bool]


@message(39)
@dataclass(frozen=True, slots=True)
class StepResult:
    """Worker -> core: the tokens drawn in a step, for the rows with ``sample`` set, in plan order."""

    step_id: int
    rows: list[int]
    token_ids: list[int]


@message(40)
@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Worker -> core: what the loaded model needs per block and what memory there is for blocks."""

    bytes_per_block: int
    available_bytes: int
    max_model_len: int  # the model's own limit (context length)
    vocab_size: int


@message(41)
@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """Core -> worker: allocate this. Repeating it forgets every row (a new core attaches so)."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@message(42)
@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Core -> frontend, when it attaches: the limits that admission checks."""

    client: int
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int


@message(43)
@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """A snapshot of the scheduler's accounts."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_preemptions: int
    num_generated_tokens: int


class WorkerInterface(rt.BlockingActor):
    """What the core asks of a worker. `ringcast.gpu` implements it; tests have fakes."""

    @rt.call
    @abstractmethod
    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """Tell the size of a block and the memory that is left for blocks, in bytes."""

    @rt.call
    @abstractmethod
    def initialize_from_config(self, config: KVCacheConfig) -> None:
        """Allocate the KV cache and the rows; forget everything that was in them."""

    @rt.call
    @abstractmethod
    def execute_model(self, plan: StepPlan) -> StepResult:
        """Run one step and draw the tokens of the rows that caught up."""


class FrontendInterface(rt.Actor):
    """What the core tells a frontend."""

    @rt.call
    @abstractmethod
    async def deliver(self, outputs: StepOutputs) -> None:
        """Take the new tokens of a step. Sent as a cast."""
