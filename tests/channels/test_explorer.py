"""The protocol of docs/channels.md, explored exhaustively in small worlds; the long run is ``make explore``.

That a mutation is caught proves that the explorer would see the absence of that line.
"""

from __future__ import annotations

import pytest
from explorer.configurations import CASES, Case
from explorer.mutations import CAUGHT, HARMLESS, Mutation
from explorer.search import World, explore, trace_lines
from explorer.spill import SpillRules

BRIEF = [(case, model) for case in CASES for model in case.brief]
MUTATIONS = [(mutation, model) for mutation in CAUGHT for model in mutation.brief]


@pytest.mark.parametrize(("case", "model"), BRIEF, ids=lambda value: getattr(value, "name", value))
def test_every_interleaving_keeps_the_promises(case: Case, model: str) -> None:
    outcome = explore(case.build(SpillRules()), model)
    assert outcome.violation is None, "\n".join(trace_lines(outcome))
    assert outcome.complete and outcome.states > 100


@pytest.mark.parametrize(("mutation", "model"), MUTATIONS, ids=lambda value: getattr(value, "name", value))
def test_the_explorer_catches_a_missing_line(mutation: Mutation, model: str) -> None:
    outcome = mutation.search(model)
    assert outcome.violation is not None, "not caught"


def test_mutations_name_existing_worlds_and_lines() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for mutation in CAUGHT + HARMLESS:
        assert mutation.case in names and mutation.rules != SpillRules()
    assert len({mutation.name for mutation in CAUGHT + HARMLESS}) == len(CAUGHT + HARMLESS)


@pytest.mark.parametrize("name", ["full ring of one, flushed once", "spill, ring of two", "a reader joins late"])
def test_states_of_a_step_machine_hide_nothing(name: str) -> None:
    """A state stands for all histories that reach it: each of them goes on alike. Iterators, say, would be hidden."""
    (case,) = (case for case in CASES if case.name == name)
    configuration = case.build(SpillRules())
    world = World(configuration, "PSO")
    seen, work = {world.initial()}, [world.initial()]
    while work:
        for _, after in world.successors(work.pop()):
            if after not in seen:
                seen.add(after)
                work.append(after)
    for machine in world.machines:
        histories, transitions = machine.histories(), machine.transitions()
        arrivals: dict[int, list[tuple[object, ...]]] = {}
        for (state, result), after in transitions.items():
            arrivals.setdefault(after, []).append((*histories[state], result))
        for (state, result), after in transitions.items():
            expected = machine.key_of(histories[after])
            for history in arrivals.get(state, []):
                assert machine.key_of((*history, result)) == expected
