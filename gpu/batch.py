"""`Batch`: what one step computes, flattened without padding. Made by the runner, read by models and kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of a step, sequence after sequence; each sequence's tokens here are its last ones.

    Values are in range (`rows` checks them where they enter); shapes and types are checked here, once a step.
    """

    token_ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]: index in the sequence
    slots: Tensor  # int64 [tokens]: block * block_size + place in the block, where key and value go
    query_starts: Tensor  # int32 [sequences + 1]: where each sequence's tokens begin
    kv_lengths: Tensor  # int32 [sequences]: tokens in the cache after this step
    block_tables: Tensor  # int32 [sequences, blocks of the longest]
    logit_tokens: Tensor  # int64 [*]: the tokens whose hidden states are wanted

    def __post_init__(self) -> None:
        tokens, sequences = self.num_tokens, self.kv_lengths.shape[0]
        for name, tensor, dtype, shape in (
            ("token_ids", self.token_ids, torch.int64, (tokens,)),
            ("positions", self.positions, torch.int64, (tokens,)),
            ("slots", self.slots, torch.int64, (tokens,)),
            ("query_starts", self.query_starts, torch.int32, (sequences + 1,)),
            ("kv_lengths", self.kv_lengths, torch.int32, (sequences,)),
            ("block_tables", self.block_tables, torch.int32, (sequences, self.block_tables.shape[-1])),
            ("logit_tokens", self.logit_tokens, torch.int64, (self.logit_tokens.shape[0],)),
        ):
            if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_contiguous():
                raise ValueError(f"{name} must be contiguous {dtype} {shape}, not {tensor.dtype} {tuple(tensor.shape)}")

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return self.token_ids.shape[0]
