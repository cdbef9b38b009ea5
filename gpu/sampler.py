"""Turns logits into tokens. Called by the runner once a step, for all rows that caught up.

The order is vLLM's:
1. raw log-probabilities, if asked for, are of the untouched logits;
2. allowed_token_ids; 3. bad_words; 4. min_tokens; 5. logit_bias;
6. repetition penalty over prompt and output, then frequency and presence penalty over the output;
7. greedy rows (temperature 0) take the largest logit, ties the lowest id; others: logits / temperature;
8. min_p keeps tokens of at least min_p times the likeliest one's probability; top_k keeps the k largest of those; top_p
   the fewest of those, from the largest down, whose probabilities among them reach p;
9. a draw from the softmax of what is kept.

Ranks break ties by the lower id. The noise of a draw is a pure function of (seed, position, token id), so a row's token
does not depend on its batch; native/sampling.cpp has the formula, native/logits.cpp steps 2 to 6. Rows without any of
steps 2 to 6 pay nothing for them, greedy rows nothing for 8 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ringcast.scheduler.messages import Logprobs

from .sampling_kernels import SamplingKernels
from .sampling_rules import ALL, NONE, SamplingRows

_NOT_FINITE = (
    "the model's largest logit is {}: its weights or the cache are damaged; check the model's files, "
    "or run it in float32"
)
_NOTHING_LEFT = "the request's rules leave no token to draw (largest logit: {}); allow more tokens"


@dataclass(frozen=True, slots=True)
class Draws:
    """What was drawn, by draw. A token id of -1 has an error, of one line. A list is None if no row has any."""

    token_ids: NDArray[np.int64]
    logprobs: list[Logprobs | None] | None
    errors: list[str | None] | None


def sample(logits: Tensor, rules: SamplingRows, kernels: SamplingKernels) -> Draws:
    """One token for each row of ``logits`` float32 [draws, vocab], which stay as they are.

    A row whose logits hold NaN or +infinity, or nothing else than -infinity, has an error; the others are drawn.
    """
    largest, best = logits.max(dim=1)
    token_ids: NDArray[np.int64] = best.numpy().copy()
    errors = _errors(largest, _NOT_FINITE)
    adjusted, places = logits, np.full(len(token_ids), -1)
    if rules.adjustments is not None:
        draws = rules.adjustments.draws
        adjusted = logits[torch.from_numpy(draws)]
        kernels.adjust(adjusted, rules.adjustments)
        largest, best = adjusted.max(dim=1)
        token_ids[draws] = best.numpy()
        places[draws] = np.arange(len(draws))
        late = _errors(largest, _NOTHING_LEFT)
        errors = {draws[index]: message for index, message in late.items()} | errors
    is_random = rules.temperature > 0.0
    is_random[list(errors)] = False
    for source, chosen in ((logits, is_random & (places < 0)), (adjusted, is_random & (places >= 0))):
        (draws,) = np.nonzero(chosen)
        if len(draws):
            rows = draws if source is logits else places[draws]
            token_ids[draws] = kernels.draw(source, rows, token_ids[draws], _picked(rules, draws))
    told = _drawn_logprobs(logits, rules.logprobs, token_ids, errors, kernels)
    token_ids[list(errors)] = -1
    return Draws(token_ids, told, [errors.get(index) for index in range(len(token_ids))] if errors else None)


def token_logprobs(
    logits: Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64], count: int, kernels: SamplingKernels
) -> Logprobs:
    """Of the ``tokens`` that stand at ``rows`` of ``logits``, and of the ``count`` likeliest there (ALL: every one)."""
    token_ids, logprobs, ranks = kernels.logprobs(logits, rows, tokens, _count(logits, count))
    return Logprobs(token_ids.shape[1], token_ids.tobytes(), logprobs.tobytes(), ranks.tobytes())


def _count(logits: Tensor, count: int) -> int:
    return logits.shape[1] if count == ALL else int(count)


def _errors(largest: Tensor, message: str) -> dict[int, str]:
    finite = torch.isfinite(largest)
    if bool(finite.all()):
        return {}
    return {index: message.format(float(largest[index])) for index in finite.logical_not().nonzero().flatten().tolist()}


def _picked(rules: SamplingRows, draws: NDArray[np.int64]) -> SamplingRows:
    """The rules of some draws. What is done before the draw itself is left out."""
    columns = {item.name: getattr(rules, item.name)[draws] for item in fields(rules) if item.name != "adjustments"}
    return SamplingRows(**columns)


def _drawn_logprobs(
    logits: Tensor,
    counts: NDArray[np.int64],
    token_ids: NDArray[np.int64],
    errors: dict[int, str],
    kernels: SamplingKernels,
) -> list[Logprobs | None] | None:
    (draws,) = np.nonzero(counts != NONE)
    if not len(draws):
        return None
    told: list[Logprobs | None] = [None] * len(counts)
    for count in np.unique(counts[draws]):
        (rows,) = np.nonzero(counts == count)
        rows = np.array([row for row in rows if row not in errors], np.int64)
        columns = kernels.logprobs(logits, rows, token_ids[rows], _count(logits, count))
        for row, own_ids, own_logprobs, rank in zip(rows, *columns, strict=True):
            told[row] = Logprobs(len(own_ids), own_ids.tobytes(), own_logprobs.tobytes(), rank.tobytes())
    return told
