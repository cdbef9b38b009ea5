"""Draws follow the softmax of what top-k and top-p keep, and depend on (seed, position, logits) alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ringcast.gpu import NonFiniteLogitsError
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.sampler import SamplingRows, sample

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Rule:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    position: int = 0


def draw(logits: torch.Tensor, rules: list[Rule], threads: int = 1) -> list[int]:
    rows = SamplingRows(
        temperature=np.array([rule.temperature for rule in rules]),
        top_p=np.array([rule.top_p for rule in rules]),
        top_k=np.array([rule.top_k for rule in rules]),
        seeds=np.array([rule.seed for rule in rules]),
        positions=np.array([rule.position for rule in rules]),
    )
    tokens: list[int] = sample(logits, rows, CpuKernels(threads)).tolist()
    return tokens


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def expected_token(logits: NDArray[np.float64], rule: Rule) -> int:
    """The documented rules, in plain Python."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = order[: rule.top_k] if rule.top_k else order
    weights = np.exp((logits[kept] - logits.max()) / rule.temperature)
    if rule.top_p < 1.0:
        reached = np.cumsum(weights) >= rule.top_p * weights.sum()
        kept = kept[: int(reached.argmax()) + 1]
    key = mix(mix((rule.seed + GOLDEN) & MASK) + rule.position * GOLDEN & MASK)
    scores = {}
    for token in kept:
        bits = mix(key + (token + 1) * GOLDEN & MASK) >> 12
        noise = -np.log(-np.log((bits + 0.5) / 2**52))
        scores[token] = (logits[token] - logits.max()) / rule.temperature + noise
    return max(scores, key=lambda token: (scores[token], -token))


RULES = [
    Rule(), Rule(0.3), Rule(2.5), Rule(top_k=1), Rule(top_k=40), Rule(top_k=10**6), Rule(top_p=0.5), Rule(top_p=0.999),
    Rule(0.7, 0.9, 50), Rule(5.0, 0.95), Rule(1e-4), Rule(1.3, 1e-9),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_draws_equal_the_documented_formula(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn((12, 3000), generator=generator) * 3
    rules = [
        Rule(rule.temperature, rule.top_p, rule.top_k, seed=(-1) ** row * 10**row, position=7 * row)
        for row in range(12)
    ]
    expected = [expected_token(logits[row].double().numpy(), rules[row]) for row in range(12)]
    assert draw(logits, rules) == expected


def test_ties_are_ranked_by_the_lower_id() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [17, 400, 800]] = 2.0
    assert draw(logits, [Rule(0.0)]) == [17]
    assert set(draw(logits.repeat(50, 1), [Rule(top_k=2, seed=seed) for seed in range(50)])) == {17, 400}
    assert draw(logits, [Rule(top_p=1e-12)]) == [17]
    flat = torch.ones(60, 1000)
    assert set(draw(flat, [Rule(top_p=0.004, seed=seed) for seed in range(60)])) == {0, 1, 2, 3}


@pytest.mark.parametrize("rule", [Rule(), Rule(0.6), Rule(1.5, 1.0, 8), Rule(1.0, 0.8), Rule(0.9, 0.7, 12)], ids=str)
def test_frequencies_follow_the_softmax(rule: Rule) -> None:
    """Chi-square over 20,000 draws; the 99.99 % quantile, so a right sampler fails once in 10,000 changed seeds."""
    logits = torch.linspace(-1.5, 1.5, 20)[torch.randperm(20, generator=torch.Generator().manual_seed(3))]
    weights = np.exp(logits.double().numpy() / rule.temperature)
    order = np.argsort(-weights)
    if rule.top_k:
        weights[order[rule.top_k :]] = 0.0
    if rule.top_p < 1.0:
        reached = np.cumsum(weights[order]) >= rule.top_p * weights.sum()
        weights[order[int(reached.argmax()) + 1 :]] = 0.0
    draws = 20_000
    expected = weights / weights.sum() * draws
    for varied in ("seed", "position"):
        rules = [Rule(rule.temperature, rule.top_p, rule.top_k, **{varied: number}) for number in range(draws)]
        counts = np.bincount(draw(logits.repeat(draws, 1), rules), minlength=20)
        kept = expected > 0
        assert counts[~kept].sum() == 0
        chi_square = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
        freedom = int(kept.sum()) - 1
        # Wilson and Hilferty's approximation of the quantile; 3.719 is the normal one for 0.9999.
        limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3
        assert chi_square < limit


def test_order_and_company_change_no_draw() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn((9, 500), generator=generator)
    rules = [Rule(0.0 if row % 4 == 0 else 1.2, 0.95, 100, seed=42 + row // 2, position=row) for row in range(9)]
    together = draw(logits, rules)
    assert together == [draw(logits[row : row + 1], [rules[row]])[0] for row in range(9)]
    order = torch.randperm(9, generator=generator).tolist()
    assert draw(logits[order], [rules[row] for row in order], threads=2) == [together[row] for row in order]


def test_seed_and_position_each_change_the_draws() -> None:
    logits = torch.zeros(200, 1000)
    base = draw(logits, [Rule(seed=5, position=position) for position in range(200)])
    other_seed = draw(logits, [Rule(seed=6, position=position) for position in range(200)])
    shifted = draw(logits, [Rule(seed=5, position=position + 1) for position in range(200)])
    assert sum(a == b for a, b in zip(base, other_seed, strict=True)) < 5
    assert sum(a == b for a, b in zip(base, shifted, strict=True)) < 5
    assert shifted[:-1] == base[1:]


def test_excluded_tokens_are_never_drawn() -> None:
    logits = torch.full((300, 64), float("-inf"))
    logits[:, [3, 60]] = 0.0
    assert set(draw(logits, [Rule(seed=seed) for seed in range(300)])) == {3, 60}
    assert set(draw(logits, [Rule(top_p=0.99, seed=seed) for seed in range(300)])) == {3, 60}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error(value: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = value
    with pytest.raises(NonFiniteLogitsError, match=f"draw 1 is {value}"):
        draw(logits, [Rule(0.0)] * 3)
    with pytest.raises(NonFiniteLogitsError, match="draw 0 is -inf"):
        draw(torch.full((1, 10), float("-inf")), [Rule(0.0)])
