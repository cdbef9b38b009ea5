"""Plans in flight, and the check that none is given a block that an earlier one still writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ringcast.scheduler.messages import StepPlan


class InFlightBlocks:
    """The tables of the rows as the worker will have them when it has run every plan begun so far."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._plans: deque[tuple[StepPlan, set[int]]] = deque()  # with the blocks that each writes
        self._tables: dict[int, list[int]] = {}
        self._num_computed: dict[int, int] = {}  # tokens of each row, when all plans begun so far are over

    def __len__(self) -> int:
        return len(self._plans)

    def begin(self, plan: StepPlan) -> None:
        """A plan was made: its new blocks are not those of a plan in flight."""
        given: list[int] = []
        for row in plan.freed_rows:
            del self._tables[row]
        for new in plan.new_rows:
            self._tables[new.row] = list(new.block_ids)
            self._num_computed[new.row] = new.num_computed_tokens
            # The first blocks of a row that begins behind computed tokens are shared: it only reads them.
            given += new.block_ids[new.num_computed_tokens // self._block_size :]
        for row, new_block_ids in zip(plan.rows, plan.new_block_ids, strict=True):
            self._tables[row] += new_block_ids
            given += new_block_ids
        assert len(set(given)) == len(given), "a block is given twice in one plan"
        for earlier, written in self._plans:
            assert not written & set(given), f"step {plan.step_id} is given blocks that step {earlier.step_id} writes"
        self._plans.append((plan, set(self._written(plan))))

    def _written(self, plan: StepPlan) -> Iterator[int]:
        """The blocks that get keys and values in this step. Those before them may be others' and are only read."""
        for row, num_tokens in zip(plan.rows, plan.num_tokens, strict=True):
            first = self._num_computed[row]
            self._num_computed[row] = first + num_tokens
            yield from self._tables[row][first // self._block_size : -(-(first + num_tokens) // self._block_size)]

    def finish(self) -> StepPlan:
        """The oldest plan in flight, which is so no more."""
        return self._plans.popleft()[0]

    def clear(self) -> None:
        """The worker died."""
        self._plans.clear()
        self._tables.clear()
