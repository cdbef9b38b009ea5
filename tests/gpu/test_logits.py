"""What rules do to logits equals the processors of transformers, one by one and together, in the documented order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from drawing import Rule, drawn, draws_of
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ringcast.gpu import PlanError
from ringcast.gpu.kernels import CpuKernels
from ringcast.gpu.sampling_kernels import SamplingKernels
from ringcast.gpu.sampling_rules import SamplingRules

VOCAB = 300
PROMPT = [5, 9, 9, 200, 31, 5]
OUTPUT = [31, 31, 7, 120, 31, 299, 7]


def adjusted(logits: torch.Tensor, rules: list[Rule], threads: int = 1) -> torch.Tensor:
    """The logits of each row after its rule."""
    table = SamplingRules(len(rules), logits.shape[1])
    token_ids = np.zeros((len(rules), max(rule.num_tokens for rule in rules)), np.int32)
    for row, rule in enumerate(rules):
        table.enter(row, rule.sampling_rule(), f"row {row}")
        token_ids[row, : rule.num_tokens] = [*rule.prompt, *rule.output]
    gathered = table.gather(
        np.arange(len(rules)), token_ids, np.array([rule.num_tokens for rule in rules]),
        np.array([len(rule.prompt) for rule in rules]),
    )  # fmt: skip
    out = logits.clone()
    if gathered.adjustments is not None:
        picked = out[torch.from_numpy(gathered.adjustments.draws)]
        SamplingKernels(CpuKernels(threads)).adjust(picked, gathered.adjustments)
        out[torch.from_numpy(gathered.adjustments.draws)] = picked
    return out


class _OpenAIPenalties(LogitsProcessor):
    """logits - frequency * count - presence * (count > 0), over the output; transformers has no such processor."""

    def __init__(self, frequency: float, presence: float, prompt_length: int) -> None:
        self.frequency, self.presence, self.prompt_length = frequency, presence, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0, self.prompt_length :], minlength=scores.shape[1]).float()
        return scores - self.frequency * counts - self.presence * (counts > 0).float()


def by_transformers(logits: torch.Tensor, rule: Rule) -> torch.Tensor:
    """The logits of one row after the processors of its rule, in the documented order."""
    tokens = torch.tensor([[*rule.prompt, *rule.output]])
    prompt_length = len(rule.prompt)
    processors = LogitsProcessorList()
    if rule.allowed_token_ids is not None:
        processors.append(SuppressTokensLogitsProcessor(sorted(set(range(VOCAB)) - set(rule.allowed_token_ids))))
    scores = processors(tokens, logits.unsqueeze(0))
    if rule.bad_words:
        # Only the output counts: the prompt's words are the user's own.
        no_eos = torch.tensor([VOCAB])
        scores = NoBadWordsLogitsProcessor(rule.bad_words, no_eos)(tokens[:, prompt_length:], scores)
    if rule.min_tokens and rule.stop_token_ids:
        scores = MinNewTokensLengthLogitsProcessor(prompt_length, rule.min_tokens, rule.stop_token_ids)(tokens, scores)
    if rule.logit_bias:
        scores = SequenceBiasLogitsProcessor([[[token], bias] for token, bias in rule.logit_bias])(tokens, scores)
    if rule.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(rule.repetition_penalty)(tokens, scores)
    penalties = _OpenAIPenalties(rule.frequency_penalty, rule.presence_penalty, prompt_length)
    return penalties(tokens, scores)[0]


RULES = [
    Rule(),
    Rule(repetition_penalty=1.7),
    Rule(repetition_penalty=0.6),
    Rule(frequency_penalty=0.8),
    Rule(frequency_penalty=-0.5),
    Rule(presence_penalty=1.1),
    Rule(presence_penalty=-2.0, frequency_penalty=0.25),
    Rule(logit_bias=[(0, 3.5), (299, -100.0), (31, 0.25)]),
    Rule(allowed_token_ids=[7, 31, 0, 299]),
    Rule(allowed_token_ids=[12]),
    Rule(bad_words=[[44]]),
    Rule(bad_words=[[7, 8], [299, 7, 9], [31, 7, 120, 31, 299, 7, 10], [120, 7, 11], [5, 12]]),
    Rule(min_tokens=8, stop_token_ids=[2, 77]),
    Rule(min_tokens=7, stop_token_ids=[2, 77]),
    Rule(
        repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.6, min_tokens=20, stop_token_ids=[2],
        logit_bias=[(31, 1.0), (2, 50.0), (60, 2.0)], bad_words=[[7, 31], [90]],
        allowed_token_ids=[2, 7, 9, 31, 60, 90, 120],
    ),
]  # fmt: skip
RULES = [replace(rule, prompt=PROMPT, output=OUTPUT) for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_each_rule_equals_its_processor(rule: Rule) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(8)) * 4
    ours = adjusted(logits.unsqueeze(0), [rule])[0]
    torch.testing.assert_close(ours, by_transformers(logits, rule), rtol=1e-6, atol=1e-6)


def test_a_batch_of_rules_equals_each_alone_in_any_order() -> None:
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn((len(RULES), VOCAB), generator=generator) * 4
    alone = torch.stack([adjusted(logits[row : row + 1], [rule])[0] for row, rule in enumerate(RULES)])
    for threads in (1, 2):
        assert torch.equal(adjusted(logits, RULES, threads), alone)
        order = torch.randperm(len(RULES), generator=generator).tolist()
        assert torch.equal(adjusted(logits[order], [RULES[row] for row in order], threads), alone[order])


def test_a_greedy_row_takes_the_best_of_its_adjusted_logits_and_a_random_one_draws_from_them() -> None:
    logits = torch.randn((1, VOCAB), generator=torch.Generator().manual_seed(10))
    for rule in RULES:
        changed = adjusted(logits, [rule])
        assert drawn(logits, [replace(rule, temperature=0.0)]) == [int(changed[0].argmax())]
        for seed in range(20):
            assert drawn(logits, [replace(rule, seed=seed)]) == drawn(changed, [Rule(seed=seed, position=13)])


def test_rows_without_rules_are_not_touched() -> None:
    table = SamplingRules(2, VOCAB)
    table.enter(0, Rule(0.0).sampling_rule(), "row 0")
    table.enter(1, Rule(0.7, 0.9, 40, 0.1, seed=5, logprobs=3, min_tokens=3).sampling_rule(), "row 1")  # no stop ids
    counts = np.array([4, 4])
    gathered = table.gather(np.array([0, 1]), np.zeros((2, 4), np.int32), counts, counts)
    assert gathered.adjustments is None


def test_min_tokens_counts_outputs_and_bans_every_stop_id_until_then() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [2, 77, 8]] = torch.tensor([30.0, 20.0, 10.0])  # EOS is forced, then the second EOS id
    # Twenty tokens of prompt are no output; the id is banned for exactly ``min_tokens`` outputs.
    for count, expected in ((0, 8), (1, 8), (2, 8), (3, 2), (4, 2)):
        rule = Rule(0.0, min_tokens=3, stop_token_ids=[2, 77], prompt=[1] * 20, output=[8] * count)
        assert drawn(logits, [rule]) == [expected]
        sampled = drawn(logits.repeat(50, 1), [replace(rule, temperature=1.0, seed=seed) for seed in range(50)])
        assert ({2, 77} & set(sampled) == set()) == (count < 3)
    only_one = Rule(0.0, min_tokens=3, stop_token_ids=[2], prompt=[1])
    assert drawn(logits, [only_one]) == [77]


def test_a_bias_brings_no_banned_token_back() -> None:
    logits = torch.zeros(1, VOCAB)
    bias = [(2, 100.0)]
    assert drawn(logits, [Rule(0.0, logit_bias=bias)]) == [2]
    for ban in (
        Rule(0.0, logit_bias=bias, min_tokens=1, stop_token_ids=[2]),
        Rule(0.0, logit_bias=bias, bad_words=[[2]]),
        Rule(0.0, logit_bias=bias, allowed_token_ids=[0, 1]),
    ):
        assert drawn(logits, [ban]) == [0]


def test_a_rule_that_leaves_nothing_fails_its_row_alone() -> None:
    logits = torch.zeros(3, VOCAB)
    rules = [Rule(0.0), Rule(1.0, allowed_token_ids=[2], min_tokens=5, stop_token_ids=[2], logprobs=1), Rule(0.0)]
    draws = draws_of(logits, rules)
    assert draws.token_ids.tolist() == [0, -1, 0]
    assert draws.errors is not None
    assert draws.errors[0] is None and "leave no token to draw" in str(draws.errors[1])


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule(-1.0), "temperature is -1.0, not 0 or more"),
        (Rule(float("nan")), "temperature is nan"),
        (Rule(top_p=0.0), "top_p is 0.0, not more than 0"),
        (Rule(top_k=-1), "top_k is -1"),
        (Rule(min_p=1.5), "min_p is 1.5, not 0 to 1"),
        (Rule(presence_penalty=float("inf")), "presence_penalty is inf"),
        (Rule(frequency_penalty=float("nan")), "frequency_penalty is nan"),
        (Rule(repetition_penalty=0.0), "repetition_penalty is 0.0, not more than 0"),
        (Rule(min_tokens=-1), "min_tokens is -1"),
        (Rule(logprobs=301), "logprobs is 301, not -1 to 300"),
        (Rule(logprobs=-2), "logprobs is -2"),
        (Rule(logit_bias=[(300, 1.0)]), "the token id in logit_bias 300; 0 to 299 are possible"),
        (Rule(logit_bias=[(-1, 1.0)]), "the token id in logit_bias -1"),
        (Rule(logit_bias=[(1 << 70, 1.0)]), "a token id in logit_bias outside 0 to 299"),
        (Rule(logit_bias=[(3, float("nan"))]), "logit_bias is .* not finite"),
        (Rule(allowed_token_ids=[5, 300]), "the token id in allowed_token_ids 300"),
        (Rule(allowed_token_ids=[]), "allowed_token_ids is \\[\\], not None, or not empty"),
        (Rule(bad_words=[[4], [3, 400]]), "the token id in bad_words 400"),
        (Rule(bad_words=[[]]), "bad_words is \\[\\[\\]\\], not words of at least one token"),
        (Rule(min_tokens=1, stop_token_ids=[999]), "the token id in stop_token_ids 999"),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_followed_is_refused_and_never_written(rule: Rule, reason: str) -> None:
    table = SamplingRules(2, VOCAB)
    with pytest.raises(PlanError, match=f"row 1.*{reason}"):
        table.enter(1, rule.sampling_rule(), "row 1")
