"""Requests under suspicion of killing the worker: who waits to be run alone, and who is. Used by `Scheduler` alone.

A request is suspected when it was in flight at two losses of the worker and drew no token in between; so a request
that only had bad luck is cleared by its next token, however often the worker is killed.
"""

from __future__ import annotations

from .request import Request

_SUSPECT_AT = 2  # losses since its last token


class Trials:
    """Suspects in the order of their ranks; at most one is on trial."""

    def __init__(self) -> None:
        self.on_trial: Request | None = None
        self._waiting: list[Request] = []

    def __len__(self) -> int:
        """All suspects."""
        return len(self._waiting) + (self.on_trial is not None)

    @property
    def waiting(self) -> list[Request]:
        """Those whose trial has not begun."""
        return list(self._waiting)

    def take_in(self, request: Request) -> bool:
        """Let a request that was in flight at a loss wait for its trial, if it is a suspect."""
        if request.num_losses < _SUSPECT_AT:
            return False
        self._waiting.append(request)
        self._waiting.sort(key=lambda suspect: suspect.rank)
        return True

    def begin(self) -> Request:
        """Put the next suspect on trial; there must be one."""
        self.on_trial = self._waiting.pop(0)
        return self.on_trial

    @staticmethod
    def verdict(request: Request, cause: str) -> str:
        """What the user is told whose request was on trial when the worker was lost again."""
        return (
            f"the worker was lost {request.num_losses} times while this request was in flight, the last time while it "
            f"ran alone ({cause}): it is not tried again"
        )

    def release(self, request: Request) -> None:
        """It drew a token, or ended: no suspect any more, if it was one."""
        if request is self.on_trial:
            self.on_trial = None
        elif request in self._waiting:
            self._waiting.remove(request)
