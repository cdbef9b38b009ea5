"""A huge step in pieces: nothing is lost, and the loop runs on in between."""

from __future__ import annotations

import asyncio

import pytest
from frontend_fakes import logprobs_of
from hypothesis import given
from hypothesis import strategies as st

import ringcast.actors as rt
from ringcast.frontend.engine import Frontend
from ringcast.frontend.outputs import LogprobsOfToken
from ringcast.frontend.step_parts import parts
from ringcast.frontend.token_logprobs import unpack, unpack_in_pieces
from ringcast.scheduler.messages import RequestOutput, StepOutputs


def _step(whole: int, plain: int) -> StepOutputs:
    outputs = [RequestOutput(f"w{index}", [index], "length") for index in range(whole)]
    ids = [f"p{index}" for index in range(plain)]
    return StepOutputs(7, outputs, ids, list(range(plain)), [5 + index for index in range(plain)])


@given(whole=st.integers(0, 40), plain=st.integers(0, 40), size=st.integers(1, 20))
def test_the_pieces_are_the_step(whole: int, plain: int, size: int) -> None:
    step = _step(whole, plain)
    pieces = list(parts(step, size))
    assert [output for piece in pieces for output in piece.each()] == list(step.each())
    assert all(len(list(piece.each())) <= size and piece.step_id == 7 for piece in pieces)


def test_a_small_step_is_passed_on_as_it_is() -> None:
    step = _step(3, 4)
    assert [piece is step for piece in parts(step)] == [True]


async def test_other_tasks_run_in_the_middle_of_a_huge_step() -> None:
    seen: list[str] = []

    def note(piece: StepOutputs) -> None:
        seen.append(f"piece of {len(list(piece.each()))}")

    async def other() -> None:
        while "piece of 116" not in seen:
            seen.append("other")
            await asyncio.sleep(0)

    async with rt.System() as system:
        frontend = await system.spawn(rt.spec(Frontend, note))
        await asyncio.gather(frontend.deliver(_step(300, 500)), other())
    pieces = [item for item in seen if item != "other"]
    assert pieces == ["piece of 128"] * 2 + ["piece of 44"] + ["piece of 128"] * 3 + ["piece of 116"]
    first, last = seen.index("piece of 128"), len(seen) - 1 - seen[::-1].index("piece of 116")
    assert seen[first:last].count("other") >= 5


@pytest.mark.parametrize("count", [0, 1, 20])
async def test_many_positions_are_unpacked_in_turns(count: int) -> None:
    packed = logprobs_of(range(3000), count)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    positions: list[LogprobsOfToken] = await unpack_in_pieces(packed, str)
    task.cancel()
    assert positions == unpack(packed, str)
    assert len(positions) == 3000
    assert turns >= (1 + count) * 3000 // 4096
