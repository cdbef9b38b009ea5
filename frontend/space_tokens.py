"""`SpaceTokens`: the white space in a vocabulary's tokens, and every sequence of tokens that spells a given one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# All bytes of white-space characters, so that white space in a token lies in a run of them; whatever else is in a run
# does no harm.
_BYTES = {byte for code in range(0x3001) if (character := chr(code)).isspace() for byte in character.encode()}
_RUN = re.compile(b"[" + b"".join(re.escape(bytes([byte])) for byte in sorted(_BYTES)) + b"]+")


class SpaceTokens:
    """Made once per vocabulary: its look-ups go over the few hundred different runs, not over all tokens."""

    def __init__(self, tokens: Iterable[tuple[int, bytes]]) -> None:
        self._runs: dict[bytes, list[int]] = {}  # run -> the tokens that contain it
        self._leading: dict[bytes, list[int]] = {}
        self._trailing: dict[bytes, list[int]] = {}
        self._whole: dict[bytes, list[int]] = {}
        for token_id, text in tokens:
            for match in _RUN.finditer(text):
                self._runs.setdefault(match[0], []).append(token_id)
                if match.start() == 0:
                    self._leading.setdefault(match[0], []).append(token_id)
                if match.end() == len(text):
                    self._trailing.setdefault(match[0], []).append(token_id)
                if match[0] == text:
                    self._whole.setdefault(text, []).append(token_id)

    def sequences(self, space: bytes) -> Iterator[tuple[int, ...]]:
        """Every shortest sequence of tokens in whose text ``space`` stands; its last token completes it."""
        containing = dict.fromkeys(token_id for run, ids in self._runs.items() if space in run for token_id in ids)
        yield from ((token_id,) for token_id in containing)
        for cut in range(1, len(space)):
            head, rest = space[:cut], space[cut:]
            ending = [ids for run, ids in self._trailing.items() if run.endswith(head)]
            first = [token_id for ids in ending for token_id in ids if token_id not in containing]
            if first:
                yield from ((token_id, *tail) for tail in self._tails(rest) for token_id in first)

    def _tails(self, rest: bytes) -> Iterator[tuple[int, ...]]:
        """Sequences whose text begins with ``rest``, and is shorter than it without their last token."""
        for run, ids in self._leading.items():
            if run.startswith(rest):
                yield from ((token_id,) for token_id in ids)
        for run, ids in self._whole.items():
            if len(run) < len(rest) and rest.startswith(run):
                yield from ((token_id, *tail) for tail in self._tails(rest[len(run) :]) for token_id in ids)
