"""Finds stop strings in text that arrives in pieces, and holds back no more than could still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed it an answer's text. ``text`` is what may be shown; ``matched`` the stop string that ended it.

    The first stop string to be completed wins, of several completed by the same character the longest: so
    the result does not depend on where the pieces were cut. The text is cut before it, or after it with
    ``include``.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._include = include
        self._held = ""  # the end of the text: not shown yet, or shown already with `include`
        self.matched: str | None = None

    def push(self, piece: str, *, may_match: bool = True) -> str:
        """The text that can be shown after ``piece``. Nothing more comes once something has ``matched``.

        Without ``may_match`` a stop string that ``piece`` completes is passed over; one that only begins in it may be
        completed by a later piece.
        """
        if not self._stops or not piece:
            return piece
        if self.matched is not None:
            return ""
        text = self._held + piece
        shown = len(self._held) if self._include else 0
        found = self._first(text) if may_match else None
        if found is not None:
            start, end = found
            self.matched = text[start:end]
            self._held = ""
            return text[shown:end] if self._include else text[:start]
        keep = self._possible_beginning(text)
        self._held = text[len(text) - keep :]
        return text[shown:] if self._include else text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        held, self._held = self._held, ""
        return "" if self._include else held

    def _first(self, text: str) -> tuple[int, int] | None:
        """(start, end) of the stop string that the new piece completes first; earlier ones were passed over."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, len(self._held) - len(stop) + 1))
            if start >= 0:
                end = start + len(stop)
                if best is None or (end, start) < (best[1], best[0]):
                    best = (start, end)
        return best

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of ``text`` with which some stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
