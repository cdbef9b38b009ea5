"""Draws follow the softmax of what min-p, top-k and top-p keep, and depend on (seed, position, logits) alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawing import Rule, drawn, draws_of
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def kept_tokens(logits: NDArray[np.float64], rule: Rule) -> list[int]:
    """What min-p, top-k and top-p leave, likeliest first."""
    scaled = (logits - logits.max()) / rule.temperature
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = [token for token in order if np.exp(scaled[token]) >= rule.min_p]
    kept = kept[: rule.top_k] if rule.top_k else kept
    if rule.top_p < 1.0:
        weights = np.exp(scaled[kept])
        reached = np.cumsum(weights) >= rule.top_p * weights.sum()
        kept = kept[: int(reached.argmax()) + 1]
    return kept


def expected_token(logits: NDArray[np.float64], rule: Rule) -> int:
    """The documented rules, in plain Python."""
    key = mix(mix((rule.seed + GOLDEN) & MASK) + rule.position * GOLDEN & MASK)
    scores = {}
    for token in kept_tokens(logits, rule):
        bits = mix(key + (token + 1) * GOLDEN & MASK) >> 12
        noise = -np.log(-np.log((bits + 0.5) / 2**52))
        scores[token] = (logits[token] - logits.max()) / rule.temperature + noise
    return max(scores, key=lambda token: (scores[token], -token))


RULES = [
    Rule(), Rule(0.3), Rule(2.5), Rule(top_k=1), Rule(top_k=40), Rule(top_k=10**6), Rule(top_p=0.5), Rule(top_p=0.999),
    Rule(0.7, 0.9, 50), Rule(5.0, 0.95), Rule(1e-4), Rule(1.3, 1e-9), Rule(min_p=0.05), Rule(2.0, min_p=0.3),
    Rule(min_p=1.0), Rule(1.5, 0.9, 20, 0.02), Rule(1.5, top_k=500, min_p=0.1), Rule(3.0, 0.5, min_p=1e-6),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_draws_equal_the_documented_formula(rule: Rule) -> None:
    logits = torch.randn((12, 3000), generator=torch.Generator().manual_seed(1)) * 3
    rules = [
        Rule(rule.temperature, rule.top_p, rule.top_k, rule.min_p, seed=(-1) ** row * 10**row, position=7 * row)
        for row in range(12)
    ]
    expected = [expected_token(logits[row].double().numpy(), rules[row]) for row in range(12)]
    assert drawn(logits, rules) == expected


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.temperature > 0.1 and rule.top_p > 1e-6], ids=str)
def test_what_is_kept_is_what_transformers_keeps(rule: Rule) -> None:
    """Transformers' processors, in the documented order; no seed draws a token that they remove."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.linspace(-2, 2, 40)[torch.randperm(40, generator=torch.Generator().manual_seed(4))].unsqueeze(0)
    scores = TemperatureLogitsWarper(rule.temperature)(torch.zeros(1, 1), logits)
    if rule.min_p:
        scores = MinPLogitsWarper(rule.min_p)(torch.zeros(1, 1), scores)
    if rule.top_k:
        scores = TopKLogitsWarper(min(rule.top_k, 40))(torch.zeros(1, 1), scores)
    if rule.top_p < 1.0:
        scores = TopPLogitsWarper(rule.top_p)(torch.zeros(1, 1), scores)
    kept = set(scores[0].isfinite().nonzero().flatten().tolist())
    assert kept == set(kept_tokens(logits[0].double().numpy(), rule))
    rules = [
        Rule(rule.temperature, rule.top_p, rule.top_k, rule.min_p, seed=seed)
        for seed in range(max(200, 40 * len(kept)))
    ]
    assert set(drawn(logits.repeat(len(rules), 1), rules)) <= kept


def test_ties_are_ranked_by_the_lower_id() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [17, 400, 800]] = 2.0
    assert drawn(logits, [Rule(0.0)]) == [17]
    assert set(drawn(logits.repeat(50, 1), [Rule(top_k=2, seed=seed) for seed in range(50)])) == {17, 400}
    assert drawn(logits, [Rule(top_p=1e-12)]) == [17]
    assert set(drawn(logits.repeat(50, 1), [Rule(min_p=1.0, seed=seed) for seed in range(50)])) == {17, 400, 800}
    flat = torch.ones(60, 1000)
    assert set(drawn(flat, [Rule(top_p=0.004, seed=seed) for seed in range(60)])) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "rule",
    [Rule(), Rule(0.6), Rule(1.5, 1.0, 8), Rule(1.0, 0.8), Rule(0.9, 0.7, 12), Rule(1.2, min_p=0.2)],
    ids=str,
)
def test_frequencies_follow_the_softmax(rule: Rule) -> None:
    """Chi-square over 20,000 draws; the 99.99 % quantile, so a right sampler fails once in 10,000 changed seeds."""
    logits = torch.linspace(-1.5, 1.5, 20)[torch.randperm(20, generator=torch.Generator().manual_seed(3))]
    weights = np.zeros(20)
    kept = kept_tokens(logits.double().numpy(), rule)
    weights[kept] = np.exp(logits.double().numpy()[kept] / rule.temperature)
    draws = 20_000
    expected = weights / weights.sum() * draws
    for varied in ("seed", "position"):
        rules = [
            Rule(rule.temperature, rule.top_p, rule.top_k, rule.min_p, **{varied: number}) for number in range(draws)
        ]
        counts = np.bincount(drawn(logits.repeat(draws, 1), rules), minlength=20)
        assert counts[weights == 0].sum() == 0
        chi_square = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
        freedom = len(kept) - 1
        # Wilson and Hilferty's approximation of the quantile; 3.719 is the normal one for 0.9999.
        limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3
        assert chi_square < limit


def test_six_seeded_rows_in_any_order_draw_the_same() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn((6, 500), generator=generator)
    rules = [Rule(0.0 if row == 4 else 1.2, 0.95, 100, seed=42 + row // 2, position=row) for row in range(6)]
    together = drawn(logits, rules)
    assert together == [drawn(logits[row : row + 1], [rules[row]])[0] for row in range(6)]
    for _ in range(10):
        order = torch.randperm(6, generator=generator).tolist()
        assert drawn(logits[order], [rules[row] for row in order], threads=2) == [together[row] for row in order]


def test_a_seed_draws_the_same_alone_with_a_seeded_and_with_an_unseeded_mate() -> None:
    logits = torch.randn((1, 800), generator=torch.Generator().manual_seed(5))
    for position in range(30):
        own = Rule(1.5, seed=42, position=position)
        alone = drawn(logits, [own])[0]
        for mate in (Rule(1.5, seed=42, position=position), Rule(0.7, seed=7), Rule(1.0, seed=-(10**18)), Rule(0.0)):
            assert drawn(logits.repeat(2, 1), [own, mate])[0] == alone
            assert drawn(logits.repeat(2, 1), [mate, own])[1] == alone
        # The same with a mate whose rule changes its logits.
        assert drawn(logits.repeat(2, 1), [Rule(1.0, logit_bias=[(3, 9.0)]), own])[1] == alone


def test_n_answers_with_seeds_in_a_row_differ_and_equal_the_single_runs() -> None:
    logits = torch.zeros(4, 1000)
    rules = [Rule(1.0, seed=42 + index, position=5) for index in range(4)]
    answers = drawn(logits, rules)
    assert len(set(answers)) == 4
    assert answers == [drawn(logits[:1], [rule])[0] for rule in rules]


def test_seed_and_position_each_change_the_draws() -> None:
    logits = torch.zeros(200, 1000)
    base = drawn(logits, [Rule(seed=5, position=position) for position in range(200)])
    other_seed = drawn(logits, [Rule(seed=6, position=position) for position in range(200)])
    shifted = drawn(logits, [Rule(seed=5, position=position + 1) for position in range(200)])
    assert sum(a == b for a, b in zip(base, other_seed, strict=True)) < 5
    assert sum(a == b for a, b in zip(base, shifted, strict=True)) < 5
    assert shifted[:-1] == base[1:]


def test_excluded_tokens_are_never_drawn() -> None:
    logits = torch.full((300, 64), float("-inf"))
    logits[:, [3, 60]] = 0.0
    assert set(drawn(logits, [Rule(seed=seed) for seed in range(300)])) == {3, 60}
    assert set(drawn(logits, [Rule(top_p=0.99, seed=seed) for seed in range(300)])) == {3, 60}
    assert set(drawn(logits, [Rule(min_p=0.01, top_k=50, seed=seed) for seed in range(300)])) == {3, 60}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_fail_their_row_alone(value: float) -> None:
    logits = torch.zeros(4, 10)
    logits[1, 4] = value
    logits[3] = float("-inf")
    for temperature in (0.0, 1.0):
        rules = [Rule(temperature, seed=row, logprobs=2) for row in range(4)]
        draws = draws_of(logits, rules)
        assert draws.errors is not None and draws.logprobs is not None
        assert [error is None for error in draws.errors] == [True, False, True, False]
        assert f"largest logit is {value}" in str(draws.errors[1])
        assert "largest logit is -inf" in str(draws.errors[3])
        assert draws.token_ids.tolist()[1::2] == [-1, -1]
        assert draws.token_ids.tolist()[0::2] == drawn(logits[[0, 2]], [rules[0], rules[2]])
        assert [item is None for item in draws.logprobs] == [False, True, False, True]
