"""What happened in a simulation, in order. The same seed gives the same trace, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

START_S: Final = 1000.0  # the virtual monotonic clock at first: nobody should take 0 for "not set"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened. ``at`` is in virtual seconds since the simulation began."""

    at: float
    process: str  # "app", or the actor's name and the number of its process: "counter#2"
    what: str

    def __str__(self) -> str:
        return f"{self.at:12.6f}  {self.process:<16} {self.what}"


class Trace(list[TraceEvent]):
    """The events so far."""

    def text(self) -> str:
        """All of them, a line each."""
        return "\n".join(map(str, self))

    def tail(self, count: int = 40) -> str:
        """The last ones."""
        return "\n".join(map(str, self[-count:]))

    def of(self, word: str) -> list[TraceEvent]:
        """Those that mention a word."""
        return [event for event in self if word in event.what]
