"""Requests that may kill what runs them: who must run alone, and who is not tried again.

Used by `Scheduler` (losses of the worker) and by the frontend's `Journal` (deaths of the engine core).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

_SUSPECT_AT = 2  # crashes since its last token: from then on a request runs alone


class Suspect(Protocol):
    """What the quarantine needs of a request. Its owner initialises ``num_losses`` with 0 and only reads it."""

    num_losses: int  # crashes while it was in flight, since its last token

    @property
    def rank(self) -> Any:
        """The lowest runs first."""


S = TypeVar("S", bound=Suspect)


class Quarantine(Generic[S]):
    """Suspects, of which one at a time runs alone.

    A request that was in flight at two crashes without a token in between is a suspect. It runs alone; if that ends in
    a crash too, it is convicted, and its owner ends it with an error. Its next token clears it, and so does its end.
    Only crashes are evidence: a kill from outside (`ringcast.actors.Cause.from_outside`) counts against nobody.
    """

    def __init__(self) -> None:
        self.alone: S | None = None  # the suspect that runs alone, or is about to
        self._waiting: list[S] = []  # suspects that have not run alone yet, in order of their ranks

    def __len__(self) -> int:
        """All suspects."""
        return len(self._waiting) + (self.alone is not None)

    def __contains__(self, request: object) -> bool:
        return request is self.alone or any(request is suspect for suspect in self._waiting)

    def __iter__(self) -> Iterator[S]:
        """All suspects, in no order that matters."""
        return iter([*self._waiting] if self.alone is None else [self.alone, *self._waiting])

    def next(self) -> S | None:
        """The suspect that has to run alone now; None if there is no suspect."""
        if self.alone is None and self._waiting:
            self.alone = self._waiting.pop(0)
        return self.alone

    def lose(self, in_flight: Iterable[S], *, is_evidence: bool) -> S | None:
        """What ran these requests is gone. The convicted one, if there is one; it is no suspect any more.

        The one that ran alone waits to do so again, unless it is convicted.
        """
        alone, self.alone = self.alone, None
        convicted: S | None = None
        if is_evidence:
            for request in in_flight:
                request.num_losses += 1
                if request is alone:
                    convicted = request
                elif request.num_losses >= _SUSPECT_AT and request not in self:
                    self._waiting.append(request)
        if alone is not None and alone is not convicted:
            self._waiting.append(alone)
        self._waiting.sort(key=lambda suspect: suspect.rank)
        return convicted

    def release(self, request: S) -> None:
        """It drew a token, or ended: it is no suspect any more, if it was one."""
        request.num_losses = 0
        if request is self.alone:
            self.alone = None
        else:
            self._waiting = [suspect for suspect in self._waiting if suspect is not request]


def verdict(what: str, request: Suspect, cause: str) -> str:
    """The error of a convicted request; ``what`` crashed, for the last time by ``cause``."""
    return (
        f"{what} {request.num_losses} times while this request was in flight, the last time while it ran alone "
        f"({cause}): it is not tried again"
    )
