"""How often tokens are drawn is what their probabilities say (B, "held well"): chi-squared over many seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawing import Rule, drawn

DRAWS = 20_000


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (Rule(), 24),
        (Rule(0.6), 24),
        (Rule(1.7), 24),
        (Rule(top_k=5), 5),
        (Rule(min_p=0.25), None),
        (Rule(top_p=0.7), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("by", ["seed", "position"])
def test_frequencies_follow_the_probabilities(rule: Rule, kept: int | None, by: str) -> None:
    logits = torch.linspace(-1.5, 1.5, 24)[torch.randperm(24, generator=torch.Generator().manual_seed(2))]
    weights = torch.softmax(logits.double() / rule.temperature, -1).numpy()
    order = np.argsort(-weights)
    if rule.min_p:
        weights[weights < rule.min_p * weights.max()] = 0
    if rule.top_k:
        weights[order[rule.top_k :]] = 0
    if rule.top_p < 1:
        count = int((np.cumsum(weights[order]) >= rule.top_p).argmax()) + 1
        weights[order[count:]] = 0
    weights /= weights.sum()
    assert kept in (None, np.count_nonzero(weights))
    rules = [
        Rule(rule.temperature, rule.top_p, rule.top_k, rule.min_p, **{"seed": 3, "position": 1, by: index + 1})
        for index in range(DRAWS)
    ]
    counts = np.bincount(drawn(logits.repeat(DRAWS, 1), rules), minlength=24)
    assert not counts[weights == 0].any()
    expected = weights[weights > 0] * DRAWS
    chi_squared = float(((counts[weights > 0] - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    # By Wilson and Hilferty's approximation one in a million is beyond this.
    assert chi_squared < freedom * (1 - 2 / (9 * freedom) + 4.75 * np.sqrt(2 / (9 * freedom))) ** 3
