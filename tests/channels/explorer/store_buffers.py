"""Memory with a store buffer per thread: TSO (one queue, as x86) and PSO (a queue per address: stores may overtake).

Loads happen in order and read the thread's own buffer first. A release store waits for every earlier store; a fence
and a releasing swap (TSO: every swap) wait until the thread's own buffer is empty. The buffer of a killed process
drains like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from .machine import Fence, Load, Operation, Order, Store, Swap

Pending: TypeAlias = tuple[tuple[int, Any, bool], ...]  # (variable, value, release), oldest first
Memory: TypeAlias = tuple[tuple[Any, ...], tuple[Pending, ...]]
Step: TypeAlias = Callable[[Memory], list[tuple[Any, Memory]]]


class StoreBuffers:
    """``total_order``: TSO, else PSO."""

    def __init__(self, variables: dict[str, Any], threads: Sequence[str], total_order: bool) -> None:
        self.names = list(variables)
        self.index = {name: i for i, name in enumerate(variables)}
        self.threads = threads
        self.total_order = total_order
        self._initial: Memory = (tuple(variables.values()), ((),) * len(threads))

    def initial(self) -> Memory:
        return self._initial

    def compile(self, thread: int, operation: Operation) -> Step:
        """What the operation can do: pairs (result, memory afterwards); none while it has to wait."""
        if isinstance(operation, Load):
            return self._load(thread, self.index[operation.name])
        if isinstance(operation, Store):
            release = operation.order.releases
            return self._store(thread, (self.index[operation.name], operation.value, release))
        if isinstance(operation, Swap):
            return self._swap(thread, operation)
        assert isinstance(operation, Fence)
        return lambda memory: [] if memory[1][thread] else [(None, memory)]

    def is_local(self, thread: int, operation: Operation, memory: Memory) -> bool:
        """Nobody else can tell when this happens: it need not be interleaved."""
        return isinstance(operation, Store) or (isinstance(operation, Fence) and not memory[1][thread])

    def internal(self, memory: Memory) -> list[tuple[str, Memory]]:
        """Stores that may become visible now."""
        found = []
        values, buffers = memory
        for thread, pending in enumerate(buffers):
            seen: set[int] = set()
            for place, (variable, value, release) in enumerate(pending):
                if variable not in seen and not (release and place):
                    after = (*values[:variable], value, *values[variable + 1 :])
                    rest = pending[:place] + pending[place + 1 :]
                    label = f"{self.threads[thread]}: {self.names[variable]} = {value} becomes visible"
                    found.append((label, (after, (*buffers[:thread], rest, *buffers[thread + 1 :]))))
                if self.total_order:
                    break
                seen.add(variable)
        return found

    def send(self, memory: Memory, thread: int, link: int) -> Memory | None:
        """A frame goes out; None while it has to wait for the stores before it."""
        return None if memory[1][thread] else memory

    def receive(self, memory: Memory, thread: int, link: int) -> Memory:
        """A frame comes in."""
        return memory

    def mourn(self, memory: Memory, thread: int, victim: int) -> Memory | None:
        """The thread learns of the end of another one; None while stores of that are still on their way."""
        return None if memory[1][victim] else memory

    def retire(self, memory: Memory, thread: int, awaited: bool) -> Memory:
        """The thread has ended; ``awaited``: somebody may still ask for its last words."""
        return memory

    def describe(self, memory: Memory) -> str:
        text = ", ".join(f"{name}={value}" for name, value in zip(self.names, memory[0], strict=True))
        for thread, pending in enumerate(memory[1]):
            if pending:
                text += f" | {self.threads[thread]} buffers " + " ".join(f"{self.names[v]}={x}" for v, x, _ in pending)
        return text

    def _load(self, thread: int, variable: int) -> Step:
        def load(memory: Memory) -> list[tuple[Any, Memory]]:
            for buffered, value, _ in reversed(memory[1][thread]):
                if buffered == variable:
                    return [(value, memory)]
            return [(memory[0][variable], memory)]

        return load

    def _store(self, thread: int, entry: tuple[int, Any, bool]) -> Step:
        def store(memory: Memory) -> list[tuple[Any, Memory]]:
            values, buffers = memory
            return [(None, (values, (*buffers[:thread], buffers[thread] + (entry,), *buffers[thread + 1 :])))]

        return store

    def _swap(self, thread: int, operation: Swap) -> Step:
        variable = self.index[operation.name]
        drains = self.total_order or operation.order is not Order.RELAXED
        expected, value = operation.expected, operation.value

        def swap(memory: Memory) -> list[tuple[Any, Memory]]:
            values, buffers = memory
            if buffers[thread] and (drains or any(v == variable for v, _, _ in buffers[thread])):
                return []
            found = values[variable]
            if found != expected:
                return [(found, memory)]
            return [(found, ((*values[:variable], value, *values[variable + 1 :]), buffers))]

        return swap
