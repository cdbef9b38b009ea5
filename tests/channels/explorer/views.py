"""Memory in which a load may return an old value: the release/acquire fragment of C11, executed with views.

Each variable keeps its stores in order. A thread has a view: per variable, the oldest store that it may still read. A
store carries a view, which an acquiring load adds to its own; sequentially consistent fences hand one view on
from one to the next (Kang et al., "A promising semantics for relaxed-memory concurrency", POPL 2017, without promises).

A PLAIN access that is not ordered with another thread's by happens-before is a data race and reported: that is how
the model sees a load that a weak machine could do too late or too early. Limits: stores to one variable are ordered as they are
executed (store_buffers.PSO covers delayed stores), and a load never reads a store that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from .machine import Fence, Load, Operation, Order, Store, Swap, Violated

View: TypeAlias = tuple[int, ...]  # per variable a place in its stores; per (PLAIN variable, reader) 1 if its last read is seen
Stores: TypeAlias = tuple[tuple[Any, View], ...]
ThreadViews: TypeAlias = tuple[View, View, View] | None  # now, after an acquire fence, at the last fence; None: retired
Memory: TypeAlias = tuple[tuple[Stores, ...], tuple[ThreadViews, ...], View]
Step: TypeAlias = Callable[[Memory], list[tuple[Any, Memory]]]


def _join(one: View, other: View) -> View:
    return one if one == other else tuple(map(max, one, other))


class Views:
    """``plain`` are the variables that some thread accesses as PLAIN or RACING: the cells of the rings."""

    def __init__(self, variables: dict[str, Any], threads: Sequence[str], plain: Iterable[str]) -> None:
        self.names = list(variables)
        self.index = {name: i for i, name in enumerate(variables)}
        self.threads = threads
        self.count = len(variables)
        self.plain = sorted(self.index[name] for name in plain)
        self.reads = {v: self.count + k * len(threads) for k, v in enumerate(self.plain)}
        self.zero: View = (0,) * (self.count + len(self.plain) * len(threads))
        # Nobody has read a cell at first: every reader's last read is seen by all.
        ones: View = (0,) * self.count + (1,) * (len(self.plain) * len(threads))
        stores = tuple(((value, ones),) for value in variables.values())
        self._initial: Memory = (stores, ((ones, ones, ones),) * len(threads), ones)

    def initial(self) -> Memory:
        return self._initial

    def compile(self, thread: int, operation: Operation) -> Step:
        """What the operation can do: pairs (result, memory afterwards)."""
        if isinstance(operation, Load):
            if operation.order is Order.PLAIN:
                return self._plain_load(thread, self.index[operation.name])
            return self._load(thread, operation)
        if isinstance(operation, Store):
            return self._store(thread, operation)
        if isinstance(operation, Swap):
            return self._swap(thread, operation)
        assert isinstance(operation, Fence)
        return lambda memory: [(None, self._fence(memory, thread))]

    def is_local(self, thread: int, operation: Operation, memory: Memory) -> bool:
        """PLAIN accesses need no interleaving: whichever of two racing ones comes later finds the race."""
        return isinstance(operation, (Load, Store)) and operation.order is Order.PLAIN and not _spares(operation)

    def internal(self, memory: Memory) -> list[tuple[str, Memory]]:
        return []

    def snapshot(self, memory: Memory, thread: int) -> Any:
        """What travels with a frame that the thread sends now."""
        views = memory[1][thread]
        assert views is not None
        return views[0]

    def join(self, memory: Memory, thread: int, snapshot: View) -> Memory:
        """The thread has received such a frame."""
        views = memory[1][thread]
        assert views is not None
        now, later, fenced = views
        return self._with(memory, thread, (_join(now, snapshot), _join(later, snapshot), fenced))

    def last_words(self, memory: Memory, thread: int) -> Any:
        """A snapshot of all that an ended thread did."""
        views = memory[1][thread]
        return None if views is None else views[0]

    def retire(self, memory: Memory, thread: int, awaited: bool) -> Memory:
        """The thread has ended; ``awaited``: somebody may still ask for its last words."""
        views = memory[1][thread]
        if views is None:
            return memory
        kept = (views[0], views[0], views[0]) if awaited else None
        stores, threads, total = memory
        return self._trim((stores, threads[:thread] + (kept,) + threads[thread + 1 :], total))

    def describe(self, memory: Memory) -> str:
        return ", ".join(
            f"{name}={stores[-1][0]}" for name, stores in zip(self.names, memory[0], strict=True)
        )

    def _load(self, thread: int, operation: Load) -> Step:
        variable, acquires = self.index[operation.name], operation.order.acquires
        racing = operation.order is Order.RACING

        def load(memory: Memory) -> list[tuple[Any, Memory]]:
            if racing:
                memory = self._note_read(memory, thread, variable)
            return [
                (memory[0][variable][place][0], self._trim(self._read(memory, thread, variable, place, acquires)))
                for place in range(memory[1][thread][0][variable], len(memory[0][variable]))
            ]

        return load

    def _read(self, memory: Memory, thread: int, variable: int, place: int, acquires: bool) -> Memory:
        now, later, fenced = memory[1][thread]  # type: ignore[misc]
        carried = memory[0][variable][place][1]
        now = now[:variable] + (place,) + now[variable + 1 :]
        if acquires:
            now = _join(now, carried)
        return self._with(memory, thread, (now, _join(_join(later, now), carried), fenced))

    def _plain_load(self, thread: int, variable: int) -> Step:
        def load(memory: Memory) -> list[tuple[Any, Memory]]:
            last = len(memory[0][variable]) - 1
            if memory[1][thread][0][variable] != last:  # type: ignore[index]
                raise Violated(
                    f"data race: {self.threads[thread]} reads {self.names[variable]} while it is written (torn read)"
                )
            memory = self._note_read(memory, thread, variable)
            return [(memory[0][variable][last][0], memory)]

        return load

    def _note_read(self, memory: Memory, thread: int, variable: int) -> Memory:
        """A read of a cell: from now on only those know of it to whom it is handed on."""
        place = self.reads[variable] + thread
        stores, threads, total = memory

        def forget(view: View) -> View:
            return view if view[place] == 0 else view[:place] + (0,) + view[place + 1 :]

        stores = tuple(tuple((value, forget(view)) for value, view in kept) for kept in stores)
        threads = tuple(views and (forget(views[0]), forget(views[1]), forget(views[2])) for views in threads)
        now, later, fenced = threads[thread]  # type: ignore[misc]
        now = now[:place] + (1,) + now[place + 1 :]
        return self._with((stores, threads, forget(total)), thread, (now, _join(later, now), fenced))

    def _store(self, thread: int, operation: Store) -> Step:
        variable, order, value = self.index[operation.name], operation.order, operation.value
        watched = [
            (self.reads[variable] + reader, name)
            for reader, name in enumerate(self.threads)
            if order is Order.PLAIN and reader != thread and name not in operation.spares
        ]

        def store(memory: Memory) -> list[tuple[Any, Memory]]:
            now = memory[1][thread][0]  # type: ignore[index]
            for place, name in watched:
                if not now[place] and self._reads_last(memory, place):
                    raise Violated(
                        f"data race: {self.threads[thread]} overwrites {self.names[variable]} while {name} copies it (torn read)"
                    )
            return [(None, self._trim(self._append(memory, thread, variable, value, order.releases)))]

        return store

    def _reads_last(self, memory: Memory, place: int) -> bool:
        """The reader lives: reads of the dead and of those who have ended are no danger."""
        return memory[1][(place - self.count) % len(self.threads)] is not None

    def _append(self, memory: Memory, thread: int, variable: int, value: Any, releases: bool, carry: View | None = None) -> Memory:
        stores, threads, total = memory
        now, later, fenced = threads[thread]  # type: ignore[misc]
        place = len(stores[variable])
        now = now[:variable] + (place,) + now[variable + 1 :]
        base = now if releases else fenced[:variable] + (place,) + fenced[variable + 1 :]
        if carry is not None:
            base = _join(base, carry)  # a swap continues the release sequence of the store it replaces
        kept = stores[variable] + ((value, base),)
        stores = stores[:variable] + (kept,) + stores[variable + 1 :]
        return self._with((stores, threads, total), thread, (now, _join(later, now), fenced))

    def _swap(self, thread: int, operation: Swap) -> Step:
        variable, order = self.index[operation.name], operation.order
        expected, value = operation.expected, operation.value

        def swap(memory: Memory) -> list[tuple[Any, Memory]]:
            kept = memory[0][variable]
            last = len(kept) - 1
            found = []
            for place in range(memory[1][thread][0][variable], last + 1):  # type: ignore[index]
                if kept[place][0] != expected:
                    after = self._read(memory, thread, variable, place, order.acquires)
                elif place == last:
                    after = self._read(memory, thread, variable, place, order.acquires)
                    after = self._append(after, thread, variable, value, order.releases, carry=kept[place][1])
                else:
                    continue  # it would have to replace a store that has been replaced
                found.append((kept[place][0], self._trim(after)))
            return found

        return swap

    def _fence(self, memory: Memory, thread: int) -> Memory:
        stores, threads, total = memory
        _, later, _ = threads[thread]  # type: ignore[misc]
        total = _join(total, later)
        return self._trim(self._with((stores, threads, total), thread, (total, total, total)))

    def _with(self, memory: Memory, thread: int, views: ThreadViews) -> Memory:
        stores, threads, total = memory
        return stores, threads[:thread] + (views,) + threads[thread + 1 :], total

    def _trim(self, memory: Memory) -> Memory:
        """Forget stores that nobody can read any more, so that equal situations are equal states."""
        stores, threads, total = memory
        alive = [views[0] for views in threads if views is not None]
        if not alive:
            return tuple((kept[-1],) for kept in stores), threads, total
        shifts = [min(places) for places in zip(*(view[: self.count] for view in alive), strict=True)]
        if not any(shifts):
            return memory

        def shift(view: View) -> View:
            head = tuple(max(place - by, 0) for place, by in zip(view[: self.count], shifts, strict=False))
            return head + view[self.count :]

        new_stores = tuple(
            tuple((value, shift(view)) for value, view in kept[by:]) for kept, by in zip(stores, shifts, strict=False)
        )
        new_threads = tuple(
            views and (shift(views[0]), shift(views[1]), shift(views[2])) for views in threads
        )
        return new_stores, new_threads, shift(total)


def _spares(operation: Operation) -> bool:
    return isinstance(operation, Store) and bool(operation.spares)
