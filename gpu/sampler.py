"""Turns logits into tokens. Called by the runner once a step, for all rows that caught up.

Order: greedy rows (temperature 0) take the largest logit, ties the lowest id. Others: logits / temperature; top-k keeps
the k largest; top-p keeps the fewest of those, from the largest down, whose probabilities among them reach p; then a
draw from the softmax of what is kept. Ranks break ties by the lower id. The noise of a draw is a pure function of
(seed, position, token id), so a row's token does not depend on its batch; native/sampling.cpp has the formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import NonFiniteLogitsError
from .kernels import CpuKernels


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The rules of the rows to draw for, as columns [draws]."""

    temperature: NDArray[np.float64]  # 0 is greedy
    top_p: NDArray[np.float64]  # in (0, 1]
    top_k: NDArray[np.int64]  # 0 keeps all
    seeds: NDArray[np.int64]
    positions: NDArray[np.int64]  # index in the sequence of the token being drawn


def sample(logits: Tensor, rules: SamplingRows, kernels: CpuKernels) -> NDArray[np.int64]:
    """One token id for each row of ``logits`` float32 [draws, vocab].

    `NonFiniteLogitsError` if a row holds NaN or +infinity, or nothing but -infinity.
    """
    largest, tokens = logits.max(dim=1)
    finite = torch.isfinite(largest)
    if not finite.all():
        row = int(finite.logical_not().nonzero()[0])
        raise NonFiniteLogitsError(
            f"the model's largest logit in draw {row} is {float(largest[row])}: its weights or the cache are damaged; "
            "check the model's files, or run it in float32"
        )
    drawn: NDArray[np.int64] = tokens.numpy()
    (random_rows,) = np.nonzero(rules.temperature > 0.0)
    if len(random_rows):
        columns = (rules.temperature, rules.top_p, rules.top_k, rules.seeds, rules.positions)
        picked = (torch.from_numpy(column[random_rows]) for column in columns)
        drawn[random_rows] = kernels.sample(logits, torch.from_numpy(random_rows), *picked).numpy()
    return drawn
