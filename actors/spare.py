"""Keeps a warm spare for one actor: a process that has prepared itself and waits to become the next incarnation.

Owned by `record`, which takes the spare when it starts its actor again. A spare is supervised like any child: it ends
with the system's first process, and one that dies is replaced, after a delay that grows, until it has died too often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from .errors import ActorError, Cause, ResourcesExhausted
from .process_host import ProcessHost

log = logging.getLogger("ringcast.actors")

# The actor has just begun to work, and a spare's start takes a processor. The first can wait until it is plain that the
# program is no short one; who has died once may do so again soon.
FIRST_DELAY_S = 10.0
NEXT_DELAY_S = 1.0
MAX_DELAY_S = 160.0
MAX_DEATHS = 5  # of spares of one incarnation; then it has none


class SpareKeeper:
    """``make`` returns a host that was not started, for the incarnation that comes next."""

    def __init__(self, name: str, make: Callable[[], ProcessHost]) -> None:
        self._name = name
        self._make = make
        self._spare: ProcessHost | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._num_deaths = 0
        self._num_scarce = 0  # starts in a row that found no resources, which count as no death
        self._delay_s = FIRST_DELAY_S

    def begin(self, incarnation: int) -> None:
        """The actor is READY: have a spare from a moment later on."""
        self._num_deaths = 0
        self._delay_s = FIRST_DELAY_S if incarnation == 1 else NEXT_DELAY_S
        self._launch_later()

    def take(self) -> ProcessHost | None:
        """The spare, which is one no more, if there is one; it need not have prepared itself to the end."""
        self._cancel_timer()
        spare, self._spare = self._spare, None
        return spare

    def drop(self) -> ProcessHost | None:
        """No spare is needed any more: kill it. The host that is going to be gone, if there was one."""
        spare = self.take()
        if spare is not None:
            spare.kill("it is not needed as a spare any more")
        return spare

    def _launch_later(self) -> None:
        self._cancel_timer()
        delay_s = min(self._delay_s * 2.0 ** (self._num_deaths + self._num_scarce), MAX_DELAY_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._launch)

    def _launch(self) -> None:
        self._timer = None
        try:
            host = self._make()
            host.launch_spare(lambda cause: self._died(host, cause))
        except ResourcesExhausted as error:  # no slot, no memory, no process: later there may be
            self._num_scarce += 1
            log.warning("a spare of %r is started later: %s", self._name, error.cause.summary)
            self._launch_later()
            return
        except ActorError as error:
            self._count(str(error))
            return
        self._num_scarce = 0
        self._spare = host

    def _died(self, host: ProcessHost, cause: Cause) -> None:
        if host is self._spare:
            self._spare = None
            self._count(str(cause))

    def _count(self, why: str) -> None:
        self._num_deaths += 1
        given_up = self._num_deaths >= MAX_DEATHS
        log.warning("a spare of %r died%s: %s", self._name, " and is not replaced" if given_up else "", why)
        if not given_up:
            self._launch_later()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
