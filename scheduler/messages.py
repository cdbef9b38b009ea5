"""Messages between frontend, engine core and worker: the one module that scheduler and gpu share.

Plain frozen dataclasses, registered with the codec, and the two actor interfaces whose methods carry them.
Nothing here imports torch or decides anything. New fields go last and have defaults: old senders lack them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import ringcast.actors as rt
from ringcast.channels.codec import message


@message(32)
@dataclass(frozen=True, slots=True)
class SamplingRule:
    """How the worker draws a request's next token. Every default is neutral; every id is below the vocabulary's size.

    ``temperature`` 0 is greedy. ``top_k`` 0 keeps the whole vocabulary. ``seed`` is always set: the noise of
    a draw is a pure function of (seed, position, token id). Presence and frequency penalties count the output tokens of
    the row, the repetition penalty its prompt too (``NewRow.num_prompt_tokens`` tells them apart).

    ``logprobs`` and ``prompt_logprobs`` ask for `Logprobs` of drawn and of prompt tokens: None for none, else how many
    of the most likely tokens beside the token itself, 0 to the vocabulary's size.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[int, float]] | None = None  # (token id, what is added to its logit); pairs arrive as lists
    allowed_token_ids: list[int] | None = None  # nothing else may be drawn; never empty
    bad_words: list[list[int]] | None = None  # the last token of such a sequence is not drawn behind the others
    min_tokens: int = 0  # before the row has so many output tokens none of ``stop_token_ids`` is drawn: both are
    stop_token_ids: list[int] | None = None  # filled in at admission from the `StopRule`, EOS ids included
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@message(33)
@dataclass(frozen=True, slots=True)
class StopRule:
    """When the scheduler ends a request: by count, by an EOS id of the model, or by an id the user named.

    No id ends it while it has fewer than ``min_tokens`` output tokens (the prompt does not count). The worker does not
    draw such an id before there are ``min_tokens`` outputs (`SamplingRule`), so the first that can end it follows them.
    """

    max_tokens: int
    eos_token_ids: list[int]  # empty when the user asked to ignore EOS
    stop_token_ids: list[int]
    min_tokens: int = 0


@message(34)
@dataclass(frozen=True, slots=True)
class AddRequest:
    """Frontend -> core: run this. ``prompt_token_ids`` is never empty and already validated.

    A request that was generated in part before, by an engine core that died, is added again with its
    ``output_token_ids``: it goes on behind them, and they count for ``max_tokens``, ``min_tokens`` and penalties. Its
    ``sampling.prompt_logprobs`` is None if they have been delivered.
    """

    request_id: str
    client: int  # the number that `attach` gave to the frontend; outputs go there
    prompt_token_ids: list[int]
    sampling: SamplingRule
    stop: StopRule
    output_token_ids: list[int]  # tokens generated earlier (a re-added request); empty for a new one
    priority: int = 0  # lower is sooner; only the policy "priority" looks at it
    cache_salt: str | None = None  # only requests of the same salt share cached KV blocks


@message(44)
@dataclass(frozen=True, slots=True)
class Logprobs:
    """Raw log-probabilities (of the model's logits, before any sampling rule) at successive positions of one request.

    Each position has ``width`` candidates: first the token that stands there, then the ``width - 1`` most likely of the
    vocabulary, best first, ties by the lower id (so the token itself may come twice). Arrays in native byte order;
    read them with ``memoryview(x).cast("i")`` or ``numpy.frombuffer``.
    """

    width: int
    token_ids: bytes  # int32 [positions, width]
    logprobs: bytes  # float32 [positions, width]
    ranks: bytes  # int32 [positions]: 1 + how many tokens are more likely than the one that stands there


@message(35)
@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to one request. The last one has a ``finish_reason``.

    ``finish_reason``: "stop" (EOS, or ``stop_reason`` names the stop id), "length", "abort", "error"
    (``error`` says what happened, in one line for the user). ``num_cached_tokens`` and ``queue_time_s`` come with the
    first output that has a token.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0  # of the prompt, whose keys and values were in the prefix cache when it first ran
    start: int = 0  # output tokens of the request before these: a receiver that has more drops what it has
    logprobs: Logprobs | None = None  # of ``token_ids``, if asked for
    prompt_logprobs: Logprobs | None = None  # of the prompt's tokens but the first, whole, once, if asked for
    queue_time_s: float = 0.0  # from the request's arrival to the step that it first ran in


@message(36)
@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Core -> frontend: all requests of that frontend that a step touched, in one message.

    A request that drew one token and has no more to tell stands in the columns, which cost a fortieth of
    `RequestOutput` on the way; every other one is in ``outputs``. `each` gives all as `RequestOutput`.
    """

    step_id: int
    outputs: list[RequestOutput]
    request_ids: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)  # one for each of ``request_ids``
    starts: list[int] = field(default_factory=list)  # as `RequestOutput.start`, likewise

    def each(self) -> Iterator[RequestOutput]:
        """Every request's output, whichever form it came in."""
        yield from self.outputs
        for request_id, token_id, start in zip(self.request_ids, self.token_ids, self.starts, strict=True):
            yield RequestOutput(request_id, [token_id], start=start)


@message(37)
@dataclass(frozen=True, slots=True)
class NewRow:
    """A request enters the worker, or enters it again: everything that its row needs.

    ``token_ids`` are all tokens known so far, prompt and outputs alike (re-adding after a preemption or a
    crash is the same message). ``num_computed_tokens`` of them already have their keys and values in
    ``block_ids``: the first blocks may be shared with other rows, which read them only. Those keys and values were
    planned by an earlier step, or by this one for another row: within a step every layer writes all of them before
    any row attends.
    """

    row: int
    token_ids: list[int]
    num_computed_tokens: int
    block_ids: list[int]
    sampling: SamplingRule
    num_prompt_tokens: int = 0  # the first tokens of ``token_ids``; the others are outputs


@message(38)
@dataclass(frozen=True, slots=True)
class StepPlan:
    """Core -> worker: one step.

    ``freed_rows`` are forgotten first, then ``new_rows`` are entered. ``rows[i]`` computes its next
    ``num_tokens[i]`` tokens; ``new_block_ids[i]`` are appended to its block table before that (blocks of a
    new row come in its NewRow instead). ``sample[i]`` says that the row has then caught up, so its next token
    is drawn. Decode rows carry no token ids: the worker keeps the token that it sampled last.

    The next plan may come before this one's result was looked at, so a worker runs plans strictly in order and needs
    nothing from the core in between. A row may turn out to have ended one step before: its draw is dropped.
    """

    step_id: int
    freed_rows: list[int]
    new_rows: list[NewRow]
    rows: list[int]
    num_tokens: list[int]
    new_block_ids: list[list[int]]
    sample: list[bool]


@message(45)
@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Worker -> core: log-probabilities of the prompt tokens from index ``first`` on that a step's chunk foretold.

    Computing the tokens [a, b) foretells those at [a + 1, b + 1) that belong to the prompt; so every prompt token but
    the first comes once, in order, chunk after chunk. The scheduler asks only rows that compute from 0.
    """

    row: int
    first: int
    logprobs: Logprobs


@message(39)
@dataclass(frozen=True, slots=True)
class StepResult:
    """Worker -> core: the tokens drawn in a step, for the rows with ``sample`` set, in plan order."""

    step_id: int
    rows: list[int]
    token_ids: list[int]
    logprobs: list[Logprobs | None] | None = None  # one position for each of ``rows`` that asked; None: nobody did
    prompt_logprobs: list[PromptLogprobs] | None = None  # of any rows of the plan that asked; None: nobody did
    # For each of ``rows`` None, or in one line why nothing could be drawn (NaN in its logits, or its rule forbids every
    # token): its token id is then -1, and the request cannot go on. None: all were drawn.
    errors: list[str | None] | None = None


@message(40)
@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Worker -> core: what the loaded model needs per block and what memory there is for blocks."""

    bytes_per_block: int
    available_bytes: int
    max_model_len: int  # the model's own limit (context length)
    vocab_size: int
    is_exact: bool = False  # logits are bit-equal whatever the batch, the chunks and the cache hits


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
    is_exact: bool = False  # see `KVCacheSpec`


@message(43)
@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """A snapshot of the scheduler's accounts. Counts are since the engine core started."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_preemptions: int
    num_generated_tokens: int
    num_finished: int = 0  # requests that ended, however
    num_aborted: int = 0  # of those, by an abort
    num_failed: int = 0  # of those, with an error; refused ones too
    num_started: int = 0  # requests that ran for the first time
    queue_time_s: float = 0.0  # the sum of what those waited for it
    num_looked_up_tokens: int = 0  # tokens of requests that entered with a look into the prefix cache
    num_cached_tokens: int = 0  # of those, found there: their quotient is the hit rate
    num_cached_blocks: int = 0  # blocks that can be found now
    num_evicted_blocks: int = 0  # cached blocks that were taken for something else
    num_worker_losses: int = 0  # deaths of the worker, and steps that failed in a living one
    num_quarantined: int = 0  # requests that have to run alone: they were in flight at two crashes without progress


@message(46)
@dataclass(frozen=True, slots=True)
class KVCacheEvent:
    """A full block can be found in the prefix cache ("stored"), or no longer ("removed"; "cleared": none can).

    Hashes are chained over tokens and salt from a constant root, so they mean the same in every run.
    """

    kind: str
    block_id: int = -1
    block_hash: bytes = b""
    parent_hash: bytes | None = None  # None for the first block of a sequence
    token_ids: list[int] | None = None  # of a stored block


@message(47)
@dataclass(frozen=True, slots=True)
class KVCacheEvents:
    """Events from number ``first`` on, in order. Ask next from ``first + len(events)``; a later ``first`` than asked
    for means that those between were dropped."""

    first: int
    events: list[KVCacheEvent]


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
