"""A stand-in core that keeps the logits of every token it draws, as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from stand_in_core import StandInCore
from torch import Tensor

from ringcast.gpu.runner import ModelRunner
from ringcast.scheduler.messages import StepResult


class ExactCore(StandInCore):
    """``logits`` [request][output token]: the bytes of the row that the token was drawn from."""

    def __init__(self, runner: ModelRunner, **sizes: int | bool) -> None:
        super().__init__(runner, **sizes)  # type: ignore[arg-type]
        self.logits: dict[int, list[bytes]] = {}
        self._rows: list[bytes] = []
        # No message carries logits: they are taken where the model hands them to the runner.
        compute = type(runner._model).logits

        def keep(hidden: Tensor) -> Tensor:
            logits = compute(runner._model, hidden)
            self._rows = [row.numpy().tobytes() for row in logits]
            return logits

        runner._model.logits = keep  # type: ignore[method-assign]

    def logits_of(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[bytes]]:
        """Generate greedily; the logits of each request's output tokens."""
        self.logits = {}
        self.generate(prompts, num_tokens)
        return [self.logits.pop(index) for index in range(len(prompts))]

    def _collect(self, result: StepResult) -> None:
        super()._collect(result)
        for row, logits in zip(result.rows, self._rows, strict=True):
            self.logits.setdefault(63 - row, []).append(logits)
