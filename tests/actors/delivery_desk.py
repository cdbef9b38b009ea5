"""A delivery without a ring: two actors with mailboxes, and a peer whose answers are kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import ringcast.actors as rt
from ringcast.actors.async_cell import AsyncCell
from ringcast.actors.cell import Panel
from ringcast.actors.delivery import Delivery
from ringcast.actors.origin import RemoteOrigin
from ringcast.channels import Codec


class Desk:
    """Actors 1 and 2 of that class. ``sent``: the envelopes that went to the peer."""

    def __init__(self, cls: type[rt.Actor], panel: Panel | None = None) -> None:
        self.sent: list[list[Any]] = []
        codec = Codec()
        self.node: Any = SimpleNamespace(
            codec=codec,
            cells={},
            calls=SimpleNamespace(finish=lambda *_: None, items=lambda *_: None),
            counters=SimpleNamespace(undecodable=0),
            peers={},
            credit=lambda *_: None,
            send_masked=lambda mask, data: self.sent.append(codec.decode(data)),
        )
        self.peer: Any = SimpleNamespace(slot=1, mask=1, name="peer")
        self.node.peers[1] = self.peer
        self.peer.origin = RemoteOrigin(self.node, self.peer)
        self.delivery = Delivery(self.node)
        self.cells = {actor_id: AsyncCell(cls(), actor_id, f"w{actor_id}", panel) for actor_id in (1, 2)}
        for cell in self.cells.values():
            self.node.cells[cell.actor_id] = cell
            cell.start()

    async def take(self, kind: int, *parts: object) -> None:
        """It arrives alone, in a callback."""
        await asyncio.sleep(0)
        messages: Any = [(0, self.node.codec.encode((int(kind), *parts)))]
        asyncio.get_running_loop().call_soon(self.delivery.handle_all, self.peer, messages, True)
        for _ in range(3):
            await asyncio.sleep(0)

    async def close(self) -> None:
        """End the actors, which live."""
        for cell in self.cells.values():
            assert cell._task is not None and not cell._task.done(), "an actor has ended"
            cell.stop()
            await asyncio.wait([cell._task])
            await cell.close()
