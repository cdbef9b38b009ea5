"""Every interleaving of a configuration: depth-first over its states, or breadth-first for a short counter-example.

A state is what all threads, the memory, the eventfds, the links and the ghost variables are. Each state is expanded
once. Steps that nobody else can notice are taken at once (a partial-order reduction), except those of a thread that may
crash, so that it can die at each step.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .machine import (
    AwaitDeath,
    Load,
    Machine,
    Mark,
    Operation,
    Order,
    Program,
    Receive,
    Ring,
    Send,
    Sleep,
    Store,
    Swap,
    Take,
    Violated,
)
from .store_buffers import StoreBuffers
from .views import Views

MODELS = ("TSO", "PSO", "C11")

Ghosts: TypeAlias = tuple[Any, ...]
# threads, memory, eventfd counts, links, ghosts, crashes left
Label: TypeAlias = str | tuple[int, int, Any]  # or: thread, its state, result of its operation
State: TypeAlias = tuple[tuple[int, ...], Any, tuple[int, ...], tuple[Any, ...], Ghosts, int]


@dataclass(frozen=True)
class Configuration:
    """A small world: its threads, what they share, who may crash, and what must hold in every state."""

    name: str
    threads: Mapping[str, Callable[[], Program]]
    variables: Mapping[str, Any]  # shared words, with their first values
    cells: Sequence[str] = ()  # those of them that hold records
    tokens: Sequence[str] = ()  # eventfds
    links: Sequence[str] = ()
    ghosts: Mapping[str, Any] = field(default_factory=dict)
    mortal: Sequence[str] = ()  # at most `crashes` of them die, each at any step
    crashes: int = 1
    daemons: Sequence[str] = ()  # threads that may wait for ever
    invariant: Callable[[dict[str, Any]], str | None] | None = None  # of the ghosts; the text says what is broken


@dataclass(frozen=True)
class Outcome:
    """What a search found. ``violation`` is None if every promise held in every state."""

    states: int
    transitions: int
    violation: str | None = None
    trace: tuple[str, ...] = ()
    complete: bool = True


class World:
    """The transition relation of a configuration under a memory model."""

    def __init__(self, configuration: Configuration, model: str) -> None:
        self.configuration = c = configuration
        self.names = list(c.threads)
        self.machines = [Machine(name, program) for name, program in c.threads.items()]
        self.memory: StoreBuffers | Views
        if model == "C11":
            self.memory = Views(dict(c.variables), self.names, c.cells, len(c.links))
        else:
            self.memory = StoreBuffers(dict(c.variables), self.names, total_order=model == "TSO")
        self.tokens = {name: i for i, name in enumerate(c.tokens)}
        self.links = {name: i for i, name in enumerate(c.links)}
        self.ghosts = {name: i for i, name in enumerate(c.ghosts)}
        self.mortal = [self.names.index(name) for name in c.mortal]
        self.daemons = {self.names.index(name) for name in c.daemons}
        self.awaited: set[int] = set(self.mortal)
        self._steps: dict[tuple[int, int], Callable[[State], list[tuple[Any, State]]]] = {}

    def initial(self) -> State:
        c = self.configuration
        return (
            (0,) * len(self.machines),
            self.memory.initial(),
            (0,) * len(c.tokens),
            ((),) * len(c.links),
            tuple(c.ghosts.values()),
            c.crashes if c.mortal else 0,
        )

    def is_done(self, state: State) -> bool:
        """Every thread has ended, has died, or may wait for ever."""
        return all(
            i in self.daemons or machine.operation(at) is None
            for i, (machine, at) in enumerate(zip(self.machines, state[0], strict=True))
        )

    def successors(self, state: State) -> list[tuple[Label, State]]:
        """All (label, state) that may come next. `Violated` if a promise is broken on the way."""
        threads, memory = state[0], state[1]
        found: list[tuple[Label, State]] = []
        for i, machine in enumerate(self.machines):
            operation = machine.operation(threads[i])
            if operation is None:
                continue
            steps = self._advance(state, i, operation)
            if steps and i not in self.mortal and self._is_local(i, operation, memory):
                return steps
            found += steps
        for label, after in self.memory.internal(memory):
            found.append((label, (threads, after, *state[2:])))
        if state[5]:
            for i in self.mortal:
                if self.machines[i].operation(threads[i]) is not None:
                    after = self.memory.retire(memory, i, i in self.awaited)
                    dead = (*threads[:i], Machine.CRASHED, *threads[i + 1 :])
                    found.append((f"{self.names[i]}: DIES", (dead, after, *state[2:5], state[5] - 1)))
        return found

    def label(self, step: Label) -> str:
        """A step for a trace."""
        if isinstance(step, str):
            return step
        thread, at, result = step
        machine = self.machines[thread]
        operation = machine.operation(at)
        assert operation is not None
        where = machine.states[at].where
        return f"{machine.name} [{where}] {_text(operation)}" + ("" if result is None else f" -> {result}")

    def describe(self, state: State) -> str:
        text = self.memory.describe(state[1])
        tokens = ", ".join(f"{name}={count}" for name, count in zip(self.tokens, state[2], strict=True))
        return f"{text} | {tokens}" if tokens else text

    def _is_local(self, thread: int, operation: Operation, memory: Any) -> bool:
        if isinstance(operation, Mark):
            return self.configuration.invariant is None
        if isinstance(operation, (Ring, Take, Sleep, Send, Receive, AwaitDeath)):
            return False
        return self.memory.is_local(thread, operation, memory)

    def _advance(self, state: State, thread: int, operation: Operation) -> list[tuple[Label, State]]:
        at = state[0][thread]
        step = self._steps.get((thread, at))
        if step is None:
            step = self._steps[thread, at] = self._compile(thread, operation)
        machine = self.machines[thread]
        found = []
        for result, (threads, memory, tokens, links, ghosts, crashes) in step(state):
            after = machine.advance(at, result)
            reached = machine.states[after]
            if reached.violation is not None:
                raise Violated(f"{machine.name}: {reached.violation}")
            if reached.operation is None:
                memory = self.memory.retire(memory, thread, thread in self.awaited)
            threads = (*threads[:thread], after, *threads[thread + 1 :])
            found.append(((thread, at, result), (threads, memory, tokens, links, ghosts, crashes)))
        return found

    def _compile(self, thread: int, operation: Operation) -> Callable[[State], list[tuple[Any, State]]]:
        if isinstance(operation, (Ring, Take, Sleep)):
            return self._compile_token(operation)
        if isinstance(operation, (Send, Receive)):
            return self._compile_link(thread, operation)
        if isinstance(operation, AwaitDeath):
            return self._compile_death(thread, self.names.index(operation.thread))
        if isinstance(operation, Mark):
            assert operation.note is not None
            ghost, value = self.ghosts[operation.note[0]], operation.note[1]
            return lambda s: [(None, (*s[:4], (*s[4][:ghost], value, *s[4][ghost + 1 :]), s[5]))]
        execute = self.memory.compile(thread, operation)
        note = getattr(operation, "note", None)
        if note is None:
            return lambda s: [(result, (s[0], memory, *s[2:])) for result, memory in execute(s[1])]
        ghost, value = self.ghosts[note[0]], note[1]
        expected = operation.expected if isinstance(operation, Swap) else None

        def noting(s: State) -> list[tuple[Any, State]]:
            noted = (*s[4][:ghost], value, *s[4][ghost + 1 :])
            return [
                (
                    result,
                    (s[0], memory, s[2], s[3], s[4] if expected is not None and result != expected else noted, s[5]),
                )
                for result, memory in execute(s[1])
            ]

        return noting

    def _compile_token(self, operation: Ring | Take | Sleep) -> Callable[[State], list[tuple[Any, State]]]:
        token = self.tokens[operation.token]

        def set_to(s: State, count: int) -> State:
            return (*s[:2], (*s[2][:token], count, *s[2][token + 1 :]), *s[3:])

        if isinstance(operation, Ring):
            return lambda s: [(None, set_to(s, s[2][token] + 1))]
        if isinstance(operation, Take):
            return lambda s: [(s[2][token], set_to(s, 0))]
        if operation.link is None:
            return lambda s: [(True, s)] if s[2][token] else []
        link = self.links[operation.link]
        return lambda s: [(bool(s[2][token]), s)] if s[2][token] or s[3][link] else []

    def _compile_link(self, thread: int, operation: Send | Receive) -> Callable[[State], list[tuple[Any, State]]]:
        link, memory_model = self.links[operation.link], self.memory

        def set_to(s: State, frames: Any) -> tuple[Any, ...]:
            return (*s[3][:link], frames, *s[3][link + 1 :])

        if isinstance(operation, Send):
            frame = operation.frame

            def send(s: State) -> list[tuple[Any, State]]:
                memory = memory_model.send(s[1], thread, link)
                return [] if memory is None else [(None, (s[0], memory, s[2], set_to(s, (*s[3][link], frame)), *s[4:]))]

            return send

        def receive(s: State) -> list[tuple[Any, State]]:
            if not s[3][link]:
                return [(None, s)]
            memory = memory_model.receive(s[1], thread, link)
            return [(s[3][link][0], (s[0], memory, s[2], set_to(s, s[3][link][1:]), *s[4:]))]

        return receive

    def _compile_death(self, thread: int, victim: int) -> Callable[[State], list[tuple[Any, State]]]:
        def wait(s: State) -> list[tuple[Any, State]]:
            if self.machines[victim].operation(s[0][victim]) is not None:
                return []
            memory = self.memory.mourn(s[1], thread, victim)
            return [] if memory is None else [(s[0][victim] == Machine.CRASHED, (s[0], memory, *s[2:]))]

        return wait


def explore(configuration: Configuration, model: str, limit: int = 10_000_000, breadth_first: bool = False) -> Outcome:
    """Visit every state. Breaks of a promise: what a program or the invariant reports, and a state from which no
    run comes to its end: a deadlock (a lost wake-up is one), or threads that busy themselves for ever.
    """
    world = World(configuration, model)
    start = world.initial()
    numbers: dict[State, int] = {start: 0}
    came_from: list[tuple[int, Label]] = [(-1, "start")] if breadth_first else []
    edges, bounds = array("q"), array("q")  # successors of the states in the order in which they were expanded
    expanded, ends = array("q"), array("q")
    pending: deque[tuple[State, int]] = deque([(start, 0)])
    transitions = 0

    def report(text: str, number: int) -> Outcome:
        if not breadth_first:
            return explore(configuration, model, limit, breadth_first=True)
        path = []
        while number >= 0:
            number, label = came_from[number]
            path.append(world.label(label))
        return Outcome(len(numbers), transitions, text, tuple(reversed(path)))

    while pending:
        state, number = pending.popleft() if breadth_first else pending.pop()
        try:
            broken = _check_invariant(world, state)
            if broken:
                raise Violated(broken)
            following = world.successors(state)
        except Violated as error:
            return report(str(error), number)
        if world.is_done(state):
            ends.append(number)
        elif not following:
            return report(f"deadlock: {_waiting(world, state)}", number)
        expanded.append(number)
        bounds.append(len(edges))
        for label, after in following:
            transitions += 1
            known = numbers.get(after)
            if known is None:
                known = numbers[after] = len(numbers)
                if breadth_first:
                    came_from.append((number, label))
                pending.append((after, known))
            edges.append(known)
        if len(numbers) > limit:
            return Outcome(len(numbers), transitions, complete=False)
    bounds.append(len(edges))
    stuck = _cannot_end(len(numbers), expanded, bounds, edges, ends)
    if stuck is not None:
        return report("livelock: no run from here comes to its end", stuck)
    return Outcome(len(numbers), transitions)


def _check_invariant(world: World, state: State) -> str | None:
    invariant = world.configuration.invariant
    return invariant(dict(zip(world.ghosts, state[4], strict=True))) if invariant is not None else None


def _cannot_end(
    count: int, expanded: array[int], bounds: array[int], edges: array[int], ends: array[int]
) -> int | None:
    """A state from which none of ``ends`` can be reached."""
    before: list[list[int]] = [[] for _ in range(count)]
    for place, number in enumerate(expanded):
        for edge in range(bounds[place], bounds[place + 1]):
            before[edges[edge]].append(number)
    reaches = bytearray(count)
    work = list(ends)
    for number in work:
        reaches[number] = 1
    while work:
        for number in before[work.pop()]:
            if not reaches[number]:
                reaches[number] = 1
                work.append(number)
    place = reaches.find(0)
    return None if place < 0 else place


def _waiting(world: World, state: State) -> str:
    waiting = [
        f"{machine.name} waits at {machine.states[at].where}"
        for i, (machine, at) in enumerate(zip(world.machines, state[0], strict=True))
        if i not in world.daemons and machine.operation(at) is not None
    ]
    return "; ".join(waiting) + " | " + world.describe(state)


def _text(operation: Operation) -> str:
    """An operation for a trace."""
    name = type(operation).__name__.lower()
    if isinstance(operation, (Load, Store, Swap)):
        order = "" if operation.order is Order.RELAXED else f", {operation.order.value}"
        if isinstance(operation, Load):
            return f"{name}({operation.name}{order})"
        if isinstance(operation, Store):
            return f"{name}({operation.name}, {operation.value}{order})"
        return f"{name}({operation.name}, {operation.expected} => {operation.value}{order})"
    return f"{name}({', '.join(str(getattr(operation, field)) for field in operation.__slots__)})"


def trace_lines(outcome: Outcome) -> Iterator[str]:
    """A counter-example, one step a line."""
    for step in outcome.trace:
        yield f"    {step}"
    if outcome.violation is not None:
        yield f"    => {outcome.violation}"
