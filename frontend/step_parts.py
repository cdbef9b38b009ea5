"""Cuts a step's outputs, so that the loop can do something else in the middle of a step of a thousand requests."""

from __future__ import annotations

from collections.abc import Iterator

from ringcast.scheduler.messages import StepOutputs

_SIZE = 128  # outputs that are processed in one go, a millisecond or two


def parts(outputs: StepOutputs, size: int = _SIZE) -> Iterator[StepOutputs]:
    """The same outputs in pieces of at most ``size``, each request's in one of them; a small step as it is."""
    if len(outputs.outputs) + len(outputs.request_ids) <= size:
        yield outputs
        return
    for first in range(0, len(outputs.outputs), size):
        yield StepOutputs(outputs.step_id, outputs.outputs[first : first + size])
    for first in range(0, len(outputs.request_ids), size):
        piece = slice(first, first + size)
        yield StepOutputs(
            outputs.step_id, [], outputs.request_ids[piece], outputs.token_ids[piece], outputs.starts[piece]
        )
