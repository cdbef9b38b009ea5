"""The native parts of cells, deliveries and nodes, handed what they do not expect by Python: an error, no crash."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from delivery_desk import Desk

import ringcast.actors as rt
from ringcast.actors._native import AsyncNodeCore, CellCore, DeliveryCore, Incoming
from ringcast.actors.async_cell import AsyncCell
from ringcast.actors.call_context import EMPTY
from ringcast.actors.cell import Cell, Panel
from ringcast.actors.node import Node
from ringcast.actors.wire import Envelope, FailureKind
from ringcast.channels import Codec


class Worker(rt.Actor):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @rt.call
    async def note(self, x: Any) -> Any:
        self.seen.append(x)
        return x


@pytest.mark.parametrize("wrong", [[1, "x"], [1, None, 2], [1, 2, []]])
async def test_no_member_gets_a_group_message_with_a_wrong_number(wrong: list[object]) -> None:
    desk = Desk(Worker)
    await desk.take(Envelope.GROUP, wrong, 5, None, "note", ["a"], {}, None)
    assert [cell.actor.seen for cell in desk.cells.values()] == [[], []]
    assert all(sent[:3:2] == [Envelope.FAILURE, FailureKind.RAISED] for sent in desk.sent)
    assert [sent[1] for sent in desk.sent] == [5 + rank for rank, number in enumerate(wrong) if number in (1, 2)]
    await desk.close()


@pytest.mark.parametrize("kind", [Envelope.CALL, Envelope.OPEN])
async def test_a_call_to_what_is_no_actor_at_all_is_answered(kind: Envelope) -> None:
    desk = Desk(Worker)
    await desk.take(kind, "x", 7, "note", ["a"], {}, None)
    assert [sent[:4] for sent in desk.sent] == [[Envelope.FAILURE, 7, FailureKind.RAISED, "x"]]
    await desk.close()


async def test_a_list_of_messages_may_be_changed_while_they_are_handled() -> None:
    desk = Desk(Worker)
    messages: Any = [(0, desk.node.codec.encode([int(Envelope.CAST), 1, "note", [n], {}])) for n in range(4)]

    def decode(data: bytes) -> object:
        messages.clear()
        return Codec().decode(data)

    delivery: Any = SimpleNamespace(core=DeliveryCore(desk.node, decode))
    assert delivery.core.handle_all(desk.peer, messages, False) == 0
    await asyncio.sleep(0)
    assert desk.cells[1].actor.seen == [0]
    await desk.close()


async def test_cells_that_are_no_dict_are_an_error() -> None:
    desk = Desk(Worker)
    desk.node.cells = [1, 2]
    with pytest.raises(RuntimeError, match="cells are no dict"):
        desk.delivery.handle(desk.peer, desk.node.codec.encode([int(Envelope.CAST), 1, "note", [1], {}]))
    await desk.close()


def message() -> Incoming:
    origin: Any = SimpleNamespace(took=lambda *_: None, reply=lambda *_: None, fail=lambda *_: None)
    return Incoming(None, "note", [1], {}, origin, 100, EMPTY)


def test_a_message_has_an_origin() -> None:
    incoming = message()
    with pytest.raises(AttributeError, match="has an origin"):
        del incoming.origin


def test_abstract_classes_have_no_instances() -> None:
    for abstract in (Cell, Node):
        with pytest.raises(TypeError, match="abstract"):
            abstract.__new__(abstract)  # type: ignore[type-abstract]


async def test_what_is_no_handler_is_refused() -> None:
    cell: Any = AsyncCell(Worker(), 1, "w", Panel(lambda number: None, lambda *figures: None))
    cell._admit = lambda incoming: 5
    cell.put(message())
    with pytest.raises(TypeError, match="a handler of a cell is a Handler, not a int"):
        cell._take()


def test_a_cell_that_was_not_made_is_an_error() -> None:
    cell: Any = CellCore.__new__(CellCore)
    cell._panel = Panel(lambda number: None, lambda *figures: None)
    for use in (cell._show_idle, cell._take, lambda: cell.put(message()), lambda: cell.put_and_run(message())):
        with pytest.raises(RuntimeError, match="constructor has not been called"):
            use()
    with pytest.raises(TypeError, match="9 arguments"):
        CellCore()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="actor_id is a str, not a int"):
        CellCore(None, "1", "w", 1, [], None, {}, EMPTY, None)  # type: ignore[arg-type]


async def test_a_handler_may_take_the_cells_task_away() -> None:
    desk = Desk(Worker)
    cell: Any = desk.cells[1]
    task = cell._task

    async def note(self: Worker, x: Any) -> Any:
        cell._task = None

    handler = cell._handlers["note"]
    cell._handlers["note"] = handler._replace(function=note)
    await desk.take(Envelope.CALL, 1, 7, "note", ["a"], {}, None)
    assert desk.sent == [[Envelope.REPLY, 7, None]]
    assert asyncio.current_task() is not task
    cell._task = task
    await desk.close()


class BareNode(AsyncNodeCore):
    """Nothing has been given to it yet."""

    def _look_later(self) -> None:
        pass


def test_a_node_that_lacks_something_says_what() -> None:
    node: Any = BareNode()
    node._running = True
    for name in ("_backlog", "outbox", "delivery"):
        with pytest.raises(AttributeError, match=name):
            node._turn()
        if name == "_backlog":
            node._backlog = deque()
            node._unflushed = 1
        elif name == "outbox":
            node.outbox = SimpleNamespace(uses_links=False)
    node._looks_for_answers = True
    with pytest.raises(AttributeError, match="calls"):
        node._poll_on()
    with pytest.raises(AttributeError, match="bell"):
        node._on_bell()


class FailingNode(AsyncNodeCore):
    """Its turn fails, and it cannot even look later."""

    def poll_once(self) -> int:
        raise ValueError("the ring is corrupt")

    def _look_later(self) -> None:
        raise RuntimeError("the loop is closed")


def test_the_first_error_of_a_turn_is_not_lost() -> None:
    node: Any = FailingNode()
    node._running, node._backlog, node.delivery = True, deque(), 1
    with pytest.raises(RuntimeError, match="loop is closed") as raised:
        node._turn()
    assert str(raised.value.__context__) == "the ring is corrupt"
    assert not node._turn_scheduled


def test_a_number_of_messages_below_none_is_an_error() -> None:
    node: Any = BareNode()
    node._running, node._backlog, node.delivery = True, deque(), 1
    node.poll_once = lambda: -1
    with pytest.raises(ValueError, match="handled -1 messages"):
        node._turn()
