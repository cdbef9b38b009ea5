"""Who is in the worker: its rows, and through the KV manager its blocks. Shared by `Scheduler` and `Planner`."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import AccountError
from .kv_manager import KVManager
from .request import NO_ROW, Request, RequestStatus


class Residents:
    """Running requests in the order of their entry, each with a row of its own."""

    def __init__(self, max_num_seqs: int, kv: KVManager) -> None:
        self.kv = kv
        self.running: dict[str, Request] = {}
        self._max_num_seqs = max_num_seqs
        self._free_rows: list[int] = []
        self._freed_rows: list[int] = []
        self._reset_rows()

    @property
    def has_free_row(self) -> bool:
        return bool(self._free_rows)

    def settle(self, request: Request) -> None:
        """Give a row to a request that the KV manager let in."""
        self.running[request.request_id] = request
        request.row = self._free_rows.pop()
        request.status = RequestStatus.RUNNING

    def leave(self, request: Request) -> None:
        """Take back everything that a request holds in the worker. Its status is the caller's business."""
        del self.running[request.request_id]
        self.kv.free(request)
        self._freed_rows.append(request.row)
        self._free_rows.append(request.row)
        request.leave_worker()

    def take_freed_rows(self) -> list[int]:
        """The rows that were left since the last call: the next plan tells the worker to forget them."""
        freed, self._freed_rows = self._freed_rows, []
        return freed

    def lose_all(self, num_blocks: int) -> list[Request]:
        """The worker is gone, its successor has empty rows and so many blocks; those that were in it."""
        requests = list(self.running.values())
        for request in requests:
            request.leave_worker()
        self.running.clear()
        self._reset_rows()
        self.kv.lose_all(num_blocks)
        return requests

    def check(self, others: Iterable[Request]) -> None:
        """`AccountError` unless every block and row is held by one of the running, or free. ``others`` hold none."""
        self.kv.check(self.running.values())
        rows = sorted([request.row for request in self.running.values()] + self._free_rows)
        if rows != list(range(self._max_num_seqs)):
            raise AccountError(f"rows are held twice or lost: {rows}")
        for request in self.running.values():
            if request.capacity != len(request.block_ids) * self.kv.block_size:
                raise AccountError(f"capacity of request {request.request_id!r} is not that of its blocks")
        for request in others:
            if request.num_computed_tokens or request.num_pending_tokens or request.block_ids or request.row != NO_ROW:
                raise AccountError(f"request {request.request_id!r} is not running, but holds something in the worker")

    def _reset_rows(self) -> None:
        self._free_rows = list(range(self._max_num_seqs - 1, -1, -1))
        self._freed_rows = []
