"""The engine's log-probabilities, packed arrays, as vLLM's result objects. `RequestState` calls it a step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ringcast.scheduler import messages

from .outputs import Logprob, LogprobsOfToken

_PIECE = 4096  # entries that are unpacked before the loop gets its turn: some milliseconds


def unpack(
    packed: messages.Logprobs, text_of: Callable[[int], str] | None, places: range | None = None
) -> list[LogprobsOfToken]:
    """One entry for each of ``places`` (None: all). ``text_of`` gives a token's text; None: ``decoded_token`` is."""
    width = packed.width
    all_ranks = memoryview(packed.ranks).cast("i")
    places = range(len(all_ranks)) if places is None else places
    entries = slice(places.start * width, places.stop * width)
    token_ids = memoryview(packed.token_ids).cast("i")[entries].tolist()
    values = memoryview(packed.logprobs).cast("f")[entries].tolist()
    positions: list[LogprobsOfToken] = []
    for position, rank in enumerate(all_ranks[places.start : places.stop].tolist()):
        at: LogprobsOfToken = {}
        for place in range(width):
            index = position * width + place
            token_id = token_ids[index]
            if token_id not in at:  # the token that stands there may come twice
                text = None if text_of is None else text_of(token_id)
                at[token_id] = Logprob(values[index], place or rank, text)
        positions.append(at)
    return positions


async def unpack_in_pieces(packed: messages.Logprobs, text_of: Callable[[int], str] | None) -> list[LogprobsOfToken]:
    """Like `unpack`, for many positions: other tasks of the loop run in between."""
    count, step = len(packed.ranks) // 4, max(1, _PIECE // packed.width)
    positions: list[LogprobsOfToken] = []
    for first in range(0, count, step):
        positions += unpack(packed, text_of, range(first, min(first + step, count)))
        await asyncio.sleep(0)
    return positions
