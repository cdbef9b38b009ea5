"""The actors that one actor has spawned (`Context.spawn`): they end with it, and before it is started again.

Owned by its `Record`. They are members of a branch of its own; requests of an actor in another process are frames.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import ActorError, StartFailed
from .failure import summary_of
from .host import Child
from .parcel import Parcel
from .peer import Peer
from .placement import Restart, process
from .ref import Ref, number_of
from .wire import FrameKind

if TYPE_CHECKING:
    from .branch import Branch
    from .directory import Directory
    from .record import Record
    from .root_node import RootNode

log = logging.getLogger("ringcast.actors")


class Owned:
    """See the module."""

    def __init__(self, name: str, root: RootNode, directory: Directory) -> None:
        self._name = name
        self._root = root
        self._directory = directory
        self._is_open = False
        self._branch: Branch | None = None
        self._spawning: dict[tuple[int, int], asyncio.Task[None]] = {}  # by the asking process's slot and its number
        self._ending: asyncio.Task[None] | None = None

    def open(self) -> None:
        """An incarnation starts."""
        self._is_open = True

    async def spawn(self, make: Callable[[int], Child]) -> Record:
        """Start an actor that the owner's present incarnation owns."""
        from .branch import Branch

        if not self._is_open:
            raise ActorError(f"actor {self._name!r} stops: it can spawn no more actors")
        if self._branch is None:
            self._branch = Branch(f"actors of {self._name}", self._root, self._directory, parent=None)
        return await self._branch.spawn(make)

    async def stop(self, actor_id: int, name: str, reason: str, timeout_s: float) -> None:
        """Stop one of them; nothing to do if it has ended. `ActorError` if it is somebody else's."""
        record = self._directory.record(Ref(actor_id, name, None))
        if record is None:
            return
        if self._branch is None or record not in self._branch:
            raise ActorError(f"actor {record.name!r} is not one that {self._name!r} spawned: it cannot stop it")
        await record.stop(reason, timeout_s)

    def begin_to_end(self, timeout_s: float) -> None:
        """The owner's incarnation is gone, or about to: stop what it owns."""
        self._is_open = False
        branch, self._branch = self._branch, None
        if branch is not None:
            stop = branch.stop(f"its owner {self._name!r} has ended", timeout_s)
            self._ending = self._root.tasks.start(stop, f"{self._name}: end of what it owns")

    async def ended(self) -> None:
        """Wait until nothing that was stopped is left."""
        if self._ending is not None:
            await asyncio.wait([self._ending])

    # Requests of an owner in another process.

    def on_frame(self, peer: Peer, kind: FrameKind, body: Any) -> None:
        """A request: it is answered with OWNED."""
        number = body[0]
        if kind == FrameKind.GIVE_UP_SPAWN:
            if (spawn := self._spawning.get((peer.slot, number))) is not None:
                spawn.cancel()
            return
        if kind == FrameKind.SPAWN:
            work: Any = self._serve_spawn(*body[1:])
        else:
            work = self._serve_stop(*body[1:])
        task = self._root.tasks.start(self._answer(peer, number, work), f"{self._name}: request {number}")
        self._spawning[peer.slot, number] = task
        task.add_done_callback(lambda _: self._spawning.pop((peer.slot, number), None))

    async def _serve_spawn(
        self, parcel: list[Any], name: str | None, where: list[Any], restart: list[Any]
    ) -> list[Any]:
        env, cpus, spare, output = where
        place = process(env=env, cpus=None if cpus is None else frozenset(cpus), spare=spare, output=output)
        content = Parcel(*parcel)

        def make(actor_id: int) -> Child:
            called = name or f"{content.title}-{number_of(actor_id)}"
            return Child(actor_id, called, content, place, Restart(*restart))

        record = await self.spawn(make)
        return [record.child.actor_id, record.name]

    async def _serve_stop(self, actor_id: int, reason: str, timeout_s: float) -> list[Any]:
        await self.stop(actor_id, "", reason, timeout_s)
        return [actor_id, ""]

    async def _answer(self, peer: Peer, number: int, work: Any) -> None:
        name, text, cause, value = "", "", None, None
        try:
            value = await work
        except StartFailed as error:
            name, cause = error.name, error.cause
        except asyncio.CancelledError:
            text = "it was cancelled"
        except Exception as error:
            text = str(error) if isinstance(error, ActorError) else summary_of(error)
        if self._root.peers.get(peer.slot) is peer:
            self._root.send_frame(peer, FrameKind.OWNED, (number, value, name, cause, text))
