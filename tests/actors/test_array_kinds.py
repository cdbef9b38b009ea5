"""Promises of arrays in messages: every kind arrives whole or is refused, in a process as here (A10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringcast.actors as rt
from ringcast.channels import Codec, EncodeError


class Mean(rt.Actor):
    @rt.call
    async def mean(self, array: Any) -> float:
        return float(array.mean())

    @rt.call
    async def echo(self, value: Any) -> Any:
        return value


@pytest.fixture
async def both() -> AsyncIterator[list[Any]]:
    async with rt.System() as system:
        yield [await system.spawn(rt.spec(Mean), where=where) for where in (rt.here, rt.process())]


async def test_a_masked_array_has_one_mean_wherever_it_goes(both: list[Any]) -> None:
    """A10: the mask, the fill value and its hardness arrive; a matrix stays a matrix."""
    masked = np.ma.array([1.0, 2, 999], mask=[0, 0, 1], fill_value=-1, hard_mask=True)
    large = np.ma.array(np.arange(10_000.0), mask=np.arange(10_000) > 10)
    for actor in both:
        assert [await actor.mean(masked), await actor.mean(large)] == [1.5, 5.0]
        arrived = await actor.echo(masked)
        assert type(arrived) is np.ma.MaskedArray and arrived.mask.tolist() == [False, False, True]
        assert (float(arrived.fill_value), arrived.hardmask, arrived.data[2]) == (-1.0, True, 999.0)
        assert (await actor.echo(np.ma.array([1, 2]))).mask is np.ma.nomask
        assert await actor.echo(np.ma.masked) is np.ma.masked
        matrix = await actor.echo(np.asmatrix([[1, 2], [3, 4]]))
        assert type(matrix) is np.matrix and (matrix * matrix).tolist() == [[7, 10], [15, 22]]


class Tagged(np.ndarray):
    pass


def kinds(folder: Path) -> list[Any]:
    return [
        np.zeros(3).view(Tagged),
        np.memmap(folder / "f", shape=(4,), mode="w+"),
        np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        np.zeros(3).view(np.recarray),
    ]


def test_other_kinds_of_arrays_are_refused_with_the_remedy(tmp_path: Path) -> None:
    """A10: none arrives as a plain array."""
    for value in kinds(tmp_path):
        with pytest.raises(EncodeError, match=r"send numpy.asarray\(value\)|plain numbers can"):
            Codec().encode([value])


def test_tensors_keep_their_kind_or_are_refused() -> None:
    """A10: Parameters stay Parameters, leaves keep requires_grad; a gradient's computation does not travel."""
    torch = pytest.importorskip("torch")

    def through(value: object) -> Any:
        return Codec().decode(Codec().encode(value))

    for trainable in (True, False):
        parameter = through(torch.nn.Parameter(torch.ones(3), trainable))
        assert type(parameter) is torch.nn.Parameter and parameter.requires_grad is trainable
    leaf = torch.ones(3, requires_grad=True)
    assert through(leaf).requires_grad and through(leaf).is_leaf and not through(leaf.detach()).requires_grad

    class Own(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    graded = torch.ones(3, requires_grad=True)
    graded.sum().backward()
    for wrong in (leaf * 2, graded, torch.ones(3).as_subclass(Own)):
        with pytest.raises(EncodeError, match="detach"):
            Codec().encode(wrong)


async def test_an_array_is_writable_where_it_arrives_whatever_its_size(both: list[Any]) -> None:
    """Alone, and a small one beside one that goes around the ring."""
    for size in (0, 1, 3, 1000, 10_000, 1_000_000):
        small, large = await both[1].echo([np.zeros(3), np.zeros(size)])
        assert small.flags.writeable and large.flags.writeable and len(large) == size
        small += 1
        assert small.tolist() == [1, 1, 1]
    mask = (await both[1].echo(np.ma.array([1, 2], mask=[0, 1]))).mask
    mask[0] = True
