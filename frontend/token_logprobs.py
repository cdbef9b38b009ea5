"""The engine's log-probabilities, packed arrays, as vLLM's result objects. `RequestState` calls it a step."""

from __future__ import annotations

from collections.abc import Callable

from ringcast.scheduler import messages

from .outputs import Logprob, LogprobsOfToken


def unpack(packed: messages.Logprobs, text_of: Callable[[int], str] | None) -> list[LogprobsOfToken]:
    """One entry a position. ``text_of`` gives the text of a token id; None leaves ``decoded_token`` out."""
    width = packed.width
    token_ids = memoryview(packed.token_ids).cast("i").tolist()
    values = memoryview(packed.logprobs).cast("f").tolist()
    ranks = memoryview(packed.ranks).cast("i").tolist()
    positions: list[LogprobsOfToken] = []
    for position, rank in enumerate(ranks):
        at: LogprobsOfToken = {}
        for place in range(width):
            index = position * width + place
            token_id = token_ids[index]
            if token_id not in at:  # the token that stands there may come twice
                text = None if text_of is None else text_of(token_id)
                at[token_id] = Logprob(values[index], place or rank, text)
        positions.append(at)
    return positions
