"""Step machines: a thread of the protocol is a generator that yields operations and gets their results.

A generator cannot be copied, so a machine learns its states by replay: a state is (place in the code, local
variables) of the generator and of those that it delegates to; the first history that reached it stands for all. Each
(state, result) is replayed once and remembered, so that the search moves small integers around.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias


class Order(enum.Enum):
    """Memory orders of C11, and two for the bytes of records, which C copies without atomics."""

    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQ_REL = "acq_rel"
    PLAIN = "plain"  # a data race with it is a defect
    RACING = "racing"  # a copy that is validated afterwards: a race is expected, a wrong value delivered is a defect

    @property
    def acquires(self) -> bool:
        return self in (Order.ACQUIRE, Order.ACQ_REL)

    @property
    def releases(self) -> bool:
        return self in (Order.RELEASE, Order.ACQ_REL)


Note: TypeAlias = tuple[str, Any] | None  # ghost variable := value, in the same step


@dataclass(frozen=True, slots=True)
class Load:
    """Result: the value."""

    name: str
    order: Order = Order.RELAXED
    note: Note = None


@dataclass(frozen=True, slots=True)
class Store:
    """Result: None."""

    name: str
    value: Any
    order: Order = Order.RELAXED
    note: Note = None


@dataclass(frozen=True, slots=True)
class Swap:
    """Compare and swap. Result: the value found; it was replaced if that equals ``expected``.

    ``validates`` are cells that were copied with RACING loads before: with success the copies count as read.
    """

    name: str
    expected: Any
    value: Any
    order: Order = Order.RELAXED
    note: Note = None  # of a success
    validates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """Sequentially consistent."""


@dataclass(frozen=True, slots=True)
class Ring:
    """write(eventfd). Result: None."""

    token: str


@dataclass(frozen=True, slots=True)
class Take:
    """read(eventfd). Result: how many writes it had counted, 0 if none."""

    token: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """poll(): blocks until the eventfd counts, or the link (if given) has a frame. Result: whether the eventfd does."""

    token: str
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """A frame onto a link. Result: None. What the sender did before is visible to whoever receives it."""

    link: str
    frame: Any


@dataclass(frozen=True, slots=True)
class Receive:
    """The next frame of a link. Result: the frame, or None."""

    link: str


@dataclass(frozen=True, slots=True)
class AwaitDeath:
    """Blocks until the thread has crashed, and sees all that it did. Result: True; False if it has ended in peace."""

    thread: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Sets a ghost variable, which only invariants see."""

    note: Note


Operation: TypeAlias = Load | Store | Swap | Fence | Ring | Take | Sleep | Send | Receive | AwaitDeath | Mark
Program: TypeAlias = Generator[Operation, Any, None]
Body: TypeAlias = Generator[Operation, Any, Any]  # of a part of a program


class Violated(Exception):
    """Raised by a program that sees a broken promise."""


@dataclass(slots=True)
class MachineState:
    """One state of a thread: what it is about to do, and how it came there first."""

    operation: Operation | None  # None: it has ended
    history: tuple[Any, ...]
    where: str
    violation: str | None = None


class Machine:
    """All states of one thread that were met so far; state 0 is the first. ``CRASHED`` is the state of the dead."""

    CRASHED = -1

    def __init__(self, name: str, program: Callable[[], Program]) -> None:
        self.name = name
        self.program = program
        self.states: list[MachineState] = []
        self._ids: dict[Any, int] = {}
        self._next: dict[tuple[int, Any], int] = {}
        self._replay(())

    def advance(self, state: int, result: Any) -> int:
        """The state after the operation of ``state`` gave ``result``."""
        found = self._next.get((state, result))
        if found is None:
            found = self._next[state, result] = self._replay((*self.states[state].history, result))
        return found

    def operation(self, state: int) -> Operation | None:
        return None if state == Machine.CRASHED else self.states[state].operation

    def key_of(self, history: tuple[Any, ...]) -> tuple[Any, Operation | None]:
        """Run the program anew through ``history``: the key of where it stands, and what it does next."""
        program = self.program()
        operation: Operation | None
        try:
            operation = program.send(None)
            for result in history:
                operation = program.send(result)
        except StopIteration:
            return "ended", None
        key = _frames(program)
        program.close()
        return key, operation

    def histories(self) -> dict[int, tuple[Any, ...]]:
        """For each state the history that stands for it."""
        return {i: state.history for i, state in enumerate(self.states)}

    def transitions(self) -> dict[tuple[int, Any], int]:
        return dict(self._next)

    def _replay(self, history: tuple[Any, ...]) -> int:
        violation = None
        try:
            key, operation = self.key_of(history)
        except Violated as error:
            key, operation, violation = ("violated", str(error)), None, str(error)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.states)
            where = "ended" if operation is None else key[-1][0]
            self.states.append(MachineState(operation, history, where, violation))
        return found


def _frames(program: Program) -> tuple[Any, ...]:
    """Where a generator and its delegates stand. Iterators are not seen: loop variables must tell how far a loop is."""
    frames = []
    generator: Any = program
    while generator is not None:
        frame = generator.gi_frame
        place = f"{generator.gi_code.co_name}:{frame.f_lineno}"
        frames.append((place, frame.f_lasti, tuple(sorted(frame.f_locals.items(), key=lambda item: item[0]))))
        generator = generator.gi_yieldfrom
    return tuple(frames)
