"""Paged attention and the cache write equal dense formulas on every instruction set, bit for bit in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from ringcast.gpu.batch import Batch
from ringcast.gpu.errors import UnsupportedModelError
from ringcast.gpu.kernels import LEVELS, CpuKernels, check_attention_shape
from ringcast.gpu.kv_cache import KVCache
from ringcast.gpu.layers.rotary import cos_sin_table
from ringcast.gpu.model_config import ModelConfig
from ringcast.gpu.rope_config import RopeConfig

LEVELS_HERE = LEVELS[: LEVELS.index(CpuKernels(1).level) + 1]
NUM_BLOCKS = 64
EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    rotary_dim: int | None = None  # None: all
    scale: float | None = None  # None: 1/sqrt(head_dim)
    has_norms: bool = False

    @property
    def rope(self) -> RopeConfig:
        return RopeConfig(10000.0, self.rotary_dim or self.head_dim)

    @property
    def query_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            "LlamaForCausalLM",
            64,
            1,
            self.heads,
            self.kv_heads,
            self.head_dim,
            64,
            100,
            2048,
            1e-5,
            self.rope,
            True,
            (),
        )


class Sequences:
    """Random qkv rows of some sequences, and the plumbing to send slices of them through the kernels."""

    def __init__(self, shape: Shape, lengths: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(sum(lengths))
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.shape, self.dtype = shape, dtype
        self.rows = [torch.randn((length, width), generator=generator).to(dtype) for length in lengths]
        self.cos_sin = cos_sin_table(shape.rope, 2048)
        norms = 1 + 0.3 * torch.randn((2, shape.head_dim), generator=generator)
        self.norms = (norms[0], norms[1]) if shape.has_norms else None
        self.cache = KVCache(shape.config, NUM_BLOCKS, shape.block_size, dtype)
        for layer in self.cache.layers:
            layer.keys.fill_(float("nan"))  # whatever a block held before must not matter
            layer.values.fill_(float("nan"))
        blocks = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
        self.tables = [[blocks.pop() for _ in range(-(-length // shape.block_size))] for length in lengths]

    def step(self, parts: Sequence[tuple[int, int, int]], kernels: CpuKernels) -> list[Tensor]:
        """Compute tokens [start, stop) of each (sequence, start, stop) in one batch; their outputs."""
        size = self.shape.block_size
        positions = torch.cat([torch.arange(start, stop) for _, start, stop in parts])
        slots = [self.tables[s][p // size] * size + p % size for s, start, stop in parts for p in range(start, stop)]
        counts = [stop - start for _, start, stop in parts]
        longest = max(len(self.tables[s]) for s, _, _ in parts)
        batch = Batch(
            token_ids=torch.zeros_like(positions),
            positions=positions,
            slots=torch.tensor(slots),
            query_starts=torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
            kv_lengths=torch.tensor([stop for _, _, stop in parts], dtype=torch.int32),
            block_tables=torch.tensor(
                [self.tables[s] + [0] * (longest - len(self.tables[s])) for s, _, _ in parts], dtype=torch.int32
            ),
            logit_tokens=torch.zeros(0, dtype=torch.int64),
        )
        qkv = torch.cat([self.rows[s][start:stop] for s, start, stop in parts])
        layer = self.cache.layers[0]
        shape = self.shape
        queries = kernels.rotary(qkv, self.cos_sin, batch, layer, shape.heads, shape.query_scale, self.norms, EPSILON)
        out = kernels.attention(queries, batch, layer, self.dtype, shape.window, shape.softcap)
        return list(out.split(counts))

    def dense(self, sequence: int) -> Tensor:
        """The same by textbook formulas in float64, from keys and values rounded as the cache stores them."""
        shape, rows = self.shape, self.rows[sequence].double()
        length = len(rows)
        query, key, value = rows.split(
            [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim], dim=1
        )
        query, key = query.view(length, shape.heads, -1), key.view(length, shape.kv_heads, -1)
        if self.norms is not None:
            query, key = normed(query, self.norms[0]), normed(key, self.norms[1])
        query, key = rotated(query, self.cos_sin), rotated(key, self.cos_sin).to(self.dtype).double()
        group = shape.heads // shape.kv_heads
        key = key.repeat_interleave(group, 1)
        value = value.view(length, shape.kv_heads, -1).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * shape.query_scale
        if shape.softcap:
            scores = shape.softcap * (scores / shape.softcap).tanh()
        distance = torch.arange(length)[:, None] - torch.arange(length)
        scores[:, (distance < 0) | (distance >= (shape.window or length))] = float("-inf")
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(length, -1)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def rotated(x: Tensor, cos_sin: Tensor) -> Tensor:
    half = cos_sin.shape[1] // 2
    x, rest = x[..., : 2 * half], x[..., 2 * half :]
    cosines, sines = cos_sin[: len(x), :half].double()[:, None], cos_sin[: len(x), half:].double()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines, rest], dim=-1)


@pytest.mark.parametrize("level", LEVELS_HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(9, 3, 64),
        Shape(4, 4, 16),
        Shape(8, 1, 80, 32),
        Shape(14, 2, 128, 48),
        Shape(9, 3, 64, window=1),
        Shape(9, 3, 64, window=2),
        Shape(4, 4, 16, window=16),
        Shape(8, 1, 80, 32, window=37),
        Shape(4, 2, 256, window=129),
        Shape(9, 3, 64, softcap=0.5),
        Shape(4, 4, 16, softcap=30.0, scale=2.0),
        Shape(9, 3, 64, rotary_dim=48),
        Shape(8, 2, 32, has_norms=True, scale=0.3),
        Shape(6, 2, 48, 32, window=21, softcap=2.0, rotary_dim=24, scale=0.5, has_norms=True),
    ],
    ids=str,
)
def test_it_equals_the_dense_formula(level: str, dtype: torch.dtype, shape: Shape) -> None:
    sequences = Sequences(shape, [1, 15, 16, 17, 70, 130], dtype)
    # A mixed step: three sequences whole, the others after a chunk before it.
    sequences.step([(3, 0, 16), (4, 0, 33), (5, 0, 129)], CpuKernels(1, level))
    outputs = sequences.step(
        [(0, 0, 1), (1, 0, 15), (2, 0, 16), (3, 16, 17), (4, 33, 70), (5, 129, 130)], CpuKernels(1, level)
    )
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for sequence, output in enumerate(outputs):
        expected = sequences.dense(sequence)[-len(output) :]
        assert (output.double() - expected).abs().max() < tolerance


@pytest.mark.parametrize("level", LEVELS_HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(9, 3, 64),
        Shape(9, 3, 64, window=3),
        Shape(9, 3, 64, window=50, softcap=4.0),
        Shape(9, 3, 64, window=16, rotary_dim=32, has_norms=True),
    ],
    ids=str,
)
def test_company_chunks_threads_and_block_size_change_no_bit(level: str, dtype: torch.dtype, shape: Shape) -> None:
    lengths = [97, 40, 130]
    kernels = CpuKernels(1, level)
    whole = [
        Sequences(shape, lengths, dtype).step([(index, 0, length)], kernels)[0] for index, length in enumerate(lengths)
    ]
    together = Sequences(shape, lengths, dtype)
    assert all(map(torch.equal, whole, together.step([(0, 0, 97), (1, 0, 40), (2, 0, 130)], CpuKernels(2, level))))
    for chunk in (1, 7, 16, 33):
        other = Sequences(replace(shape, block_size=32), lengths, dtype)
        chunks = [
            other.step([(2, start, min(start + chunk, 130))], CpuKernels(2, level))[0] for start in range(0, 130, chunk)
        ]
        assert torch.equal(torch.cat(chunks), whole[2])


def test_shapes_that_the_vectors_cannot_hold_are_refused_by_value() -> None:
    with pytest.raises(UnsupportedModelError, match="heads of 24 dimensions"):
        check_attention_shape(24, 16)
    with pytest.raises(UnsupportedModelError, match="heads of 2048 dimensions"):
        check_attention_shape(2048, 16)
    with pytest.raises(UnsupportedModelError, match="block size 20"):
        check_attention_shape(64, 20)
