"""`SamplingKernels`: what native code does to logits outside the model. The sampler calls it; like `kernels`, it checks
every size, type and layout. Token ids were checked when they entered, in `sampling_rules` and `rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import _kernels
from .kernels import CpuKernels, require
from .sampling_rules import Adjustments, Lists, SamplingRows


class SamplingKernels:
    """With the threads and the instruction set of ``kernels``."""

    def __init__(self, kernels: CpuKernels) -> None:
        self._level = kernels.level_number
        self._threads = kernels.num_threads

    def draw(
        self, logits: Tensor, rows: NDArray[np.int64], best: NDArray[np.int64], rules: SamplingRows
    ) -> NDArray[np.int64]:
        """One token for each of ``rows`` of ``logits`` float32 [*, vocab], by the rule of its index; see `sampler`.

        ``best`` are the rows' likeliest tokens. Temperatures must be above 0 and logits no NaN.
        """
        draws = len(rows)
        vocab = _check_rows(logits, rows)
        for column in (rules.temperature, rules.top_p, rules.min_p):
            _check(column, np.float64, (draws,))
        for numbers in (best, rules.top_k, rules.seeds, rules.positions):
            _check(numbers, np.int64, (draws,))
        out = np.empty(draws, np.int64)
        _kernels.sample(
            self._level, self._threads, logits.data_ptr(), rows.ctypes.data, best.ctypes.data,
            rules.temperature.ctypes.data, rules.top_p.ctypes.data, rules.top_k.ctypes.data, rules.min_p.ctypes.data,
            rules.seeds.ctypes.data, rules.positions.ctypes.data, out.ctypes.data, draws, vocab,
        )  # fmt: skip
        return out

    def adjust(self, logits: Tensor, rules: Adjustments) -> None:
        """Apply rule i to row i of ``logits`` float32 [rules, vocab], in place."""
        rows, vocab = len(rules.draws), logits.shape[1]
        require(logits, "logits", torch.float32, (rows, vocab))
        for lists, count in ((rules.allowed, rows), (rules.banned, rows), (rules.biased, rows), (rules.history, rows),
                             (rules.words, int(rules.word_starts[-1]))):  # fmt: skip
            _check(lists.starts, np.int64, (count + 1,))
            _check(lists.values, np.int32, (int(lists.starts[-1]),))
        _check(rules.word_starts, np.int64, (rows + 1,))
        _check(rules.biases, np.float32, rules.biased.values.shape)
        _check(rules.prompt_tokens, np.int64, (rows,))
        for column in (rules.repetition, rules.frequency, rules.presence):
            _check(column, np.float32, (rows,))
        _kernels.adjust(
            self._threads, logits.data_ptr(), _view(rules.allowed), rules.word_starts.ctypes.data, _view(rules.words),
            _view(rules.banned), _view(rules.biased), rules.biases.ctypes.data, _view(rules.history),
            rules.prompt_tokens.ctypes.data, rules.repetition.ctypes.data, rules.frequency.ctypes.data,
            rules.presence.ctypes.data, rows, vocab,
        )  # fmt: skip

    def logprobs(
        self, logits: Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64], count: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
        """Token ids and log-probabilities [rows, 1 + count], the row's own token first, and its ranks [rows].

        ``logits`` float32 [*, vocab]; ``tokens`` are those that stand at ``rows``; ``count`` is at most the vocabulary.
        """
        vocab = _check_rows(logits, rows)
        _check(tokens, np.int64, rows.shape)
        if not 0 <= count <= vocab:
            raise ValueError(f"{count} of {vocab} log-probabilities cannot be told")
        size, width = len(rows), 1 + count
        token_ids, ranks = np.empty((size, width), np.int32), np.empty(size, np.int32)
        logprobs = np.empty((size, width), np.float32)
        _kernels.logprobs(
            self._level, self._threads, logits.data_ptr(), rows.ctypes.data, tokens.ctypes.data, token_ids.ctypes.data,
            logprobs.ctypes.data, ranks.ctypes.data, size, vocab, width,
        )  # fmt: skip
        return token_ids, logprobs, ranks


def _check_rows(logits: Tensor, rows: NDArray[np.int64]) -> int:
    """The vocabulary's size, if the rows exist."""
    count, vocab = logits.shape
    require(logits, "logits", torch.float32, (count, vocab))
    _check(rows, np.int64, rows.shape)
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        raise ValueError(f"rows {rows} of {count} rows of logits")
    return vocab


def _check(array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(f"an array is {array.dtype} {array.shape}; a contiguous {dtype.__name__} {shape} is needed")


def _view(lists: Lists) -> tuple[int, int]:
    return lists.starts.ctypes.data, lists.values.ctypes.data
