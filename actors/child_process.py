"""What a child process does after its watch on the parent runs: boot, host one actor, stop in order.

Reached from `child` only. Exceptions of user code become frames to the root and an exit code, never silence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ringcast.channels import ORPHANED, Board, Codec, Doorbell, EncodeError, Frame, Link, Outbox, RingWriter

from . import platform
from .actor import Actor, BlockingActor
from .async_cell import AsyncCell
from .blocking_cell import BlockingCell
from .boot import ROOT_SLOT, Boot, load_class
from .cell import Panel
from .child_logging import set_up_logging
from .child_node import NOT_PROMOTED, AsyncChildNode, BlockingChildNode, ChildControl
from .context import Context
from .failure import describe
from .import_guard import loading
from .loops import run_on_new_loop, send_all, wait_readable
from .ref import Ref
from .runner import ActorRunner
from .wire import FrameKind

EXIT_FAILED: Final = 1
log = logging.getLogger("ringcast.actors")


@dataclass(slots=True, eq=False, repr=False)  # what is generated for a class takes time when a process starts
class Place:
    """What the boot frame brought."""

    boot: Boot
    arguments: bytes | memoryview  # the boot frame's, or mapped
    link: Link
    early_frames: list[Frame]  # came with it, from the root
    board: Board
    bell: Doorbell
    outbox: Outbox
    root_bell_fd: int
    root_ring_fd: int
    abort_fd: int  # readable when a stop must reach the middle of a handler

    def panel(self) -> Panel:
        """Where its actor's cell shows what it does."""
        slot = self.boot.slot
        return Panel(partial(self.board.advance, slot), partial(self.board.set_gauges, slot))

    def show_title(self, addition: str = "") -> None:
        """What process tables show."""
        platform.current().show_title(f"{self.boot.system_name}: {self.boot.name}{addition}")

    def show_spare(self, node: ChildControl) -> None:
        """It is prepared, and waits."""
        self.show_title(" (spare)")
        node.report_phase("waits as a spare", None)

    def promoted(self, node: ChildControl) -> object:
        """It is a spare no more; its predecessor's hand-off."""
        self.show_title()
        node.report_phase("start", None)
        return node.promotion

    def join(self, node: ChildControl) -> None:
        """Connect the node to the root."""
        platform.current().node_made(node)
        peer = node.connect_root(self.link, self.root_bell_fd, self.root_ring_fd)
        node.handle_frames(peer, self.early_frames)


def run_child(link_fd: int) -> int:
    """Receive the boot frame and live; the process's exit code."""
    place = _receive_boot(Link(link_fd))
    boot = place.boot
    place.show_title(" (spare, prepares itself)" if boot.is_spare else "")
    sys.path[:] = boot.sys_path
    try:
        with loading(f"actor class {boot.class_name}"):
            set_up_logging(boot.logging, boot.name, boot.log_level)
            cls = load_class(boot.class_name, boot.class_bytes)
    except BaseException as error:
        place.link.send(FrameKind.START_FAILED, 0, Codec().encode(_trace(error)))
        send_all(place.link)
        return EXIT_FAILED
    if issubclass(cls, Actor):
        return run_on_new_loop(_live_async(place, cls))
    return _live_blocking(place, cls)


def _receive_boot(link: Link) -> Place:
    frames: list[Frame] = []
    while not frames:
        if link.closed:
            os._exit(ORPHANED)
        wait_readable(link.fileno())
        frames = link.receive()
    board_fd, bell_fd, ring_fd, root_bell_fd, root_ring_fd, abort_fd, *large_fds = frames[0].fds
    boot: Boot = Codec().decode(frames[0].payload)
    arguments: bytes | memoryview = boot.arguments
    if large_fds:
        from ringcast.channels.large import map_copy

        arguments = map_copy(large_fds[0], boot.large_arguments)
    board = Board(board_fd)
    board.advance(boot.slot, 0)  # the slot may have been another process's
    bell = Doorbell(board, boot.slot, bell_fd)
    outbox = Outbox(RingWriter(ring_fd, bell, epoch=boot.epoch))
    for fd in (board_fd, bell_fd, ring_fd):
        os.close(fd)  # the mappings and the doorbell keep what they need
    return Place(boot, arguments, link, frames[1:], board, bell, outbox, root_bell_fd, root_ring_fd, abort_fd)


async def _live_async(place: Place, cls: type[Actor]) -> int:
    boot = place.boot
    node = AsyncChildNode(slot=boot.slot, name=boot.name, board=place.board, bell=place.bell, outbox=place.outbox)
    stopping = asyncio.ensure_future(node.stop_requested.wait())
    node.start()
    place.join(node)
    try:
        actor, handoff = _construct(node, place, cls)
        cell = AsyncCell(actor, boot.actor_id, boot.name, place.panel())
        node.route_up(boot.actor_id, boot.name, boot.slot, cell.capacity_bytes)
        runner = ActorRunner(node, cell, actor)
        ctx = _context(node, boot)
        start = asyncio.ensure_future(_start(place, node, runner, ctx, handoff))
        await asyncio.wait([start, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()  # stopped while it starts
            await asyncio.wait([start])
            return 0
        start.result()
    except BaseException as error:
        return await _report(node, FrameKind.START_FAILED, error)
    node.to_root(FrameKind.READY, cell.capacity_bytes)
    runner.begin_run(ctx)

    failure = asyncio.ensure_future(runner.failure())
    await asyncio.wait([failure, stopping], return_when=asyncio.FIRST_COMPLETED)
    try:
        if failure.done():
            return await _report(node, FrameKind.CRASHED, failure.result())
        failure.cancel()
        handoff = await runner.stop(node.stop_reason or "")
    except BaseException as error:
        return await _report(node, FrameKind.CRASHED, error)
    _report_stopped(node, handoff)
    await node.frames_written(node.peers[ROOT_SLOT])
    node.stop()
    node.outbox.close()
    return 0


def _live_blocking(place: Place, cls: type[BlockingActor]) -> int:
    boot = place.boot
    node = BlockingChildNode(slot=boot.slot, name=boot.name, board=place.board, bell=place.bell, outbox=place.outbox)
    place.join(node)
    try:
        actor, handoff = _construct(node, place, cls)
        cell = BlockingCell(actor, boot.actor_id, boot.name, place.panel())
        ctx = _context(node, boot)
        actor.on_prepare(ctx)
        if boot.is_spare:
            place.show_spare(node)
            while node.promotion is NOT_PROMOTED:
                if node.stop_reason is not None:
                    return 0
                if not node.receive():
                    node.wait()
            handoff = place.promoted(node)
        node.cells[boot.actor_id] = cell
        actor.on_start(ctx, handoff)
        if cls.on_abort is not BlockingActor.on_abort:
            _start_side_thread(actor, place)
    except BaseException as error:
        node.to_root(FrameKind.START_FAILED, _trace(error))
        return EXIT_FAILED
    node.to_root(FrameKind.READY, cell.capacity_bytes)
    while node.stop_reason is None:
        received = node.receive()
        ran = node.stop_reason is None and cell.run_one()
        if ran:
            node.flush()
            node.look_if_due()
        elif not received:
            node.wait()
    cell.fail_queued(f"the actor was stopped: {node.stop_reason}")
    try:
        handoff = actor.on_stop(node.stop_reason)
    except BaseException as error:
        node.to_root(FrameKind.CRASHED, _trace(error))
        return EXIT_FAILED
    _report_stopped(node, handoff)
    node.flush()
    node.outbox.close()
    return 0


async def _start(place: Place, node: AsyncChildNode, runner: ActorRunner, ctx: Context, handoff: object) -> None:
    await runner.prepare(ctx)
    if place.boot.is_spare:
        place.show_spare(node)
        await node.promoted.wait()
        handoff = place.promoted(node)
    await runner.start(ctx, handoff)


def _construct(node: ChildControl, place: Place, cls: type[Any]) -> tuple[Any, object]:
    """The actor, and its predecessor's hand-off."""
    with loading(f"what the arguments of {place.boot.class_name} are made of"):
        args, kwargs, handoff = node.codec.decode(place.arguments)
        if kwargs is None:  # from an actor that spawned this one: see `parcel`
            args, kwargs = node.codec.decode(args)
    place.arguments = b""
    return cls(*args, **kwargs), handoff


def _start_side_thread(actor: BlockingActor, place: Place) -> None:
    """Run ``on_abort`` beside a handler that is in the way of a stop."""

    def wait() -> None:
        os.eventfd_read(place.abort_fd)
        _, number = place.board.progress(place.boot.slot)
        if number:
            try:
                actor.on_abort()
            except BaseException as error:
                log.error("on_abort of %r failed:\n%s", place.boot.name, describe(error).traceback)

    platform.current().start_thread(wait, "on_abort")


def _context(node: ChildControl, boot: Boot) -> Context:
    return Context(node, Ref(boot.actor_id, boot.name, node), boot.name, boot.incarnation)


def _report_stopped(node: ChildControl, handoff: object) -> None:
    try:
        node.to_root(FrameKind.STOPPED, handoff)
    except EncodeError as error:
        log.error("the hand-off of %r is lost: %s", node.name, error)
        node.to_root(FrameKind.STOPPED, None)


async def _report(node: AsyncChildNode, kind: FrameKind, error: BaseException) -> int:
    node.to_root(kind, _trace(error))
    await node.frames_written(node.peers[ROOT_SLOT])
    return EXIT_FAILED


def _trace(error: BaseException) -> str:
    return describe(error).traceback
