"""Memory in which a load may return an old value: the release/acquire fragment of C11, executed with views.

Each variable keeps its stores in order. A thread has a view: per variable, the oldest store that it may still read. A
store carries a view, which an acquiring load adds to its own; sequentially consistent fences hand one view on from
one to the next (Kang et al., "A promising semantics for relaxed-memory concurrency", POPL 2017, without promises).

A PLAIN access that happens-before does not order with another thread's is a data race and reported: that is how the
model sees a load that a weak machine could do too late or too early. Limits: stores to one variable are ordered as
they are executed (PSO covers delayed stores), and a load never reads a store that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from .machine import Fence, Load, Operation, Order, Store, Swap, Violated

# A set of bits. Variable v has a field in which the lowest p bits are set if stores before place p are out of sight;
# each (cell, thread) has one bit: that thread's last read of the cell is known. So joining two views is `|`.
View: TypeAlias = int
Stores: TypeAlias = tuple[tuple[Any, View], ...]
ThreadViews: TypeAlias = tuple[View, View, View]  # now, after an acquire fence, at the last fence
LastWords: TypeAlias = tuple[View]  # of a thread that has ended, as long as somebody may ask for them
# The stores of each variable, the views of each thread, that of the last fence, and per link those of the senders of
# its frames.
Memory: TypeAlias = tuple[
    tuple[Stores, ...], tuple[ThreadViews | LastWords | None, ...], View, tuple[tuple[View, ...], ...]
]
Step: TypeAlias = Callable[[Memory], list[tuple[Any, Memory]]]

FIELD = 24  # bits: stores of one variable that somebody may still read, plus one
ONES = (1 << FIELD) - 1


class Views:
    """``cells`` are the variables that hold records: their accesses are checked for races."""

    def __init__(self, variables: dict[str, Any], threads: Sequence[str], cells: Iterable[str], links: int) -> None:
        self.names = list(variables)
        self.index = {name: i for i, name in enumerate(variables)}
        self.threads = threads
        self.read_bits: dict[int, int] = {}
        base = len(variables) * FIELD
        for cell in cells:
            self.read_bits[self.index[cell]] = base
            base += len(threads)
        first: View = ((1 << base) - 1) >> (len(variables) * FIELD) << (len(variables) * FIELD)  # nothing was read yet
        stores = tuple(((value, first),) for value in variables.values())
        self._initial: Memory = (stores, ((first, first, first),) * len(threads), first, ((),) * links)

    def initial(self) -> Memory:
        return self._initial

    def compile(self, thread: int, operation: Operation) -> Step:
        """What the operation can do: pairs (result, memory afterwards)."""
        if isinstance(operation, Load):
            variable = self.index[operation.name]
            if operation.order is Order.PLAIN:
                return self._plain_load(thread, variable)
            return self._load(thread, variable, operation.order.acquires)
        if isinstance(operation, Store):
            return self._store(thread, operation)
        if isinstance(operation, Swap):
            return self._swap(thread, operation)
        assert isinstance(operation, Fence)
        return lambda memory: [(None, self._fence(memory, thread))]

    def is_local(self, thread: int, operation: Operation, memory: Memory) -> bool:
        """PLAIN accesses need no interleaving: whichever of two racing ones comes later finds the race."""
        return isinstance(operation, (Load, Store)) and operation.order is Order.PLAIN

    def internal(self, memory: Memory) -> list[tuple[str, Memory]]:
        return []

    def send(self, memory: Memory, thread: int, link: int) -> Memory | None:
        """A frame goes out, and with it what its sender did before."""
        stores, threads, total, links = memory
        frames = (*links[link], _views_of(memory, thread)[0])
        return stores, threads, total, (*links[:link], frames, *links[link + 1 :])

    def receive(self, memory: Memory, thread: int, link: int) -> Memory:
        """The first frame comes in."""
        stores, threads, total, links = memory
        links = (*links[:link], links[link][1:], *links[link + 1 :])
        return self._learn((stores, threads, total, links), thread, memory[3][link][0])

    def mourn(self, memory: Memory, thread: int, victim: int) -> Memory | None:
        """The thread learns of the end of another one, and of all that it did."""
        last_words = memory[1][victim]
        assert last_words is not None
        return self._learn(memory, thread, last_words[0])

    def retire(self, memory: Memory, thread: int, awaited: bool) -> Memory:
        """The thread has ended; ``awaited``: somebody may still ask for its last words."""
        views = memory[1][thread]
        if views is None:
            return memory
        return self._trim(_with(memory, thread, (views[0],) if awaited else None))

    def describe(self, memory: Memory) -> str:
        return ", ".join(f"{name}={stores[-1][0]}" for name, stores in zip(self.names, memory[0], strict=True))

    def _learn(self, memory: Memory, thread: int, view: View) -> Memory:
        now, later, fenced = _views_of(memory, thread)
        return self._trim(_with(memory, thread, (now | view, later | view, fenced)))

    def _place(self, view: View, variable: int) -> int:
        return (view >> (variable * FIELD) & ONES).bit_length()

    def _load(self, thread: int, variable: int, acquires: bool) -> Step:
        def load(memory: Memory) -> list[tuple[Any, Memory]]:
            stores = memory[0][variable]
            first = self._place(_views_of(memory, thread)[0], variable)
            return [
                (stores[place][0], self._trim(self._see(memory, thread, variable, place, acquires)))
                for place in range(first, len(stores))
            ]

        return load

    def _see(self, memory: Memory, thread: int, variable: int, place: int, acquires: bool) -> Memory:
        now, later, fenced = _views_of(memory, thread)
        carried = memory[0][variable][place][1]
        now |= (1 << place) - 1 << variable * FIELD
        if acquires:
            now |= carried
        return _with(memory, thread, (now, later | now | carried, fenced))

    def _plain_load(self, thread: int, variable: int) -> Step:
        def load(memory: Memory) -> list[tuple[Any, Memory]]:
            last = len(memory[0][variable]) - 1
            if self._place(_views_of(memory, thread)[0], variable) != last:
                who, cell = self.threads[thread], self.names[variable]
                raise Violated(f"data race: {who} reads {cell} while it is written (torn read)")
            return [(memory[0][variable][last][0], self._note_read(memory, thread, variable))]

        return load

    def _note_read(self, memory: Memory, thread: int, variable: int) -> Memory:
        """A read of a cell: from now on only those know of it to whom it is handed on."""
        bit = 1 << self.read_bits[variable] + thread
        stores, threads, total, links = memory
        links = tuple(tuple(view & ~bit for view in frames) for frames in links)
        stores = tuple(tuple((value, view & ~bit) for value, view in kept) for kept in stores)
        threads = tuple(views and tuple(view & ~bit for view in views) for views in threads)
        now, later, fenced = _views_of(memory, thread)
        return _with((stores, threads, total & ~bit, links), thread, (now | bit, later | bit, fenced & ~bit))

    def _store(self, thread: int, operation: Store) -> Step:
        variable, order, value = self.index[operation.name], operation.order, operation.value
        watched = [
            (1 << self.read_bits[variable] + reader, reader)
            for reader in range(len(self.threads))
            if order is Order.PLAIN and reader != thread
        ]

        def store(memory: Memory) -> list[tuple[Any, Memory]]:
            now = _views_of(memory, thread)[0]
            for bit, reader in watched:
                if not now & bit and _lives(memory, reader):
                    who, cell, whom = self.threads[thread], self.names[variable], self.threads[reader]
                    raise Violated(f"data race: {who} overwrites {cell} while {whom} copies it (torn read)")
            return [(None, self._trim(self._append(memory, thread, variable, value, order.releases, 0)))]

        return store

    def _append(self, memory: Memory, thread: int, variable: int, value: Any, releases: bool, carried: View) -> Memory:
        """``carried``: a swap continues the release sequence of the store that it replaces."""
        stores, threads, total, links = memory
        now, later, fenced = _views_of(memory, thread)
        place = len(stores[variable])
        assert place < FIELD
        seen = (1 << place) - 1 << variable * FIELD
        now |= seen
        kept = (*stores[variable], (value, (now if releases else fenced | seen) | carried))
        stores = (*stores[:variable], kept, *stores[variable + 1 :])
        return _with((stores, threads, total, links), thread, (now, later | now, fenced))

    def _swap(self, thread: int, operation: Swap) -> Step:
        variable, order = self.index[operation.name], operation.order
        expected, value = operation.expected, operation.value
        validated = [self.index[cell] for cell in operation.validates]

        def swap(memory: Memory) -> list[tuple[Any, Memory]]:
            kept = memory[0][variable]
            found = []
            for place in range(self._place(_views_of(memory, thread)[0], variable), len(kept)):
                seen = kept[place][0]
                if seen == expected and place < len(kept) - 1:
                    continue  # it would have to replace a store that has been replaced already
                after = self._see(memory, thread, variable, place, order.acquires)
                if seen == expected:
                    for cell in validated:
                        after = self._note_read(after, thread, cell)
                    carried = after[0][variable][place][1]
                    after = self._append(after, thread, variable, value, order.releases, carried)
                found.append((seen, self._trim(after)))
            return found

        return swap

    def _fence(self, memory: Memory, thread: int) -> Memory:
        stores, threads, total, links = memory
        total |= _views_of(memory, thread)[1]
        return self._trim(_with((stores, threads, total, links), thread, (total, total, total)))

    def _trim(self, memory: Memory) -> Memory:
        """Forget stores that nobody can read any more, so that equal situations are equal states."""
        stores, threads, total, links = memory
        common = -1
        for views in threads:
            if views is not None and len(views) == 3:
                common &= views[0]
        if common == -1:  # nobody is left
            return tuple(((kept[-1][0], 0),) for kept in stores), threads, 0, ()
        common &= (1 << len(self.names) * FIELD) - 1
        while common:
            variable = (common.bit_length() - 1) // FIELD
            offset = variable * FIELD
            by = (common >> offset).bit_length()
            common &= (1 << offset) - 1
            field = ONES << offset
            rest = ~field
            stores = (*stores[:variable], stores[variable][by:], *stores[variable + 1 :])
            stores = tuple(
                [tuple([(value, v & rest | (v & field) >> by & field) for value, v in kept]) for kept in stores]
            )
            threads = tuple(
                [views and tuple([v & rest | (v & field) >> by & field for v in views]) for views in threads]
            )
            links = tuple([tuple([v & rest | (v & field) >> by & field for v in frames]) for frames in links])
            total = total & rest | (total & field) >> by & field
        return stores, threads, total, links


def _views_of(memory: Memory, thread: int) -> ThreadViews:
    views = memory[1][thread]
    assert views is not None and len(views) == 3, "a thread that has ended acts"
    return views


def _lives(memory: Memory, thread: int) -> bool:
    """What the dead have read is no danger."""
    views = memory[1][thread]
    return views is not None and len(views) == 3


def _with(memory: Memory, thread: int, views: ThreadViews | LastWords | None) -> Memory:
    stores, threads, total, links = memory
    return stores, (*threads[:thread], views, *threads[thread + 1 :]), total, links
