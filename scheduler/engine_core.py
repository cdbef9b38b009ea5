"""The engine-core actor: takes requests, drives the worker step by step, sends the tokens back.

Frontends attach to it; it is the only one who talks to the scheduler. It never touches a tensor or a text,
and it neither starts nor stops anybody: the supervisor does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine

import ringcast.actors as rt

from .config import SchedulerConfig, fit_again, resolve
from .errors import EngineFailed, NotAttached, ResultError
from .messages import (
    AddRequest,
    EngineInfo,
    FrontendInterface,
    KVCacheConfig,
    KVCacheEvents,
    KVCacheSpec,
    SchedulerStatistics,
    StepOutputs,
    WorkerInterface,
)
from .scheduler import Outputs, Scheduler
from .worker_connection import WorkerConnection, first_line

_MAX_FAILURES = 5  # steps or initialisations that fail one after another in a living worker

log = logging.getLogger("ringcast.scheduler")


class EngineCore(rt.Actor):
    """Runs the requests of its frontends on one worker.

    Flow: `on_start` waits until the worker is up, sizes the KV cache and initialises the worker. `run` plans
    a step, lets the worker execute it, and casts each frontend its outputs, while the worker is at the next step
    already; with nothing to do it sleeps until a handler or a watch wakes it. Handlers only change the scheduler and
    leave their outputs in the outbox that `run` empties, so a frontend sees the outputs of a request in order. A full
    mailbox of a frontend holds the loop back.

    What fails: the worker dies -> what ran waits for its next incarnation and goes on there, token for token; a
    request that was in flight at two crashes without a token in between runs alone then, and ends with an error if the
    worker crashes again (`quarantine`; a kill from outside is no crash). The worker raises -> the same, after
    initialising it again; after five times in a row this actor raises `EngineFailed` and its supervisor decides. The
    supervisor gives the worker up -> every request, present and future, ends with that error. A frontend dies -> its
    requests are aborted.
    """

    def __init__(self, config: SchedulerConfig, worker: WorkerInterface) -> None:
        self._config = config
        self._worker_ref = worker
        self._wake = asyncio.Event()
        self._worker = WorkerConnection(worker, self._wake)
        self._clients: dict[int, FrontendInterface] = {}
        self._last_client = 0
        self._outbox: deque[tuple[int, StepOutputs]] = deque()
        self._num_failures = 0
        self._watchers: set[asyncio.Task[None]] = set()
        self._watch_failure: BaseException | None = None

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        """Initialise the worker; `ConfigError` if model, memory and settings do not fit together."""
        self._ctx = ctx
        self._watch(self._worker.follow(ctx.watch(self._worker_ref)))
        try:
            self._limits, self._spec = await self._size_worker()
        except BaseException:
            self._stop_watching()
            raise
        self._scheduler = Scheduler(self._limits, self._spec.vocab_size, self._config)

    async def run(self, ctx: rt.Context) -> None:
        """The step loop. Aborts and new requests are taken while a step runs."""
        try:
            while True:
                busy = await self._advance()
                await self._send_outputs()
                if not busy:
                    await self._changed()
        finally:
            self._worker.cancel()
            self._stop_watching()

    async def on_stop(self, reason: str) -> object:
        self._stop_watching()  # `run` does it too, unless it was cancelled before its first turn
        return None

    @rt.call
    async def attach(self, frontend: FrontendInterface) -> EngineInfo:
        """Requests that carry the returned client number answer to ``frontend``, while it lives."""
        self._last_client += 1
        client = self._last_client
        self._clients[client] = frontend
        self._watch(self._watch_client(client, frontend))
        limits = self._limits
        return EngineInfo(
            client=client,
            max_model_len=limits.max_model_len,
            vocab_size=self._spec.vocab_size,
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            is_exact=self._spec.is_exact,
        )

    @rt.call
    async def add(self, requests: list[AddRequest]) -> None:
        """Queue requests. Each ends with one output that has a ``finish_reason``; refused ones at once.

        `NotAttached`, and nothing is queued, when one carries a client number that is not in use.
        """
        for request in requests:
            if request.client not in self._clients:
                raise NotAttached(
                    f"request {request.request_id!r} of client {request.client}: no such frontend is attached"
                )
        for request in requests:
            output = self._scheduler.add(request)
            if output is not None:
                self._post({request.client: StepOutputs(self._scheduler.step_id, [output])})
        self._wake.set()

    @rt.call
    async def abort(self, request_ids: list[str]) -> None:
        """End requests with "abort", whatever their state; ids that have ended already are passed over."""
        self._post(self._scheduler.abort(request_ids))
        self._wake.set()

    @rt.call
    async def statistics(self) -> SchedulerStatistics:
        """A snapshot of the scheduler's accounts."""
        return self._scheduler.statistics()

    @rt.call
    async def waits_for_worker(self) -> bool:
        """Whether the worker owes an answer now. That this is answered at all says that the core is at work."""
        return self._worker.is_awaited

    @rt.call
    async def reset_prefix_cache(self) -> None:
        """Later requests find nothing that was computed so far."""
        self._scheduler.reset_prefix_cache()

    @rt.call
    async def kv_cache_events(self, first: int) -> KVCacheEvents:
        """What the prefix cache did, from event ``first`` on; none unless ``kv_event_log_size`` keeps some."""
        return self._scheduler.kv_cache_events(first)

    async def _size_worker(self) -> tuple[KVCacheConfig, KVCacheSpec]:
        """Initialise the worker for the first time; the limits, and what they were made of."""
        while True:
            while not self._worker.is_up:
                if self._worker.gone:
                    raise EngineFailed(f"the worker is gone, so the engine cannot start: {self._worker.cause}")
                await self._changed()
            try:
                spec = await self._worker.kv_cache_spec(self._config.block_size)
                limits = resolve(self._config, spec)
                await self._worker.initialise(limits)
            except rt.ActorDied as death:
                log.warning("the worker ended while the engine started: %s", death)
                continue
            log.info(
                "KV cache: %d blocks of %d tokens, %d bytes; up to %d requests of up to %d tokens at a time",
                limits.num_blocks,
                limits.block_size,
                limits.num_blocks * spec.bytes_per_block,
                limits.max_num_seqs,
                limits.max_model_len,
            )
            asked = self._config.max_model_len or spec.max_model_len
            if limits.max_model_len < asked:
                log.warning(
                    "max_model_len is %d instead of %d: num_kv_blocks=%d hold no more",
                    limits.max_model_len,
                    asked,
                    limits.num_blocks,
                )
            return limits, spec

    async def _advance(self) -> bool:
        """Do the next thing there is to do; False when there is none until something changes."""
        if not self._worker.num_in_flight:
            if not self._worker.is_initialised:
                return await self._recover()
            self._submit()
            if not self._worker.num_in_flight:
                return False
        try:
            outputs = self._scheduler.update(await self._worker.result())
        except rt.ActorDied as death:
            log.warning("the worker ended while %d requests ran: %s", self._scheduler.num_running, death)
            await self._worker.drop_results()
        except (rt.RemoteError, rt.CallCancelled, ResultError) as error:
            await self._worker.drop_results()
            await self._failed("a step", error)
        else:
            self._num_failures = 0
            self._post(outputs)
            self._submit()  # before the outputs are sent: the worker goes on meanwhile
        return True

    def _submit(self) -> None:
        """Give the worker plans until it has as many as it may, or there is no other yet."""
        while self._worker.is_initialised and self._worker.num_in_flight < self._config.max_plans_in_flight:
            plan = self._scheduler.schedule()
            if plan is None:
                return
            self._worker.submit(plan)

    async def _recover(self) -> bool:
        """Let what ran on a dead incarnation of the worker wait, and initialise its successor if it is up."""
        is_evidence = not self._worker.was_killed_from_outside
        self._post(self._scheduler.worker_lost(self._worker.cause, is_evidence=is_evidence))
        if self._worker.gone:
            self._post(self._scheduler.fail_all(f"the worker is gone for good: {self._worker.cause}"))
            return False
        if not self._worker.is_up:
            return False
        try:
            limits = fit_again(self._limits, await self._worker.kv_cache_spec(self._limits.block_size))
            await self._worker.initialise(limits)
        except rt.ActorDied as death:
            log.warning("the worker ended while it was initialised: %s", death)
        except (rt.RemoteError, rt.CallCancelled) as error:
            await self._failed("initialising it", error)
        else:
            if limits != self._limits:
                log.warning("the worker is back with memory for %d KV blocks only", limits.num_blocks)
            self._post(self._scheduler.worker_ready(limits.num_blocks))
        return True

    async def _failed(self, what: str, error: Exception) -> None:
        """A living worker failed: what ran there starts again. `EngineFailed` at the fifth time in a row."""
        self._num_failures += 1
        log.error("%s failed in the worker (%d in a row): %s", what, self._num_failures, error)
        self._post(self._scheduler.worker_lost(first_line(error)))
        self._worker.distrust()
        if self._num_failures >= _MAX_FAILURES:
            await self._send_outputs()
            raise EngineFailed(f"the worker failed {self._num_failures} times in a row: {error}") from error

    def _post(self, outputs: Outputs) -> None:
        self._outbox.extend(outputs.items())

    async def _send_outputs(self) -> None:
        """Empty the outbox, waiting for frontends whose mailboxes are full."""
        while self._outbox:
            client, outputs = self._outbox.popleft()
            frontend = self._clients.get(client)
            if frontend is None:  # it died; so nobody waits for this
                continue
            try:
                await frontend.deliver.cast.wait(outputs)
            except rt.ActorDied as death:
                self._detach(client, first_line(death))

    async def _watch_client(self, client: int, frontend: FrontendInterface) -> None:
        async for event in self._ctx.watch(frontend):
            is_gone = isinstance(event, rt.Restarting) and event.planned
            if is_gone or isinstance(event, rt.Died | rt.GaveUp | rt.Stopped):
                self._detach(client, type(event).__name__)
                return

    def _detach(self, client: int, why: str) -> None:
        if self._clients.pop(client, None) is not None:
            log.info("frontend %d is gone (%s): its requests are aborted", client, why)
            self._scheduler.abort_client(client)

    async def _changed(self) -> None:
        """Sleep until a handler or a watch has set ``wake``; no timer runs."""
        await self._wake.wait()
        self._wake.clear()
        if self._watch_failure is not None:
            raise self._watch_failure

    def _watch(self, watcher: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(watcher)
        self._watchers.add(task)
        task.add_done_callback(self._watch_ended)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        self._watchers.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._watch_failure = failure
            self._wake.set()

    def _stop_watching(self) -> None:
        for task in self._watchers:
            task.cancel()
