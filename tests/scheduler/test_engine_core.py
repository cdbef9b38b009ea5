"""The engine core between frontends and a worker that behave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_fakes import Engine, died, started
from scheduler_fakes import request, solo

import ringcast.actors as rt
from ringcast.scheduler.config import SchedulerConfig
from ringcast.scheduler.errors import ConfigError, EngineFailed, NotAttached
from ringcast.scheduler.messages import EngineInfo, KVCacheConfig, KVCacheSpec

LIMITS = KVCacheConfig(13, 16, 4, 16, 200)


async def test_start_sizes_and_initialises_the_worker() -> None:
    async with started() as engine:
        assert engine.worker.configs == [LIMITS]
        _, info = await engine.attach()
        assert info == EngineInfo(1, 200, 97, 13, 16, 4, 16, is_exact=True)


async def test_small_pool_is_told_as_a_shorter_longest_request() -> None:
    async with started(SchedulerConfig(num_kv_blocks=2)) as engine:
        _, info = await engine.attach()
        assert (info.max_model_len, info.num_blocks) == (33, 2)


async def test_start_waits_until_the_worker_is_up() -> None:
    engine = Engine()
    engine.context.first_events[engine.worker] = rt.Died(1, rt.Cause("killed"))
    start = asyncio.create_task(engine.start())
    await engine.settle()
    assert not start.done() and engine.worker.configs == []
    engine.worker_ready(2)
    await start
    assert engine.worker.configs == [LIMITS]
    await engine.stop()


async def test_start_goes_on_with_the_next_incarnation_when_the_worker_dies_meanwhile() -> None:
    engine = Engine()
    engine.worker.initialize_faults.append(died())
    start = asyncio.create_task(engine.start())
    await engine.settle()
    assert not start.done()
    engine.kill_worker(1)
    engine.worker_ready(2)
    await start
    assert engine.worker.configs == [LIMITS]
    await engine.stop()


async def test_start_fails_when_the_worker_is_given_up() -> None:
    engine = Engine()
    engine.context.first_events[engine.worker] = rt.GaveUp(rt.Cause("out of memory"))
    with pytest.raises(EngineFailed, match="the worker is gone, so the engine cannot start: out of memory"):
        await engine.start()


async def test_start_fails_when_the_memory_is_too_small() -> None:
    engine = Engine(SchedulerConfig())
    engine.worker.spec = KVCacheSpec(1 << 20, 5 << 20, 2048, 97)
    with pytest.raises(ConfigError, match="needs 128 KV blocks of 16 tokens, but there is 5.0 MiB"):
        await engine.start()
    assert engine.worker.configs == []
    await engine.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_requests_of_two_frontends_end_like_alone_and_at_their_own_frontend() -> None:
    async with started() as engine:
        first, info = await engine.attach()
        second, other = await engine.attach()
        assert (info.client, other.client) == (1, 2)
        messages = [request(f"r{i}", [i] * (i * 3 + 1), 20 + i, client=1 + i % 2, seed=i) for i in range(12)]
        await engine.add(*messages)
        for message in messages:
            frontend = (first, second)[message.client - 1]
            last = await frontend.last(message.request_id)
            tokens, reason, _ = solo(message, LIMITS)
            assert (frontend.collected.token_ids[message.request_id], last.finish_reason) == (tokens, reason)
        assert first.collected.last.keys() == {m.request_id for m in messages[::2]}
        now = await engine.core.statistics()
        assert (now.num_free_blocks, now.num_running, now.num_waiting) == (13, 0, 0)


async def test_a_step_is_one_message_per_frontend() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        await engine.add(*(request(f"r{i}", [i], 3) for i in range(4)))
        await frontend.last("r3")
        assert [len(list(message.each())) for message in frontend.messages] == [4, 4, 4]
        assert [message.step_id for message in frontend.messages] == [1, 2, 3]


async def test_idle_engine_has_no_timer_and_asks_the_worker_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop: Any = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *args: Any, **kwargs: Any) -> Any:
        timers.append(when)
        return call_at(when, *args, **kwargs)

    async with started() as engine:
        frontend, _ = await engine.attach()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_at", counted)
            await engine.settle()
            await engine.add(request("a", [1], 3))
            await frontend.last("a")
            await engine.settle()
        assert timers == []
        assert len(engine.worker.plans) == 3


async def test_idle_then_traffic_many_times() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        for i in range(200):
            await engine.add(request(f"r{i}", [i % 97], 2))
            assert (await frontend.last(f"r{i}")).finish_reason == "length"
            await engine.settle()
        assert len(engine.worker.plans) == 400


async def test_request_that_comes_while_a_step_runs_joins_the_next() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        engine.worker.may_step.clear()
        await engine.add(request("a", [1], 3))
        await engine.worker.in_step.wait()
        await engine.add(request("b", [2], 3))
        engine.worker.may_step.set()
        await frontend.last("b")
        assert [len(plan.rows) for plan in engine.worker.plans] == [1, 2, 2, 1]


async def test_abort_while_the_step_runs_drops_its_token() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        await engine.add(request("a", [1], 100), request("b", [2], 5))
        await frontend.num_tokens("a", 2)
        engine.worker.may_step.clear()
        await engine.worker.in_step.wait()
        known = len(frontend.collected.token_ids["a"])
        await engine.core.abort(["a", "unknown"])
        engine.worker.may_step.set()
        assert (await frontend.last("a")).finish_reason == "abort"
        await frontend.last("b")
        assert len(frontend.collected.token_ids["a"]) <= known + 1  # the token that was on its way already
        assert frontend.collected.token_ids["b"] == solo(request("b", [2], 5), LIMITS)[0]
        assert (await engine.core.statistics()).num_free_blocks == 13


async def test_abort_of_a_waiting_request_is_answered_while_idle() -> None:
    async with started(SchedulerConfig(max_num_seqs=1, num_kv_blocks=4)) as engine:
        frontend, _ = await engine.attach()
        await engine.add(request("a", [1], 30), request("b", [2], 30))
        await engine.core.abort(["b"])
        assert (await frontend.last("b")).finish_reason == "abort"
        assert (await frontend.last("a")).finish_reason == "length"


async def test_refused_request_is_told_at_once_and_the_others_go_on() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        await engine.add(request("long", [1] * 200))
        last = await frontend.last("long")
        assert last.finish_reason == "error" and last.error is not None and "200 tokens" in last.error
        await engine.add(request("empty", []), request("a", [1], 2))
        assert (await frontend.last("empty")).error == "the prompt is empty: give at least one token"
        assert (await frontend.last("a")).finish_reason == "length"


async def test_requests_of_an_unknown_client_are_refused_as_a_whole() -> None:
    async with started() as engine:
        await engine.attach()
        with pytest.raises(NotAttached, match="request 'b' of client 7: no such frontend is attached"):
            await engine.add(request("a", [1]), request("b", [1], client=7))
        assert (await engine.core.statistics()).num_waiting == 0


async def test_full_mailbox_of_a_frontend_holds_the_loop_back() -> None:
    async with started() as engine:
        frontend, _ = await engine.attach()
        frontend.has_room.clear()
        await engine.add(request("a", [1], 10))
        await engine.settle()
        assert len(engine.worker.plans) == 2  # the second ran while the outputs of the first were on their way
        frontend.has_room.set()
        await frontend.last("a")
        assert len(engine.worker.plans) == 10


@pytest.mark.parametrize("event", [rt.Died(1, rt.Cause("killed")), rt.GaveUp(rt.Cause("killed")), rt.Stopped()])
async def test_requests_of_a_dead_frontend_are_aborted_and_the_others_go_on(event: rt.Event) -> None:
    async with started() as engine:
        dead, _ = await engine.attach()
        alive, _ = await engine.attach()
        await engine.add(request("a", [1], 150), request("b", [2], 20, client=2))
        await dead.num_tokens("a", 2)
        engine.context.tell(dead, event)
        await alive.last("b")
        await engine.settle()
        now = await engine.core.statistics()
        assert (now.num_running, now.num_free_blocks) == (0, 13)
        assert len(dead.collected.token_ids["a"]) < 20
        with pytest.raises(NotAttached):
            await engine.add(request("c", [1]))


async def test_frontend_that_is_found_dead_when_told_is_detached() -> None:
    async with started() as engine:
        dead, _ = await engine.attach()
        dead.dead = rt.ActorDied("frontend", rt.Cause("killed"))
        await engine.add(request("a", [1], 150))
        await engine.settle()
        now = await engine.core.statistics()
        assert (now.num_running, now.num_steps, now.num_free_blocks) == (0, 2, 13)


async def test_defect_in_a_watch_ends_the_actor_instead_of_going_unseen() -> None:
    async with started() as engine:

        class Broken:
            def __aiter__(self) -> Any:
                raise ValueError("no such actor")

        engine.context.watch = lambda ref: Broken()
        await engine.attach()
        assert engine.running is not None
        with pytest.raises(ValueError, match="no such actor"):
            await engine.running
