"""The floor under every awake transport: a word in shared memory that two processes change in turn, and nothing else.

It moves with what the machine does at the moment (which physical cores, how they are clocked), so ratios to it do not.
"""

from __future__ import annotations

import time

from ringcast.channels import Board, create_segment

from . import Endpoint, Peer, summarise

NEAR, FAR = 0, 1  # slots of the board


class WordEndpoint(Endpoint):
    """The progress words of a board: each side advances its own and polls the other's, in native code."""

    def __init__(self, peer: Peer, near: bool) -> None:
        if near:
            segment = create_segment(Board.size_bytes())
            self._board = Board.create(segment.fd)
            peer.send(None, [segment.fd])
            peer.receive()
        else:
            self._board = Board(peer.receive()[1][0])
            peer.send()
        self._seen = (0, 0)  # the near side's word when the far side last answered

    def ping(self, size_bytes: int, count: int) -> dict[str, float]:
        """Half a round trip of one cache line, with the calls from Python that it takes."""
        advance, progress, now = self._board.advance, self._board.progress, time.perf_counter
        laps = [0.0] * count
        for i in range(-(count // 10), count):
            seen = progress(FAR)
            start = now()
            advance(NEAR, 1)
            while progress(FAR) == seen:
                pass
            laps[i] = now() - start
        return summarise(laps, 2)

    def echo(self, size_bytes: int, count: int) -> None:
        """The other side of `ping`."""
        advance, progress = self._board.advance, self._board.progress
        seen = self._seen
        for _ in range(count + count // 10):
            while progress(NEAR) == seen:
                pass
            seen = progress(NEAR)
            advance(FAR, 1)
        self._seen = seen
