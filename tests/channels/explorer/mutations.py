"""The protocol with one line missing or changed, and the world in which that shows.

`CAUGHT` must lead to a counter-example under each of the models named. `HARMLESS` are lines whose order turned out not
to matter: the search exhausts the same worlds without a counter-example.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .configurations import CASES
from .machine import Order
from .protocol import Rules
from .search import MODELS, Configuration, Outcome, explore
from .spill import SpillRules

RELAXED = Order.RELAXED
STORE_BUFFERS = ("TSO", "PSO")


@dataclass(frozen=True, slots=True)
class Mutation:
    """``models`` are those under which the change must show; ``brief`` ones take a second or two."""

    name: str
    rules: SpillRules
    case: str
    models: tuple[str, ...] = MODELS
    slow: tuple[str, ...] = ()

    @property
    def brief(self) -> tuple[str, ...]:
        return tuple(model for model in self.models if model not in self.slow)

    def configuration(self) -> Configuration:
        (case,) = (case for case in CASES if case.name == self.case)
        return case.build(self.rules)

    def search(self, model: str) -> Outcome:
        """Breadth-first, so that the counter-example is a shortest one."""
        return explore(self.configuration(), model, limit=2_000_000, breadth_first=True)


def _ring(
    name: str, case: str, models: tuple[str, ...] = MODELS, slow: tuple[str, ...] = (), **changes: object
) -> Mutation:
    return Mutation(name, SpillRules(ring=replace(Rules(), **changes)), case, models, slow)  # type: ignore[arg-type]


def _spill(name: str, case: str, models: tuple[str, ...] = MODELS, **changes: object) -> Mutation:
    return Mutation(name, replace(SpillRules(), **changes), case, models)  # type: ignore[arg-type]


TWO_WRITERS = "two writers ring one reader"
FULL = "full ring of one"
ONCE = "full ring of one, flushed once"
SPILL = "spill, ring of one"
VIEWS = "spill, the reader reads in place"

CAUGHT = [
    _ring("F1: no fence in flush", TWO_WRITERS, flush_fence=False),
    _ring("S2: no fence after arming", TWO_WRITERS, arm_fence=False),
    _ring("R4: no fence after the cursor", FULL, ("C11",), release_fence=False),
    _ring("X2: no fence after space_wanted", ONCE, full_fence=False),
    _ring("P1: head without release", FULL, ("PSO", "C11"), head_release=RELAXED),
    _ring("A2: head without acquire", FULL, ("C11",), head_acquire=RELAXED),
    _ring("P2: cursor without release", FULL, ("C11",), cursor_release=RELAXED),
    _ring("A1: cursor without acquire", FULL, ("C11",), cursor_acquire=RELAXED),
    _ring("W4 before W3: head before the record", FULL, fills_before_head=False),
    _ring("B3 before B2: system call before the word", TWO_WRITERS, slow=("C11",), word_before_call=False),
    _ring(
        "B2: RINGING keeps others from ringing", "a writer is stopped at each step", STORE_BUFFERS, ringing_rings=False
    ),
    _ring("B4: armings not numbered", "a writer is stopped at each step", STORE_BUFFERS, numbered=False),
    _ring("S3 before S1: looks, then arms", TWO_WRITERS, looks_after_arming=False),
    _ring("X4: laggards outside the mask not rung", "laggard outside the mask", STORE_BUFFERS, rings_laggards=False),
    _ring("waits without draining", "full rings that face each other", STORE_BUFFERS, drains_while_waiting=False),
    _ring("deaths not notified", "a writer dies at each step", STORE_BUFFERS, notifies_survivors=False),
    _ring("evicts without proof of death", "a reader dies at each step and is evicted", awaits_proof=False),
    _ring("admission after the next record", "a reader joins late", STORE_BUFFERS, admits_first=False),
    _ring("closed state without release", "the ring is closed", ("PSO", "C11"), close_release=RELAXED),
    _spill("D2: detaches with a store", SPILL, detach_swaps=False),
    _spill("D1, D2: detaches without acquire", SPILL, ("C11",), detach_acquire=RELAXED),
    _spill("D3: overwrites before the records were moved", SPILL, moves_first=False),
    _spill("D1: pins ignored", VIEWS, heeds_pins=False),
    _spill("R3: consumes with a store", SPILL, reader_swaps=False),
    _spill("R3: its failure ignored", SPILL, reader_heeds=False),
    _spill("R5 before R3: delivers, then validates", SPILL, delivers_last=False),
    _spill("torn bytes reported as corrupt", SPILL, checks_corrupt=False),
    _spill("V1: pins with a store", VIEWS, pins_swap=False),
    _spill("H1 after W4: attached after the next record", SPILL, word_before_records=False),
    _spill("L3: goes on in the ring without the notice", SPILL, waits_for_notice=False, attaches_late=False),
    Mutation("P2 in spill", SpillRules(ring=Rules(cursor_release=RELAXED)), SPILL, ("C11",)),
    Mutation("A2 in spill", SpillRules(ring=Rules(head_acquire=RELAXED)), SPILL, ("C11",)),
    Mutation("V3: view ended without release", SpillRules(ring=Rules(cursor_release=RELAXED)), VIEWS, ("C11",)),
]

HARMLESS = [
    _ring(
        "B3 before B2, of the arming seen in B1: the number is enough",
        TWO_WRITERS,
        word_before_call=False,
        word_after_call="as seen before",
    ),
    _ring("S7 before S6: takes the token, then is awake", TWO_WRITERS, awake_before_take=False),
    _ring(
        "S7 before S6, and a writer is stopped",
        "a writer is stopped at each step",
        STORE_BUFFERS,
        awake_before_take=False,
    ),
    _ring("X3 before X1: the wait looks again", FULL, announces_first=False),
    _ring("X2 with a flush for each record: the wait has S2", FULL, full_fence=False),
    _spill("T1: attaches before the reader has caught up", SPILL, attaches_late=False),
    _spill("a detached reader's bell is not rung: its link wakes it", "spill, flushed once", rings_moved=False),
]
