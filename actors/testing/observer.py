"""Watches one simulated process's node: reports to the ledger and the trace, and injects the faults of messages.

It wraps the methods of that one node, of its calls, its origins and its cells. The code of the runtime is not changed.
"""

from __future__ import annotations

import functools
import os
import select
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._native import Incoming
from ..async_node import AsyncNode
from ..blocking_cell import BlockingCell
from ..blocking_node import BlockingNode
from ..calls import Calls, GroupWaiter, ReplyFuture, Waiter
from ..cell import Cell, Handler, Panel
from ..consumer import StreamReader
from ..delivery import Delivery
from ..events import Died, Event, GaveUp, Ready, Restarting, Stopped
from ..origin import Origin
from ..root_node import RootNode
from ..wire import Envelope, FrameKind
from .envelope import Head, describe, head_of
from .ledger import Party
from .thread import current_thread

if TYPE_CHECKING:
    from ..node import Node
    from ..peer import Peer
    from ..record import Record
    from ..ref import Ref
    from .process import Process

POLL_ON_CHANCE = 0.7  # that a node without messages looks again before it sleeps
SUCCESSOR_LIMIT_S = 5.0  # how long a late reply waits for its sender's successor


def wrap(owner: object, name: str, wrapper: Callable[..., Any]) -> None:
    """Put ``wrapper(original, *args)`` in place of a method of that one object."""
    setattr(owner, name, functools.partial(wrapper, getattr(owner, name)))


class Registry:
    """All observers of a world, and who is behind a ring."""

    def __init__(self) -> None:
        self.by_party: dict[Party, Observer] = {}
        self.by_ring: dict[int, Party] = {}  # by the inode of its segment
        self.systems = 0

    def node_made(self, process: Process, node: Node) -> None:
        """Begin to watch a node."""
        if isinstance(node, RootNode):
            self.systems += 1
            system = self.systems
        else:
            system = process.system
        party = Party(process, system)
        self.by_party[party] = Observer(party, node, self)


class Observer:
    """See the module."""

    def __init__(self, party: Party, node: Node, registry: Registry) -> None:
        process = party.process
        self.process = process
        self._node = node
        self._world = process.world
        self._ledger = process.world.ledger
        self._party = party
        self._registry = registry
        self._others: dict[int, Party] = {}  # by slot
        self._full_until = 0.0
        process.nodes.append(node)
        process.bells.append(node.bell.fileno())
        self._world.descriptors.add_bell(node.bell.fileno())
        wrap(node, "connect", self._connect)
        wrap(node, "send_masked", self._send)
        wrap(node.delivery, "handle", self._handle)
        wrap(node, "send_frame", self._send_frame)
        wrap(node, "on_frame", self._on_frame)
        wrap(node.outbox, "try_send", self._try_send)
        self._watch_calls(node.calls)
        self._watch_origin(node.local_origin, self._party)
        node.cells = _Cells(self)
        if isinstance(node, RootNode):
            registry.by_ring[os.fstat(node.ring_fd).st_ino] = party
            wrap(node._directory, "enter", self._enter)
        if isinstance(node, AsyncNode):
            wrap(node, "_poll_on", self._poll_on)
        if isinstance(node, BlockingNode):
            self._make_waits_virtual(node)

    # Peers.

    def _connect(
        self, original: Callable[..., Peer], slot: int, name: str, link: Any, bell_fd: int, ring_fd: int
    ) -> Peer:
        inode = os.fstat(ring_fd).st_ino
        party = self._registry.by_ring.get(inode)
        if party is None:  # the root has just started it
            started = next(p for p in reversed(self._world.processes) if p.name == name and p.is_child)
            started.system = self._party.system
            party = self._registry.by_ring[inode] = Party(started, self._party.system)
        self._others[slot] = party
        peer = original(slot, name, link, bell_fd, ring_fd)
        self._watch_origin(peer.origin, party)
        return peer

    # Rings.

    def _send(self, original: Callable[[int, bytes], None], mask: int, payload: bytes) -> None:
        if self.process.has_ended:
            return
        world = self._world
        head = head_of(payload)
        receivers = [self._others[slot] for slot, peer in self._node.peers.items() if mask >> peer.reader_slot & 1]
        if head.kind in (Envelope.REPLY, Envelope.FAILURE) and world.chance(world.faults.late_reply):
            delay_s = world.random.uniform(0, world.faults.delay_s)
            world.note(self.process, f"FAULT: {describe(payload)} is held back for {delay_s:.6f} s")
            world.after(delay_s, lambda: self._send_late(original, mask, payload, head, receivers[0], 0.0))
            return
        text = describe(payload)
        for receiver in receivers:
            world.note(self.process, f"sends {receiver.label} {text}")
            self._ledger.sent(self._party, receiver, payload, text)
        original(mask, payload)

    def _send_late(
        self,
        original: Callable[[int, bytes], None],
        mask: int,
        payload: bytes,
        head: Head,
        receiver: Party,
        waited_s: float,
    ) -> None:
        """The time has come for a reply that was held back, in the world's own name."""
        world, target = self._world, receiver.process
        if target.has_ended:
            return
        if not self.process.has_ended:

            def send() -> None:
                if self._node.outbox.ring.closed:  # it has said its last word, and is about to exit
                    return
                if target in [self._others[slot].process for slot in self._node.peers]:
                    self._ledger.sent(self._party, receiver, payload, describe(payload))
                    original(mask, payload)
                    if isinstance(self._node, BlockingNode):
                        self._node.flush()

            self.process.at_once(send)
            return
        successor = next(
            (p for p in world.running if p.name == self.process.name and p.is_ready and p is not self.process), None
        )
        if successor is None and waited_s < SUCCESSOR_LIMIT_S:
            pause_s = 0.02
            world.after(pause_s, lambda: self._send_late(original, mask, payload, head, receiver, waited_s + pause_s))
            return
        target.at_once(lambda: self._registry.by_party[receiver].take_late(payload, self.process.label))

    def take_late(self, payload: bytes, sender: str) -> None:
        """An answer whose sender has died arrives all the same."""
        peer = next(iter(self._node.peers.values()), None)
        if peer is not None:
            self._world.note(self.process, f"receives late, of the dead {sender}, {describe(payload)}")
            Delivery.handle(self._node.delivery, peer, payload)

    def _handle(self, original: Callable[..., None], peer: Peer, data: bytes | memoryview) -> None:
        other = self._others[peer.slot]
        text = describe(data)
        self._world.note(self.process, f"receives of {other.label} {text}")
        self._ledger.received(other, self._party, data, text)
        original(peer, data)

    def _try_send(self, original: Callable[..., bool], payload: Any, mask: int, type: int = 0) -> bool:
        world = self._world
        if world.now < self._full_until:
            return False
        if world.chance(world.faults.full_ring):
            delay_s = world.random.uniform(0, world.faults.delay_s)
            self._full_until = world.now + delay_s
            world.note(self.process, f"FAULT: its ring is full for {delay_s:.6f} s")
            world.after(delay_s, self._space)
            return False
        return original(payload, mask, type)

    def _space(self) -> None:
        if not self.process.has_ended and hasattr(self._node, "bell"):
            self._node.bell.notify()

    def _poll_on(self, original: Callable[[], bool]) -> bool:
        """Spins take no real time here: a node with a core to itself looks again as often as chance will have it."""
        has_core = len(self._node.peers) < self._world.cores
        return has_core and self._world.chance(POLL_ON_CHANCE)

    # Links.

    def _send_frame(self, original: Callable[..., None], peer: Peer, kind: FrameKind, *args: Any) -> None:
        if self.process.has_ended:
            return
        self._world.note(self.process, f"sends {self._others[peer.slot].label} frame {kind.name}")
        if kind is FrameKind.READY:
            self.process.is_ready = True
        original(peer, kind, *args)

    def _on_frame(self, original: Callable[..., None], peer: Peer, frame: Any) -> None:
        name = FrameKind(frame.kind).name
        self._world.note(self.process, f"receives of {self._others[peer.slot].label} frame {name}")
        original(peer, frame)

    # Calls.

    def _watch_calls(self, calls: Calls) -> None:
        wrap(calls, "_new_future", self._new_future)
        wrap(calls, "_start", self._start)
        wrap(calls, "ask_group", self._ask_group)
        wrap(calls, "forget", self._forget)
        wrap(calls, "finish", self._finish)
        wrap(calls, "items", self._items)

    def _new_future(self, original: Callable[[], ReplyFuture]) -> ReplyFuture:
        future = original()
        self._ledger.opened(self._party, future.call_id, "a call", lambda: not future.done(), False)
        return future

    def _start(
        self,
        original: Callable[..., None],
        kind: int,
        call_id: int,
        waiter: Waiter,
        ref: Ref,
        method: str,
        *args: Any,
    ) -> None:
        self._opened(call_id, waiter, f"{ref._name}.{method}")
        original(kind, call_id, waiter, ref, method, *args)

    def _ask_group(
        self, original: Callable[..., None], waiters: Sequence[GroupWaiter], refs: Any, method: str, *args: Any
    ) -> None:
        original(waiters, refs, method, *args)
        for ref, waiter in zip(refs, waiters, strict=True):
            self._opened(waiter.call_id, waiter, f"{ref._name}.{method}")

    def _opened(self, call_id: int, waiter: Waiter, text: str) -> None:
        is_stream = isinstance(waiter, StreamReader)
        self._ledger.opened(self._party, call_id, text, lambda: not waiter.has_ended, is_stream)

    def _forget(self, original: Callable[[Sequence[GroupWaiter]], None], waiters: Sequence[GroupWaiter]) -> None:
        for waiter in waiters:
            self._ledger.forgotten(self._party, waiter.call_id)
        original(waiters)

    def _finish(self, original: Callable[..., None], call_id: int, value: Any, error: Any) -> None:
        if call_id in self._node.calls._pending:
            self._ledger.accepted(self._party, call_id)
        else:
            self._world.note(self.process, f"drops a late answer to call {call_id}")
        original(call_id, value, error)

    def _items(self, original: Callable[..., None], call_id: int, items: list[Any], window: int) -> None:
        if call_id in self._node.calls._pending:
            self._ledger.took_items(self._party, call_id, len(items))
        original(call_id, items, window)

    def _watch_origin(self, origin: Origin, caller: Party) -> None:
        """Note what this process answers to a caller."""

        def reply(original: Callable[..., None], name: str, call_id: int, value: Any) -> None:
            if not self.process.has_ended:
                self._ledger.answered(caller, call_id, name)
            original(name, call_id, value)

        def fail(original: Callable[..., None], name: str, call_id: int, *args: Any) -> None:
            if not self.process.has_ended:
                self._ledger.answered(caller, call_id, name)
            original(name, call_id, *args)

        def items(original: Callable[..., None], name: str, call_id: int, items: list[Any], window: int) -> None:
            if not self.process.has_ended:
                self._ledger.produced(caller, call_id, len(items))
            original(name, call_id, items, window)

        wrap(origin, "reply", reply)
        wrap(origin, "fail", fail)
        wrap(origin, "items", items)

    # Mailboxes.

    def watch_cell(self, cell: Cell) -> None:
        """A new incarnation has a mailbox here."""
        ledger, world = self._ledger, self._world
        mailbox = ledger.cell_made(self._party, cell)

        def enqueue(original: Callable[[Incoming], bool], incoming: Incoming) -> bool:
            enqueued = original(incoming)
            if enqueued:
                ledger.put(mailbox, incoming, cell.capacity_bytes)
            return enqueued

        def admit(original: Callable[[Incoming], Handler | None], incoming: Incoming) -> Handler | None:
            handler = original(incoming)
            if handler is None:
                ledger.left(mailbox, incoming)
            else:
                world.note(self.process, f"handles {cell.name}.{incoming.method}")
                ledger.handled(mailbox, incoming, waits=not (handler.is_concurrent or handler.is_stream))
            return handler

        def drop(original: Callable[..., bool], origin: Origin, call_id: int) -> bool:
            before = list(cell.queue)
            dropped = original(origin, call_id)
            if dropped:
                kept = {id(incoming) for incoming in cell.queue}
                for incoming in before:
                    if id(incoming) not in kept:
                        ledger.left(mailbox, incoming)
            return dropped

        def show(original: Callable[..., object], *args: Any) -> None:
            if not self.process.has_ended:  # the board keeps what it was in when it died
                original(*args)

        if cell._panel is not None:
            cell._panel = Panel(*(functools.partial(show, write) for write in cell._panel))
        wrap(cell, "_enqueue", enqueue)
        wrap(cell, "_admit", admit)
        wrap(cell, "_drop_queued", drop)
        if isinstance(cell, BlockingCell):
            wrap(cell, "cancelled", self._pause_before)

    # Blocking actors.

    def _make_waits_virtual(self, node: BlockingNode) -> None:
        """Where the node would block the thread, the world goes on."""

        def wait(original: Callable[[], None]) -> None:
            thread = current_thread()
            assert thread is not None
            readers = [p.inbox.reader for p in node.peers.values() if p.inbox is not None]
            writers = (node.outbox.ring,) if node.has_backlog else ()
            noticed: list[int] = []
            if node.bell.arm(readers, writers):
                bell = node.bell.fileno()
                wanted = [(fd, select.POLLIN) for fd in (bell, *node._watched)]
                noticed = thread.wait_ready(wanted, node.alarms.remaining_s())
                node.bell.disarm()
            node._read_links(noticed)

        def write(original: Callable[[Peer], None], peer: Peer) -> None:
            thread = current_thread()
            assert thread is not None
            while peer.link.pending and not peer.link.closed:
                thread.wait_ready([(peer.link.fileno(), select.POLLOUT)])
                peer.link.pump()

        wrap(node, "wait", wait)
        wrap(node, "look", self._pause_before)
        wrap(node, "link_has_backlog", write)

    def _pause_before(self, original: Callable[[], Any]) -> Any:
        thread = current_thread()
        if thread is not None:
            thread.pause()
        return original()

    # Lives.

    def _enter(self, original: Callable[..., Record], make: Callable[[int], Record]) -> Record:
        record = original(make)
        actor = (self._party.system, record.child.actor_id)
        self._ledger.entered(actor, record.name, record.child.restart)

        def tell(event: Event) -> None:
            note = f"{record.name}: {type(event).__name__}"
            if isinstance(event, Ready):
                note += f" (incarnation {event.incarnation})"
                self._ledger.ready(actor)
            elif isinstance(event, Died):
                was_stopped = event.cause.summary.startswith("it was stopped")
                note += f": {event.cause.summary}"
                self._ledger.died(actor, by_itself=not was_stopped)
            elif isinstance(event, GaveUp | Stopped):
                self._ledger.died(actor, by_itself=False)
            elif isinstance(event, Restarting):
                note += f" (attempt {event.attempt}, in {event.delay_s:.6f} s)"
            self._world.note(self.process, note)

        record.subscribe(tell)
        return record


class _Cells(dict[int, Cell]):
    """A node's cells, which are watched from the moment they are there."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def __setitem__(self, actor_id: int, cell: Cell) -> None:
        self._observer.watch_cell(cell)
        super().__setitem__(actor_id, cell)
