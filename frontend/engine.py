"""The actors of one engine: a worker and an engine core, siblings under one supervisor, and the frontend's own actor.

`AsyncLLM` starts it and sends requests through it. It watches both, tells the truth about them, and when the core has
restarted attaches again and gives it every live request out of its journal. It knows no texts and restarts nobody: the
supervisor does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import ringcast.actors as rt
from ringcast.scheduler.engine_core import EngineCore
from ringcast.scheduler.errors import NotAttached
from ringcast.scheduler.messages import (
    AddRequest,
    EngineInfo,
    FrontendInterface,
    SchedulerStatistics,
    StepOutputs,
    WorkerInterface,
)

from .engine_args import EngineArgs
from .engine_client import ActorFigures, EngineSink, Health, RingFigures
from .errors import EngineDead, EngineNotReady, EngineStartFailed
from .journal import Journal
from .stall_monitor import Stall, StallMonitor
from .step_parts import parts

W = TypeVar("W", bound=WorkerInterface)

CORE, WORKER, FRONTEND = "engine-core", "worker-0", "frontend"
_SYSTEM = "ringcast"  # and the name of our own process's node
# A crash costs a pause, so many are borne; an actor that crashes at once again and again is given up within seconds all
# the same. Kills from outside are not its fault: it comes back after every one.
_RESTART = rt.Restart("permanent", max_restarts=10, within_s=60.0, max_backoff_s=0.2, outside_kills="ignore")

_CORE_WAIT_S = 60.0  # what a request waits for a core that restarts
_ANSWER_S = 1.0  # what a process gets to tell its figures: it may be busy in a step, or stalled
_BATCH_TOKENS = 32_768  # that a restarted core is given in one message: it answers others in between

log = logging.getLogger("ringcast.frontend")


class Frontend(FrontendInterface):
    """Receives the core's outputs in the app's process and hands them on."""

    mailbox = rt.Mailbox(capacity=4 << 20)

    def __init__(self, on_outputs: Callable[[StepOutputs], None]) -> None:
        self._on_outputs = on_outputs

    @rt.call
    async def deliver(self, outputs: StepOutputs) -> None:
        for part in parts(outputs):
            self._on_outputs(part)
            if part is not outputs:
                await asyncio.sleep(0)

    @rt.call
    async def settle(self) -> None:
        """Returns when everything has been handled that was in the mailbox before."""


class Engine:
    """An `EngineClient` over actors. ``worker`` says how to make the worker; ``args`` sizes the scheduler.

    ``core_wait_s`` bounds what a request waits for a core that restarts.
    """

    def __init__(self, worker: rt.Spec[W], args: EngineArgs, *, core_wait_s: float = _CORE_WAIT_S) -> None:
        self._worker_spec: rt.Spec[Any] = worker
        self._config = args.scheduler_config()
        self._args = args
        self._monitor: StallMonitor | None = None
        self._core_wait_s = core_wait_s
        self._stack = AsyncExitStack()
        self._system: rt.System | None = None
        self._sink: EngineSink | None = None
        self._core: EngineCore | None = None
        self._info: EngineInfo | None = None  # of the core that lives, or of the last one
        self._journal = Journal()
        self._is_attached = False  # the core that lives knows us, and takes requests
        self._attaching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # attached, or dead for good
        self._settled = asyncio.Event()  # attached for the first time, or dead for good
        self._end = ""  # why it is dead for good; empty while it is not
        self._ended = asyncio.Event()
        self._down: dict[str, str] = {}  # which actors are down now, and why
        self._serving: set[str] = set()  # which are READY: a core that is not attached to yet is both
        self._num_deaths = {FRONTEND: 0, CORE: 0, WORKER: 0}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, sink: EngineSink) -> None:
        """Start both processes. Cancelling it ends what was started."""
        self._sink = sink
        try:
            system = self._system = await self._stack.enter_async_context(rt.System(_SYSTEM))
            frontend = await system.spawn(rt.spec(Frontend, self._on_outputs), name=FRONTEND)
            worker: WorkerInterface = await system.spawn(
                self._worker_spec, name=WORKER, where=rt.process(spare=True), restart=_RESTART
            )
            core = self._core = await system.spawn(
                rt.spec(EngineCore, self._config, worker), name=CORE, where=rt.process(), restart=_RESTART
            )
            self._monitor = StallMonitor(
                system,
                (WORKER, worker),
                (CORE, core),
                stall_after_s=self._args.stall_after,
                restart_after_s=self._args.restart_stalled,
                has_work=lambda: len(self._journal) > 0,
                is_up=self._serving.__contains__,
            )
            self._spawn_task(self._monitor.run())
            self._spawn_task(self._follow_worker(system.watch(worker), sink))
            self._spawn_task(self._follow_core(system.watch(core), core, frontend, sink))
            await self._settled.wait()
        except rt.ActorError as error:
            self._end = f"the engine did not start: {explain(error)}"
            await self.close()
            raise EngineStartFailed(self._end) from error
        except BaseException:
            self._end = "the engine's start was given up"
            await self.close()
            raise
        if self._end:
            await self.close()
            raise EngineStartFailed(f"the engine did not start: {self._end}")

    async def wait_dead(self) -> str:
        await self._ended.wait()
        return self._end

    async def close(self) -> None:
        self._end = self._end or "the engine was closed"
        self._ended.set()
        self._changed.set()
        self._is_attached = False
        self._journal.clear()
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()
        self._core = self._system = None  # a reference keeps its system's doorbell

    def health(self) -> Health:
        if self._end:
            return Health("dead", self._end)
        if not self._settled.is_set():
            return Health("starting", "the engine is starting")
        if self._down:
            return Health("restarting", "; ".join(self._down.values()))
        if stalls := self._stalls():
            return Health("stalled", "; ".join(str(stall) for stall in stalls.values()))
        return Health("ready")

    def info(self) -> EngineInfo:
        if self._info is None or self._end:
            raise self._not_ready()
        return self._info

    async def add(self, requests: list[AddRequest]) -> None:
        await self._until_attached()
        self._journal.enter(requests)
        assert self._core is not None and self._monitor is not None
        self._monitor.wake()
        try:
            await self._hand_over(self._core, [request.request_id for request in requests])
        except rt.ActorDied as death:
            log.info("the engine core died while it was given a request: its successor gets it (%s)", explain(death))

    def abort(self, request_ids: list[str]) -> None:
        self._journal.forget(request_ids)
        if self._core is None:
            return
        try:
            self._core.abort.cast(request_ids)
        except rt.MailboxFull:
            self._spawn_task(self._abort_later(self._core, request_ids))
        except rt.ActorDied:
            log.debug("abort of %s: the engine core is gone, and they with it", request_ids)

    async def statistics(self) -> SchedulerStatistics:
        if self._core is None or not self._is_attached:
            raise self._not_ready()
        try:
            return await self._core.statistics()
        except rt.ActorError as error:
            raise EngineDead(f"the engine core did not answer: {explain(error)}") from error

    async def ring_figures(self) -> RingFigures:
        figures = (await self._node_statistics(None)).values()
        return RingFigures(sum(f.messages_sent for f in figures), sum(f.overflows for f in figures))

    async def actors(self) -> list[ActorFigures]:
        nodes = await self._node_statistics(_ANSWER_S)
        stalls = self._stalls()
        actors = []
        for name, num_deaths in self._num_deaths.items():
            is_up = name not in self._down
            stalled_s = stalls[name].waited_s if name in stalls else 0.0
            node = nodes.get(_SYSTEM if name == FRONTEND else name)
            if node is None:
                actors.append(ActorFigures(name, is_up, num_deaths, stalled_s=stalled_s, has_answered=not is_up))
                continue
            mailbox = node.mailboxes.get(name)
            actors.append(
                ActorFigures(
                    name,
                    is_up,
                    num_deaths,
                    node.messages_sent,
                    node.bytes_sent,
                    node.overflows,
                    node.full_waits,
                    0 if mailbox is None else mailbox.depth,
                    stalled_s,
                )
            )
        return actors

    def _stalls(self) -> dict[str, Stall]:
        return {} if self._monitor is None else self._monitor.stalls

    def pids(self) -> dict[str, int]:
        """The process ids of worker and core, by name."""
        return {} if self._system is None or self._end else self._system.pids()

    async def _node_statistics(self, timeout_s: float | None) -> dict[str, rt.NodeStatistics]:
        if self._system is None or self._end:
            raise EngineNotReady(f"there are no rings: {self.health().detail}")
        try:
            return await self._system.statistics(timeout_s)
        except rt.ActorError as error:
            raise EngineDead(f"a part of the engine did not answer: {explain(error)}") from error

    def _not_ready(self) -> EngineNotReady:
        health = self.health()
        return EngineNotReady(f"the engine takes no requests now ({health.state}): {health.detail}")

    async def _until_attached(self) -> None:
        """Wait for a core that takes requests: `EngineNotReady` if there is none to come, or not in time."""
        if self._info is None:
            raise self._not_ready()
        try:
            async with asyncio.timeout(self._core_wait_s):
                while not self._is_attached and not self._end:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise EngineNotReady(
                f"the engine core has not come back within {self._core_wait_s:g} s "
                f"({self.health().detail}): try again later"
            ) from None
        if self._end:
            raise self._not_ready()

    def _on_outputs(self, outputs: StepOutputs) -> None:
        outputs = self._journal.receive(outputs)
        assert self._sink is not None
        self._sink.on_outputs(outputs)

    async def _follow_core(self, events: rt.Watch, core: EngineCore, frontend: Frontend, sink: EngineSink) -> None:
        async for event in events:
            if isinstance(event, rt.Ready):
                self._serving.add(CORE)
                self._attaching = self._spawn_task(self._attach(core, frontend))
            elif isinstance(event, rt.Died):
                self._lost_core(event.cause, sink)
            elif isinstance(event, rt.Restarting) and event.planned:
                self._lost_core(rt.Cause(f"it is restarted: {event.reason}", from_outside=True), sink)
            elif isinstance(event, rt.GaveUp):
                self._gone(f"the engine core is gone for good: {reason(event.cause)}", sink)

    def _lost_core(self, death: rt.Cause, sink: EngineSink) -> None:
        cause = reason(death)
        self._is_attached = False
        self._serving.discard(CORE)
        self._down[CORE] = f"the engine core died: {cause}"
        self._num_deaths[CORE] += 1
        if self._attaching is not None:
            self._attaching.cancel()
        sink.on_outputs(self._journal.lose(cause, is_evidence=not death.from_outside))
        log.warning("the engine core died (%s): %d live requests wait for its successor", cause, len(self._journal))

    async def _attach(self, core: EngineCore, frontend: Frontend) -> None:
        """Make ourselves known to a core that has started, and give it every request that lives."""
        try:
            info = await core.attach(frontend)
            await frontend.settle()  # what its predecessor sent with its last breath is in the journal
            self._info = info
            while (suspect := self._journal.next_suspect()) is not None:
                log.warning("request %s was in flight at two deaths of the engine core: it runs alone", suspect)
                await self._hand_over(core, [suspect])
                await self._journal.cleared(suspect)
            while batch := self._journal.next_batch(_BATCH_TOKENS):
                await self._hand_over(core, batch)
        except rt.ActorError as error:  # it died again: its next Ready, or its end, is on its way
            log.warning("attaching to the engine core failed: %s", explain(error))
            return
        if self._down.pop(CORE, None) is not None:
            log.warning("the engine core is back, and %d requests go on", len(self._journal))
        self._is_attached = True
        self._changed.set()
        self._settled.set()

    async def _hand_over(self, core: EngineCore, request_ids: Iterable[str]) -> None:
        """Give requests of the journal to the core. `ActorDied` if it dies of it; then they are its successor's."""
        assert self._info is not None
        requests = self._journal.hand_over(request_ids, self._info.client)
        # Asked, not told: a core that restarted a moment ago does not know our client number and must say so.
        try:
            await core.add(requests)
        except rt.RemoteError as error:
            if error.type_name == NotAttached.__name__:  # we are about to hear of its restart, and attach
                return
            failed = self._journal.fail([r.request_id for r in requests], f"the engine core refused it: {error.text}")
            assert self._sink is not None
            self._sink.on_outputs(failed)
        given_up = [r.request_id for r in requests if r.request_id not in self._journal]
        if given_up:  # meanwhile: the abort may have been there first
            self.abort(given_up)

    async def _follow_worker(self, events: rt.Watch, sink: EngineSink) -> None:
        # The core itself ends what ran on a worker that died; here it only counts for the health.
        async for event in events:
            if isinstance(event, rt.Ready):
                self._serving.add(WORKER)
                self._down.pop(WORKER, None)
            elif isinstance(event, rt.Died):
                self._serving.discard(WORKER)
                self._down[WORKER] = f"the worker died: {reason(event.cause)}"
                self._num_deaths[WORKER] += 1
            elif isinstance(event, rt.Restarting) and event.planned:
                self._down[WORKER] = f"the worker is restarted: {event.reason}"
            elif isinstance(event, rt.GaveUp):
                self._gone(f"the worker is gone for good: {reason(event.cause)}", sink)

    def _gone(self, why: str, sink: EngineSink) -> None:
        self._end = self._end or why
        self._is_attached = False
        self._journal.clear()
        self._changed.set()
        self._settled.set()
        self._ended.set()
        sink.on_death(EngineDead(why))

    async def _abort_later(self, core: EngineCore, request_ids: list[str]) -> None:
        try:
            await core.abort.cast.wait(request_ids)
        except rt.ActorDied:
            log.debug("abort of %s: the engine core is gone, and they with it", request_ids)

    def _spawn_task(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("a task of the frontend's engine failed", exc_info=failure)


def explain(error: rt.ActorError) -> str:
    """One line for the user: the message of what went wrong in the other process, without its class's path."""
    if isinstance(error, rt.StartFailed):
        return f"{error.name} failed: {reason(error.cause)}"
    if isinstance(error, rt.ActorDied):
        return reason(error.cause)
    if isinstance(error, rt.RemoteError):
        return error.text.strip().partition("\n")[0]
    return str(error).strip().partition("\n")[0]


def reason(cause: rt.Cause) -> str:
    """One line of a cause: the last line of its traceback if it has one, else its summary."""
    lines = [line for line in cause.traceback.splitlines() if line and not line[0].isspace()]
    if not lines:
        return cause.summary
    path, colon, message = lines[-1].partition(": ")
    # Our own errors speak for themselves; of a foreign one the type is half of the message.
    if colon and path.startswith("ringcast."):
        return message
    return lines[-1]
