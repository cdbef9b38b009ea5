"""Rules for tests of the sampler, their way through the sampler, and what log-probabilities must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.sampler import Draws, sample
from ringcast.gpu.sampling_kernels import SamplingKernels
from ringcast.gpu.sampling_rules import SamplingRules
from ringcast.scheduler.messages import Logprobs, SamplingRule


@dataclass(frozen=True)
class Rule:
    """A rule, and the state of the row that it belongs to: ``prompt`` and ``output`` so far, or just a position."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[int, float]] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[list[int]] | None = None
    min_tokens: int = 0
    stop_token_ids: list[int] | None = None
    logprobs: int | None = None
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()

    def __str__(self) -> str:
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        changed = [f"{name}={given[name]}" for name in given if given[name] != getattr(Rule, name, None)]
        return ",".join(changed) or "plain"

    def sampling_rule(self) -> SamplingRule:
        return SamplingRule(
            self.temperature, self.top_p, self.top_k, self.seed, self.min_p, self.presence_penalty,
            self.frequency_penalty, self.repetition_penalty, self.logit_bias, self.allowed_token_ids, self.bad_words,
            self.min_tokens, self.stop_token_ids, self.logprobs,
        )  # fmt: skip

    @property
    def num_tokens(self) -> int:
        return self.position or len(self.prompt) + len(self.output)


def draws_of(logits: torch.Tensor, rules: Sequence[Rule], threads: int = 1) -> Draws:
    """One draw by each rule from its row of ``logits``. Rules are entered in the order of the rows."""
    table = SamplingRules(len(rules), logits.shape[1])
    longest = max(len(rule.prompt) + len(rule.output) for rule in rules)
    token_ids = np.zeros((len(rules), longest), np.int32)
    for row, rule in enumerate(rules):
        table.enter(row, rule.sampling_rule(), f"row {row}")
        tokens = [*rule.prompt, *rule.output]
        token_ids[row, : len(tokens)] = tokens
    gathered = table.gather(
        np.arange(len(rules)),
        token_ids,
        np.array([rule.num_tokens for rule in rules]),
        np.array([rule.position or len(rule.prompt) for rule in rules]),
    )
    before = logits.clone()
    draws = sample(logits, gathered, SamplingKernels(CpuKernels(threads)))
    assert torch.equal(logits.nan_to_num(nan=5e30), before.nan_to_num(nan=5e30)), "the logits were changed"
    return draws


def drawn(logits: torch.Tensor, rules: Sequence[Rule], threads: int = 1) -> list[int]:
    """The token ids of `draws_of`, none of which may have failed."""
    draws = draws_of(logits, rules, threads)
    assert draws.errors is None
    tokens: list[int] = draws.token_ids.tolist()
    return tokens


def columns(told: Logprobs | None) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
    """Token ids and log-probabilities [positions, width], ranks [positions]."""
    assert told is not None
    token_ids = np.frombuffer(told.token_ids, np.int32).reshape(-1, told.width)
    logprobs = np.frombuffer(told.logprobs, np.float32).reshape(-1, told.width)
    return token_ids, logprobs, np.frombuffer(told.ranks, np.int32)


def log_softmax(logits: torch.Tensor) -> NDArray[np.float64]:
    values = logits.double().numpy()
    shifted = values - values.max(-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def check_logprobs(
    told: Logprobs | None, logits: torch.Tensor, tokens: Sequence[int], count: int, tolerance: float
) -> None:
    """``told`` of successive positions against the formula on ``logits`` [positions, vocab]."""
    token_ids, logprobs, ranks = columns(told)
    expected = log_softmax(logits)
    assert token_ids.shape == (len(tokens), 1 + count)
    assert token_ids[:, 0].tolist() == list(tokens)
    order = np.argsort(-logits.numpy(), axis=1, kind="stable")  # ties: the lower id
    assert token_ids[:, 1:].tolist() == order[:, :count].tolist()
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, token_ids.astype(np.int64), 1), atol=tolerance)
    own = expected[np.arange(len(tokens)), list(tokens)]
    assert ranks.tolist() == (1 + (expected > own[:, None]).sum(1)).tolist()
