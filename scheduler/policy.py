"""Whose turn it is: the rank of a request, the queue in that order, and who gives way. Used by `Scheduler` alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from .request import Request


def rank(policy: str, priority: int, arrival: int) -> tuple[int, int]:
    """The place in the order of all requests: "fcfs" looks at the arrival alone, "priority" at that last."""
    return (priority if policy == "priority" else 0, arrival)


def victim(running: Iterable[Request]) -> Request:
    """Who gives way when blocks are missing: the highest rank. O(running)."""
    return max(running, key=lambda request: request.rank)


class WaitingQueue:
    """Requests by rank, the lowest first. O(log waiting) a request; leaving from the middle is cheap, too.

    A request that was preempted comes back to where its rank puts it: under "fcfs" before all that never ran.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []  # ranks are unique, so requests are never compared
        self._members: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """All of them, in no order."""
        return iter(self._members.values())

    def put(self, request: Request) -> None:
        self._members[request.request_id] = request
        heapq.heappush(self._heap, (request.rank, request))

    def first(self) -> Request:
        """The next one, which stays; there must be one."""
        while True:
            request = self._heap[0][1]
            if self._members.get(request.request_id) is request:
                return request
            heapq.heappop(self._heap)  # it left from the middle

    def remove(self, request: Request) -> None:
        """It leaves from wherever it is."""
        del self._members[request.request_id]
        if self._heap[0][1] is request:
            heapq.heappop(self._heap)
        elif len(self._heap) > 2 * len(self._members) + 16:  # mostly ghosts
            self._heap = [(member.rank, member) for member in self._members.values()]
            heapq.heapify(self._heap)
