"""Starting, dying, restarting and stopping: every call ends once, with the cause; nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from actor_zoo import BadRun, BadStart, Blocking, Cancelled, Chain, Counter, Farewell, Relay

import ringcast.actors as rt
from ringcast.actors.root_node import RootNode

pytestmark = pytest.mark.usefixtures("leak_oracle")
FAST = rt.Restart("permanent", max_restarts=3, within_s=30, backoff_s=0.01)


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
@pytest.mark.parametrize("how", ["init", "on_start"])
async def test_a_failed_start_carries_the_actors_own_traceback(where: rt.Where, how: str) -> None:
    async with rt.System() as system:
        with pytest.raises(rt.StartFailed, match=f"no luck in {how}") as caught:
            await system.spawn(rt.spec(BadStart, how), name="bad", where=where)
        assert 'raise RuntimeError("no luck' in caught.value.cause.traceback
        assert await (await system.spawn(rt.spec(Counter, 1), name="bad")).add(1) == 2


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_a_cancellation_that_nobody_asked_for_is_a_failure_wherever_it_comes_from(where: rt.Where) -> None:
    async with rt.System() as system, asyncio.timeout(30):
        with pytest.raises(rt.StartFailed, match="awaited something that was cancelled"):
            await system.spawn(rt.spec(Cancelled, "on_prepare"), where=where)
        with pytest.raises(rt.StartFailed, match="awaited something that was cancelled"):
            await system.spawn(rt.spec(Cancelled, "on_start"), where=where)
        runs = await system.spawn(rt.spec(Cancelled, "run"), where=where)
        assert "awaited something that was cancelled" in await death_of(system, runs)
        deaf = await system.spawn(rt.spec(Cancelled), where=where)
        with pytest.raises(rt.ActorError):
            await deaf.cancel_its_task()
        assert "cancelled by the actor's own code" in await death_of(system, deaf)
        await system.spawn(rt.spec(Cancelled, "on_stop"), where=where)  # leaving the system raises nothing


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"where": rt.process}, r"where is .*: use rt.here or rt.process\(...\)"),  # would run here, and nobody knew
        ({"where": "process"}, "where is 'process': use rt.here"),
        ({"restart": "permanent"}, "restart is 'permanent': use rt.Restart"),
        ({"name": 5}, "name is 5: give a string"),
    ],
)
async def test_a_wrong_argument_of_spawn_is_named_and_nothing_is_started(wrong: dict[str, Any], message: str) -> None:
    async with rt.System() as system:
        with pytest.raises(TypeError, match=message):
            await system.spawn(rt.spec(Counter, 0), **wrong)
        with pytest.raises(ValueError, match=r"deadline\(nan\): give seconds"):
            rt.deadline(float("nan"))


async def death_of(system: rt.System, ref: rt.Actor) -> str:
    async for event in system.watch(ref):
        if isinstance(event, rt.Died | rt.GaveUp):
            return event.cause.traceback or event.cause.stderr_tail
    raise AssertionError("the watch ended")


async def test_an_actor_here_gets_its_turn_to_stop_though_another_used_up_the_time(tmp_path: Path) -> None:
    async with rt.System(stop_timeout_s=0.3) as system:
        await system.spawn(rt.spec(Farewell, str(tmp_path / "here")))
        await system.spawn(rt.spec(Farewell, str(tmp_path / "slow"), 60.0), where=rt.process())
    assert (tmp_path / "here").exists()


async def test_a_process_that_dies_while_it_starts_fails_the_start_with_its_last_phase_and_lines() -> None:
    async with rt.System() as system:
        with pytest.raises(rt.StartFailed) as caught:
            await system.spawn(rt.spec(BadStart, "exit3"), where=rt.process())
    cause = caught.value.cause
    assert (cause.exit_code, cause.last_phase, cause.stderr_tail) == (3, "load weights", "famous last words")


async def test_cancelling_a_start_ends_the_process() -> None:
    async with rt.System() as system:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await system.spawn(rt.spec(BadStart, "hang"), where=rt.process())
        assert psutil.Process().children() == []


@pytest.mark.parametrize(
    ("how", "exit_code", "text"),
    [("kill", -9, "SIGKILL"), ("segv", -11, "SIGSEGV"), ("exit0", 0, "code 0"), ("exit3", 3, "code 3")],
)
@pytest.mark.parametrize("cls", [Counter, Blocking])
async def test_a_death_ends_the_call_with_its_cause(
    cls: type[Counter] | type[Blocking], how: str, exit_code: int, text: str
) -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(cls, 0), name="victim", where=rt.process())
        with pytest.raises(rt.ActorDied, match=text) as caught:
            await actor.die(how)
        assert caught.value.cause.exit_code == exit_code
        assert caught.value.cause.last_handler == "die"
        assert ("famous last words" in caught.value.cause.stderr_tail) is (how == "exit3")
        with pytest.raises(rt.ActorDied, match="victim"):
            await actor.add(1)
        with pytest.raises(rt.ActorDied, match="victim"):
            actor.add.cast(1)


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
@pytest.mark.parametrize("turns", [0, 1, 20])
async def test_a_restart_that_nobody_waits_for_any_more_is_done_all_the_same(where: rt.Where, turns: int) -> None:
    async with rt.System() as system, asyncio.timeout(30):
        counter = await system.spawn(rt.spec(Counter, 0), where=where)
        restart = asyncio.ensure_future(system.restart(counter))
        await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0.001)
        restart.cancel()
        async for event in system.watch(counter):
            if event == rt.Ready(2):
                break
        assert await counter.add(1) == 1
        await system.restart(counter)
        restart = asyncio.ensure_future(system.restart(counter))
        await asyncio.sleep(0)
        restart.cancel()  # and the system is left meanwhile


async def test_the_handler_of_a_death_is_named_though_its_class_travelled_by_value() -> None:
    class Local(rt.Actor):
        @rt.call
        async def zero(self) -> None: ...

        @rt.call
        async def die(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        @rt.call
        async def add(self) -> None: ...

    async with rt.System() as system:
        actor = await system.spawn(rt.spec(Local), where=rt.process())
        with pytest.raises(rt.ActorDied) as caught:
            await actor.die()
        assert caught.value.cause.last_handler == "die"


async def test_a_permanent_actor_is_restarted_and_its_reference_stays_good() -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(Counter, 10), where=rt.process(), restart=FAST)
        await actor.add(5)
        first = await actor.pid()
        watch = system.watch(actor)
        os.kill(first, signal.SIGKILL)
        seen = []
        async for event in watch:
            seen.append(event)
            if isinstance(event, rt.Ready) and event.incarnation == 2:
                break
        assert [type(e) for e in seen] == [rt.Ready, rt.Died, rt.Restarting, rt.Ready]
        assert await actor.add(1) == 11
        assert await actor.pid() != first


async def test_a_restart_reaches_callers_and_watchers_in_other_processes() -> None:
    async with rt.System() as system:
        target = await system.spawn(rt.spec(Counter, 0), name="target", where=rt.process(), restart=FAST)
        relay = await system.spawn(rt.spec(Relay, target), where=rt.process())
        assert await relay.add(3) == 3
        os.kill(await target.pid(), signal.SIGKILL)
        while await relay.why():
            await asyncio.sleep(0.01)
        assert await relay.add(3) == 4
        assert await relay.seen_events() == ["Ready", "Died", "Restarting", "Ready"]


async def test_a_death_ends_calls_from_other_processes_too() -> None:
    async with rt.System() as system:
        target = await system.spawn(rt.spec(Counter, 0), name="target", where=rt.process())
        relay = await system.spawn(rt.spec(Relay, target), where=rt.process())
        assert await relay.add(3) == 3
        with pytest.raises(rt.ActorDied):
            await target.die("segv")
        kind, text = await relay.why()
        assert kind == "ActorDied"
        assert "target" in text and "SIGSEGV" in text


async def test_too_many_deaths_and_the_supervisor_gives_up() -> None:
    async with rt.System() as system:
        actor = await system.spawn(
            rt.spec(BadRun, 0.05), where=rt.process(), restart=rt.Restart("permanent", 2, 30, 0.01)
        )
        events = [event async for event in system.watch(actor)]
        assert [type(e) for e in events].count(rt.Restarting) == 2
        assert isinstance(events[-1], rt.GaveUp)
        assert "died 3 times within 30 s" in events[-1].cause.summary
        with pytest.raises(rt.ActorDied, match="died 3 times"):
            await actor.pid()


@pytest.mark.parametrize(("how", "restarted"), [("exit0", False), ("exit3", True)])
async def test_a_transient_actor_is_restarted_only_after_an_abnormal_end(how: str, restarted: bool) -> None:
    async with rt.System() as system:
        policy = rt.Restart("transient", backoff_s=0.01)
        actor = await system.spawn(rt.spec(Counter, 0), where=rt.process(), restart=policy)
        with pytest.raises(rt.ActorDied):
            await actor.die(how)
        async for event in system.watch(actor):
            if isinstance(event, rt.Ready | rt.GaveUp):
                assert isinstance(event, rt.Ready) is restarted
                break


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_an_exception_in_run_kills_the_actor_with_its_traceback(where: rt.Where) -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(BadRun, 0.01), where=where)
        events = [event async for event in system.watch(actor)]
        assert isinstance(events[-1], rt.GaveUp)
        assert 'RuntimeError("the loop broke")' in events[-1].cause.traceback


async def test_leaving_the_system_stops_in_reverse_order_and_runs_on_stop(tmp_path: Path) -> None:
    path = tmp_path / "farewell"
    async with rt.System() as system:
        for where in (rt.here, rt.process()):
            await system.spawn(rt.spec(Farewell, str(path)), where=where)
    assert path.read_text() == "farewell: the system stops\n" * 2


async def test_an_actor_that_does_not_stop_is_killed_at_the_deadline() -> None:
    began = time.monotonic()
    async with rt.System(stop_timeout_s=0.3) as system:
        actor = await system.spawn(rt.spec(Blocking), where=rt.process())
        call = asyncio.ensure_future(actor.sleep(60))
        await asyncio.sleep(0.1)
    assert time.monotonic() - began < 5
    with pytest.raises(rt.ActorDied, match="stopped"):
        await call


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_a_stop_ends_the_handler_that_runs_and_what_waits(where: rt.Where) -> None:
    async with rt.System() as system:
        chain = await system.spawn(rt.spec(Chain), where=where)
        runs = asyncio.ensure_future(chain.stubborn(60))
        beside = asyncio.ensure_future(chain.meet(60))
        waits = asyncio.ensure_future(chain.get())
        await asyncio.sleep(0.1)
        await system.stop(chain, "closing time")
        for ended in (runs, beside):
            with pytest.raises(rt.CallCancelled, match="was cancelled there"):
                await ended
        for late in (waits, chain.get()):
            with pytest.raises(rt.ActorDied, match="stopped: closing time"):
                await late


async def test_a_stopped_actor_says_so() -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(Counter, 0), name="c", where=rt.process())
        await system.stop(actor)
        with pytest.raises(rt.ActorDied, match="it was stopped: asked to stop"):
            await actor.add(1)
        assert [type(e) async for e in system.watch(actor)] == [rt.Stopped]


async def test_a_stopped_peer_does_not_stop_the_others() -> None:
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
        frozen = await system.spawn(rt.spec(Counter, 0), name="frozen", where=rt.process())
        pid = await frozen.pid()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await frozen.add(1)
        assert await counter.add(1) == 1
        os.kill(pid, signal.SIGCONT)
        assert await frozen.add(1) in (1, 2)  # the first call was cancelled before or after it ran


def is_running(pid: int) -> bool:
    """Whether the process runs: one that nobody reaps is gone all the same."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


MAIN = """
    import asyncio, os, sys, time
    import ringcast.actors as rt

    class Sleeper(rt.BlockingActor):
        @rt.call
        def pid(self) -> int:
            return os.getpid()

        @rt.call
        def hold_the_interpreter(self) -> None:
            sum(range(10 ** 12))

    async def main() -> None:
        async with rt.System() as system:
            actors = [await system.spawn(rt.spec(Sleeper), where=rt.process()) for _ in range(2)]
            print(*[await a.pid() for a in actors], flush=True)
            await actors[0].hold_the_interpreter()

    asyncio.run(main())
"""


def test_kill_of_the_app_takes_its_children_along_even_one_that_holds_the_interpreter(tmp_path: Path) -> None:
    """Also: an actor class of a script's __main__ works, without a guard."""
    script = tmp_path / "app.py"
    script.write_text(textwrap.dedent(MAIN))
    app = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert app.stdout is not None
    pids = [int(word) for word in app.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.2)
    app.kill()
    app.wait()
    app.stdout.close()
    deadline = time.monotonic() + 1.0
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"children outlived the app: {pids}"
        time.sleep(0.01)


def test_importing_the_runtime_brings_no_heavy_module() -> None:
    code = (
        "import sys, ringcast.actors; "
        "print([m for m in ('torch', 'numpy', 'transformers', 'fastapi', 'cloudpickle') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


LOOPS = """
    import asyncio
    import ringcast.actors as rt

    class Where(rt.Actor):
        @rt.call
        async def loop(self) -> str:
            return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    async def main(system: rt.System) -> None:
        print(await (await system.spawn(rt.spec(Where))).loop(),
              await (await system.spawn(rt.spec(Where), where=rt.process())).loop())

    rt.run(main)
"""


@pytest.mark.parametrize("there", [True, False])
def test_uvloop_is_used_where_it_is_and_not_needed(tmp_path: Path, there: bool) -> None:
    (tmp_path / "app.py").write_text(textwrap.dedent(LOOPS))
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    if not there:
        (hidden / "uvloop.py").write_text("raise ImportError('not installed')")
    command, env = [sys.executable, str(tmp_path / "app.py")], {**os.environ, "PYTHONPATH": str(hidden)}
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert (result.stdout, result.stderr) == ("uvloop uvloop\n" if there else "asyncio asyncio\n", "")


SESSION = """
import ringcast.actors as rt
from ringcast.actors.root_node import RootNode

class Note(rt.Actor):
    @rt.call
    async def double(self, n: int) -> int:
        return 2 * n

system = await rt.System().__aenter__()
note = await system.spawn(rt.spec(Note), where=rt.process())
print("answer", await note.double(21))
await system.__aexit__(None, None, None)
"""


def test_a_class_typed_into_an_interactive_session_works_in_a_process() -> None:
    """As in a notebook: the loop runs between the lines, and the class is nowhere to be imported from."""
    command = [sys.executable, "-m", "asyncio"]
    result = subprocess.run(command, input=SESSION, capture_output=True, text=True, timeout=60, check=False)
    assert "answer 42\n" in result.stdout, result.stderr


async def test_a_turn_that_fails_does_not_make_the_process_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does for which there is no memory: what comes later, and what came then, is heard."""
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(str(context.get("exception"))))
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
        assert await counter.add(1) == 1
        poll_once = RootNode.poll_once
        failures = iter([MemoryError("planted")])

        def fails_once(node: RootNode) -> int:
            for error in failures:
                raise error
            return poll_once(node)

        monkeypatch.setattr(RootNode, "poll_once", fails_once)
        async with asyncio.timeout(10):
            assert await counter.add(1) == 2
        assert heard == ["planted"]


class CancelsItself(rt.Actor):
    """Its handlers cancel their task and do not wait."""

    @rt.call
    async def at_once(self) -> str:
        self._cancel()
        return "done"

    @rt.call
    async def later(self) -> str:
        await asyncio.sleep(0.001)
        self._cancel()
        return "done"

    @rt.call
    async def fails(self) -> str:
        self._cancel()
        raise KeyError

    @rt.call
    async def wait(self) -> str:
        await asyncio.sleep(0.01)
        return "waited"

    def _cancel(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_a_handlers_own_cancellation_hits_no_other_handler(where: rt.Where) -> None:
    async with rt.System() as system:
        actor = await system.spawn(rt.spec(CancelsItself), where=where)
        for method in (actor.at_once, actor.later):
            assert (await method(), await actor.wait()) == ("done", "waited")
            together = [actor.wait(), method(), actor.wait(), actor.wait(), method(), method(), actor.wait()]
            assert await asyncio.gather(*together) == ["waited", "done", "waited", "waited", "done", "done", "waited"]
        for _ in range(2):
            with pytest.raises(rt.RemoteError, match="KeyError"):
                await actor.fails()
            assert await actor.wait() == "waited"
