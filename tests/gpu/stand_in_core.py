"""A stand-in for the engine core: makes valid plans for a runner, with the batch, chunks and blocks a test wants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringcast.gpu.runner import ModelRunner
from ringcast.scheduler.messages import KVCacheConfig, Logprobs, NewRow, SamplingRule, StepPlan, StepResult


@dataclass
class _Request:
    row: int
    prompt: list[int]
    rule: SamplingRule
    num_prompt: int
    output: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_blocks: int = 0
    entered: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output)


class StandInCore:
    """Runs requests side by side. ``budget``: tokens a step.

    Log-probabilities come by request: ``logprobs`` of its outputs, ``prompt_logprobs`` joined over the chunks.
    """

    def __init__(
        self,
        runner: ModelRunner,
        budget: int = 4096,
        num_blocks: int = 400,
        block_size: int = 16,
        scattered: bool = False,
    ) -> None:
        self.runner = runner
        self.budget = budget
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        if scattered:
            random.Random(7).shuffle(self.free_blocks)
        self.steps = 0
        self.logprobs: list[list[Logprobs]] = []
        self.prompt_logprobs: dict[int, Logprobs] = {}
        runner.initialize(KVCacheConfig(num_blocks, block_size, 64, budget, 2048))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        rules: Sequence[SamplingRule] | None = None,
        num_prompt_tokens: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """All prompts at once, ``num_tokens`` each; rows are given from the highest down.

        ``num_prompt_tokens``: how many of each prompt's tokens are the prompt; the others were drawn earlier.
        """
        rules = rules or [SamplingRule()] * len(prompts)
        counts = num_prompt_tokens or [len(prompt) for prompt in prompts]
        requests = [
            _Request(63 - index, list(prompt), rule, count)
            for index, (prompt, rule, count) in enumerate(zip(prompts, rules, counts, strict=True))
        ]
        self.logprobs = [[] for _ in requests]
        self.prompt_logprobs = {}
        while any(len(request.output) < num_tokens for request in requests):
            self._step([request for request in requests if len(request.output) < num_tokens])
        self.steps += 1
        self.runner.execute(StepPlan(self.steps, [request.row for request in requests], [], [], [], [], []))
        return [request.output for request in requests]

    def _step(self, running: list[_Request]) -> None:
        budget = self.budget
        chosen: list[tuple[_Request, int, list[int]]] = []
        new_rows: list[NewRow] = []
        for request in running:
            count = min(budget, request.num_tokens - request.num_computed)
            if count == 0:
                continue
            budget -= count
            needed = -(-(request.num_computed + count) // self.block_size) - request.num_blocks
            blocks = [self.free_blocks.pop() for _ in range(needed)]
            request.num_blocks += needed
            if not request.entered:
                new_rows.append(NewRow(request.row, request.prompt, 0, blocks, request.rule, request.num_prompt))
                request.entered, blocks = True, []
            chosen.append((request, count, blocks))
        self.steps += 1
        sample = [request.num_computed + count == request.num_tokens for request, count, _ in chosen]
        plan = StepPlan(
            self.steps, [], new_rows, [request.row for request, _, _ in chosen], [count for _, count, _ in chosen],
            [blocks for _, _, blocks in chosen], sample,
        )  # fmt: skip
        result = self.runner.execute(plan)
        assert result.step_id == self.steps and result.errors is None
        self._collect(result)
        drawn = dict(zip(result.rows, result.token_ids, strict=True))
        assert list(drawn) == [request.row for (request, _, _), flag in zip(chosen, sample, strict=True) if flag]
        for request, count, _ in chosen:
            request.num_computed += count
            if request.row in drawn:
                request.output.append(drawn[request.row])

    def _collect(self, result: StepResult) -> None:
        for row, told in zip(result.rows, result.logprobs or [], strict=bool(result.logprobs)):
            if told is not None:
                self.logprobs[63 - row].append(told)
        for part in result.prompt_logprobs or []:
            before = self.prompt_logprobs.get(63 - part.row, Logprobs(part.logprobs.width, b"", b"", b""))
            assert (before.width, len(before.ranks) // 4) == (part.logprobs.width, part.first - 1)
            self.prompt_logprobs[63 - part.row] = Logprobs(
                before.width,
                before.token_ids + part.logprobs.token_ids,
                before.logprobs + part.logprobs.logprobs,
                before.ranks + part.logprobs.ranks,
            )
