"""The small worlds that are explored, and how each is put together from programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from . import membership, spill
from .machine import Program
from .protocol import Channel, Role, Rules, bell, link, process, supervisor
from .search import MODELS, Configuration
from .spill import Lane, SpillRules


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration for any rules, the memory models to run it under, and those of the short run."""

    name: str
    build: Callable[[SpillRules], Configuration]
    models: tuple[str, ...]
    brief: tuple[str, ...]


def world(
    name: str,
    channels: Iterable[Channel],
    threads: dict[str, Callable[[], Program]],
    words: Sequence[str] = (),
    links: Sequence[str] = (),
    mortal: Sequence[str] = (),
    daemons: Sequence[str] = (),
) -> Configuration:
    """Threads that share these rings; every thread has a bell and an eventfd."""
    variables: dict[str, Any] = dict.fromkeys(words, 0)
    cells: list[str] = []
    ghosts: dict[str, int] = {}
    pairs = []
    for channel in channels:
        variables |= {channel.head: 0, channel.space_wanted: 0}
        ghosts[f"published.{channel.writer}"] = 0
        for reader in channel.readers:
            variables[channel.word(reader)] = 0
            ghosts[f"consumed.{channel.writer}.{reader}"] = 0
            pairs.append((f"published.{channel.writer}", f"consumed.{channel.writer}.{reader}", channel.capacity))
        cells += channel.cells()
    variables |= dict.fromkeys(cells, 0)
    sleepers = [thread for thread in threads if thread != "supervisor"]
    variables |= {bell(thread): 0 for thread in sleepers}

    def depth_is_bounded(values: dict[str, Any]) -> str | None:
        for published, consumed, capacity in pairs:
            if values[published] - values[consumed] > capacity:
                return f"{values[published] - values[consumed]} records are in use in a ring of {capacity}"
        return None

    bounded = depth_is_bounded if not mortal and "late" not in name else None  # the dead and the absent consume nothing
    return Configuration(
        name, threads, variables, cells, sleepers, links, ghosts, mortal, daemons=daemons, invariant=bounded
    )


def processes(rules: Rules, roles: Iterable[Role]) -> dict[str, Callable[[], Program]]:
    return {role.me: partial(process, rules, role) for role in roles}


def broadcast(rules: SpillRules, name: str, records: int, capacity: int) -> Configuration:
    """One writer, two readers; each record is for both."""
    channel = Channel("W", ("R", "S"), capacity)
    both = (("R", "S"),) * records
    reads = ((channel, records),)
    roles = [Role("W", outbound=channel, addressed=both), Role("R", reads), Role("S", reads)]
    return world(name, [channel], processes(rules.ring, roles))


def full(rules: SpillRules, name: str, records: int, capacity: int, flush_every: int = 1) -> Configuration:
    """One writer that runs full, one reader."""
    channel = Channel("W", ("R",), capacity)
    addressed = (("R",),) * records
    roles = [Role("W", (), channel, addressed, flush_every), Role("R", ((channel, records),))]
    return world(name, [channel], processes(rules.ring, roles))


def laggard(rules: SpillRules, name: str) -> Configuration:
    """Records for R alone fill the ring, while S sleeps on them unread."""
    channel = Channel("W", ("R", "S"), 1)
    reads = ((channel, 2),)
    roles = [Role("W", (), channel, (("R",),) * 2), Role("R", reads), Role("S", reads)]
    return world(name, [channel], processes(rules.ring, roles), daemons=["S"])  # nobody wakes it for the last record


def doorbell(rules: SpillRules, name: str, of_a: int, of_b: int) -> Configuration:
    """Two writers that never run full ring the bell of one reader."""
    a, b = Channel("A", ("R",), of_a), Channel("B", ("R",), of_b)
    roles = [
        Role("A", (), a, (("R",),) * of_a),
        Role("B", (), b, (("R",),) * of_b),
        Role("R", ((a, of_a), (b, of_b))),
    ]
    return world(name, [a, b], processes(rules.ring, roles))


def facing(rules: SpillRules, name: str, records: int) -> Configuration:
    """Two processes with a ring of one record towards each other."""
    a, b = Channel("A", ("B",), 1), Channel("B", ("A",), 1)
    roles = [
        Role("A", ((b, records),), a, (("B",),) * records),
        Role("B", ((a, records),), b, (("A",),) * records),
    ]
    return world(name, [a, b], processes(rules.ring, roles))


def writer_dies(rules: SpillRules, name: str, of_b: int, reported: bool) -> Configuration:
    """A may die at each step. Reported: R reads what A published, and all of B. Else (A is stopped): all of B."""
    a, b = Channel("A", ("R",), 1), Channel("B", ("R",), of_b)
    news = link("supervisor", "R")
    reader = Role("R", ((a, 1), (b, of_b)), obituaries=news if reported else None, optional=() if reported else ("A",))
    roles = [Role("A", (), a, (("R",),)), Role("B", (), b, (("R",),) * of_b), reader]
    threads = processes(rules.ring, roles)
    if reported:
        threads["supervisor"] = partial(supervisor, rules.ring, "A", ("R",))
    return world(name, [a, b], threads, links=[news] if reported else [], mortal=["A"])


def reader_dies(rules: SpillRules, name: str, records: int) -> Configuration:
    """S may die at each step; the writer evicts it and goes on with R."""
    channel = Channel("W", ("R", "S"), 1)
    news = link("supervisor", "W")
    reads = ((channel, records),)
    roles = [
        Role("W", (), channel, (("R", "S"),) * records, obituaries=news),
        Role("R", reads),
        Role("S", reads),
    ]
    threads = processes(rules.ring, roles)
    threads["supervisor"] = partial(supervisor, rules.ring, "S", ("W",))
    return world(name, [channel], threads, links=[news], mortal=["S"])


def late(rules: SpillRules, name: str, records: int, capacity: int) -> Configuration:
    """A second reader is admitted between two records."""
    channel = Channel("W", ("R", "S"), capacity)
    threads: dict[str, Callable[[], Program]] = {
        "W": partial(membership.admitting_writer, rules.ring, channel, records),
        "R": partial(process, rules.ring, Role("R", ((channel, records),))),
        "S": partial(membership.late_reader, rules.ring, channel, "S", records),
    }
    return world(name, [channel], threads, links=[link("W", "S")])


def closing(rules: SpillRules, name: str) -> Configuration:
    """The last record and the end of the ring."""
    channel = Channel("W", ("R",), 1)
    threads: dict[str, Callable[[], Program]] = {
        "W": partial(membership.closing_writer, rules.ring, channel),
        "R": partial(membership.reader_to_the_end, rules.ring, channel, "R"),
    }
    return world(name, [channel], threads, words=[membership.state(channel)])


def spilling(
    rules: SpillRules,
    name: str,
    wanted: tuple[bool, ...],
    capacity: int,
    views: bool = False,
    flush_every: int = 1,
    dies: str = "",
) -> Configuration:
    """A writer under `spill` and one slow reader; either may be mortal."""
    channel = Channel("W", ("R",), capacity)
    survivor = "R" if dies == "W" else "W"
    news = link("supervisor", survivor) if dies else None
    lane = Lane(channel, wanted, views=views, flush_every=flush_every, obituary=news)
    threads: dict[str, Callable[[], Program]] = {
        "W": partial(spill.writer, rules, lane),
        "R": partial(spill.reader, rules, lane),
    }
    if dies:
        threads["supervisor"] = partial(supervisor, rules.ring, dies, (survivor,))
    configuration = world(
        name, [channel], threads, [lane.taken], [lane.link, *([news] if news else [])], [dies] if dies else []
    )
    return replace(configuration, invariant=None, ghosts={})  # a detached reader is in no minimum


STORE_BUFFERS = ("TSO", "PSO")
WIDEST = ("PSO",)  # every run of TSO is one of PSO


def _case(
    build: Callable[..., Configuration],
    name: str,
    *args: Any,
    models: tuple[str, ...] = MODELS,
    brief: tuple[str, ...] = MODELS,
    **more: Any,
) -> Case:
    return Case(name, lambda rules: build(rules, name, *args, **more), models, tuple(m for m in brief if m in models))


# What the short run leaves out takes more than some seconds.
CASES = [
    _case(broadcast, "one record to two readers", 1, 1),
    _case(broadcast, "two records to two readers", 2, 2, models=STORE_BUFFERS, brief=()),
    _case(broadcast, "two records to two readers through a ring of one", 2, 1, models=WIDEST, brief=()),
    _case(full, "full ring of one", 3, 1, brief=WIDEST),
    _case(full, "full ring of two", 4, 2, brief=WIDEST),
    _case(full, "full ring of one, flushed once", 3, 1, 3, brief=WIDEST),
    _case(laggard, "laggard outside the mask", models=WIDEST, brief=()),
    _case(doorbell, "two writers ring one reader", 1, 1),
    _case(doorbell, "two writers ring one reader, two records and one", 2, 1, models=STORE_BUFFERS, brief=WIDEST),
    _case(doorbell, "two writers ring one reader, two records each", 2, 2, models=WIDEST, brief=()),
    _case(facing, "full rings that face each other", 2, brief=()),
    _case(writer_dies, "a writer dies at each step", 1, True, brief=WIDEST),
    _case(writer_dies, "a writer dies at each step, two records of the other", 2, True, models=WIDEST, brief=()),
    _case(writer_dies, "a writer is stopped at each step, one record", 1, False, models=("C11",), brief=()),
    _case(writer_dies, "a writer is stopped at each step", 2, False, models=STORE_BUFFERS, brief=WIDEST),
    _case(reader_dies, "a reader dies at each step and is evicted", 2, models=STORE_BUFFERS, brief=()),
    _case(late, "a reader joins late", 2, 2, brief=WIDEST),
    _case(closing, "the ring is closed"),
    _case(spilling, "spill, ring of one", (True,) * 4, 1, brief=WIDEST),
    _case(spilling, "spill, ring of two", (True,) * 4, 2, brief=WIDEST),
    _case(spilling, "spill, a record for others", (True, False, True, True), 1, brief=WIDEST),
    _case(spilling, "spill, flushed once", (True,) * 4, 2, flush_every=4),
    _case(spilling, "spill, the reader reads in place", (True,) * 3, 1, views=True, brief=WIDEST),
    _case(
        spilling, "spill, the writer dies at each step", (True,) * 3, 1, dies="W", models=STORE_BUFFERS, brief=WIDEST
    ),
    _case(
        spilling,
        "spill, the writer dies at each step, two records",
        (True,) * 2,
        1,
        dies="W",
        models=("C11",),
        brief=(),
    ),
    _case(
        spilling, "spill, the reader dies at each step", (True,) * 3, 1, dies="R", models=STORE_BUFFERS, brief=WIDEST
    ),
    _case(
        spilling,
        "spill, the reader dies at each step, two records",
        (True,) * 2,
        1,
        dies="R",
        models=("C11",),
        brief=(),
    ),
    _case(
        spilling,
        "spill, the reader dies with a view open",
        (True,) * 3,
        1,
        views=True,
        dies="R",
        models=STORE_BUFFERS,
        brief=(),
    ),
    _case(
        spilling,
        "spill, the reader dies with a view open, two records",
        (True,) * 2,
        1,
        views=True,
        dies="R",
        models=("C11",),
        brief=(),
    ),
]
