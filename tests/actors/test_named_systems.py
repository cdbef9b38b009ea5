"""Actors that unrelated programs find by name: calls, streams, deaths of either side, slots, wrong names."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from actor_zoo import Counter
from named_programs import Tally

import ringcast.actors as rt
from ringcast.actors.root_node import MAX_PROCESSES
from ringcast.actors.serving import KIND
from ringcast.channels import NameRefused, NameTaken, NameUnknown
from ringcast.channels.name_claim import NameClaim
from ringcast.channels.name_door import Knock

pytestmark = pytest.mark.usefixtures("leak_oracle")
PROGRAMS = Path(__file__).with_name("named_programs.py")
KILLS = int(os.environ.get("RINGCAST_NAME_KILLS", "4"))
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(name: str) -> Iterator[Start]:
    """Starts a program of `named_programs`; kills what still runs at the end."""
    programs: list[subprocess.Popen[str]] = []

    def start(role: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAMS), role, *map(str, arguments)]
        programs.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        program.communicate()


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}-{random.randrange(1 << 32):x}"
    yield name
    NameClaim(KIND, name).release()  # as the next start would do: a test may have killed the owner
    assert entries(name) == []


def line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def entries(name: str) -> list[str]:
    return [entry for entry in os.listdir("/dev/shm") if entry.endswith(f"-system-{name}")]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_program_calls_actors_of_another_one_and_of_its_children(start: Start, name: str) -> None:
    server = start("serve", name, 60)
    assert line(server) == "serving"
    async with rt.connect(name) as remote:
        assert remote.actors == ["near", "far"]
        for label in remote.actors:
            tally = remote.find(label, Tally)
            assert await tally.add(2) == 2
            tally.add.cast(3)
            assert await tally.add(1) == 6
            async with tally.count.open(100) as items:
                assert [k async for k in items] == list(range(100))
            with pytest.raises(rt.RemoteError, match="as asked"):
                await tally.fail()
            assert await tally.size(bytes(1_000_000)) == 1_000_000
            with pytest.raises(rt.DeadlineExceeded):
                async with rt.deadline(0.05):
                    await tally.sleep(30)
    other = start("add", name, 4)
    assert line(other) == "10"
    assert entries(name) != []


async def test_the_servers_death_ends_calls_streams_and_watches(start: Start, name: str) -> None:
    server = start("serve", name, 60)
    assert line(server) == "serving"
    async with rt.connect(name) as remote:
        for label in remote.actors:
            await remote.find(label, Tally).add(1)
        tally = remote.find("far", Tally)
        sleeps = [asyncio.ensure_future(remote.find(label, Tally).sleep(30)) for label in remote.actors]
        watch = remote.watch(tally)
        assert isinstance(await anext(watch), rt.Ready)
        async with tally.count.open(1 << 30) as items:
            assert await anext(items) == 0
            server.kill()
            for sleep in sleeps:
                with pytest.raises(rt.ActorDied, match=f"process {server.pid}"):
                    await sleep
            with pytest.raises(rt.ActorDied):
                async for _ in items:
                    pass
        assert [type(event) async for event in watch][-1] is rt.GaveUp
        with pytest.raises(rt.ActorDied):
            await tally.add(1)
        with pytest.raises(rt.ActorDied):
            tally.add.cast(1)
        server.wait()
        with pytest.raises(NameUnknown, match="is dead"):
            async with rt.connect(name):
                pass
    async with (
        rt.System() as system,
        rt.serve(system, name, {"a": await system.spawn(rt.spec(Counter, 0))}),
        rt.connect(name) as again,
    ):
        assert await again.find("a", Counter).add(5) == 5
    with pytest.raises(rt.NotInSystem):
        await tally.add(1)
    assert entries(name) == []


@pytest.mark.parametrize("where", [rt.here, rt.process()], ids=["here", "process"])
async def test_a_clients_death_cancels_its_calls_and_gives_its_slot_back(
    start: Start, name: str, where: rt.Where
) -> None:
    async with rt.System() as system:
        tally = await system.spawn(rt.spec(Tally), where=where)
        async with rt.serve(system, name, {"near": tally, "far": tally}) as serving:
            for _ in range(3):
                client = start("call", name)
                assert await asyncio.to_thread(line, client) == "connected"
                [pid] = serving.clients
                assert pid == client.pid
                before = await tally.add(0)
                while await tally.add(0) == before:
                    pass
                client.kill()
                client.wait()
                await eventually(lambda: serving.clients == [])
            assert await tally.add(0) > 0


async def test_the_end_of_serving_ends_the_clients_calls_and_the_system_goes_on(name: str) -> None:
    async with rt.System() as system:
        tally = await system.spawn(rt.spec(Tally), where=rt.process())
        serving = rt.serve(system, name, {"tally": tally})
        async with serving:
            remote = rt.connect(name)
            await remote.__aenter__()
            sleep = asyncio.ensure_future(remote.find("tally", Tally).sleep(30))
            await remote.find("tally", Tally).add(1)
        with pytest.raises(rt.ActorDied, match="is no longer served"):
            await sleep
        await eventually(lambda: serving.clients == [])
        await remote.__aexit__(None, None, None)
        assert await tally.add(1) == 2
        assert entries(name) == []


async def test_the_end_of_the_system_ends_the_clients_calls(name: str) -> None:
    system = rt.System()
    await system.__aenter__()
    tally = await system.spawn(rt.spec(Tally), where=rt.process())
    async with rt.serve(system, name, {"tally": tally}):
        async with rt.connect(name) as remote:
            sleep = asyncio.ensure_future(remote.find("tally", Tally).sleep(30))
            await remote.find("tally", Tally).add(1)
            await system.__aexit__(None, None, None)
            with pytest.raises((rt.ActorDied, rt.CallCancelled)):
                await sleep
            with pytest.raises(rt.ActorDied):
                await remote.find("tally", Tally).add(1)
        with pytest.raises(NameRefused, match="has stopped"):
            async with rt.connect(name):
                pass


async def test_casts_sent_before_leaving_arrive(name: str) -> None:
    async with rt.System(ring_bytes=4096) as system:
        tally = await system.spawn(rt.spec(Tally), where=rt.process())
        async with rt.serve(system, name, {"tally": tally}):
            async with rt.connect(name) as remote:
                there = remote.find("tally", Tally)
                for _ in range(500):
                    there.add.cast(1)
            await eventually_value(tally, 500)


async def eventually_value(tally: Tally, value: int) -> None:
    async with asyncio.timeout(10):
        while await tally.add(0) != value:
            pass


async def test_two_connections_and_a_system_in_one_program(name: str) -> None:
    async with rt.System("one") as one, rt.System("two") as two:
        a, b = await one.spawn(rt.spec(Counter, 1)), await two.spawn(rt.spec(Counter, 2))
        async with (
            rt.serve(one, name, {"c": a}),
            rt.serve(two, f"{name}-2", {"c": b}),
            rt.connect(name) as remote,
            rt.connect(f"{name}-2") as other,
        ):
            assert await remote.find("c", Counter).add(1) == 2
            assert await other.find("c", Counter).add(1) == 3
            with pytest.raises(rt.NotInSystem):
                remote.watch(other.find("c", Counter))


async def test_wrong_names_and_exports_fail_at_once(name: str) -> None:
    with pytest.raises(NameUnknown):
        async with rt.connect(name):
            pass
    with pytest.raises(ValueError, match="cannot be used"):
        async with rt.connect("no/name"):
            pass
    async with rt.System() as system, rt.System() as stranger:
        counter = await system.spawn(rt.spec(Counter, 0))
        with pytest.raises(rt.ActorError, match="exports nothing"):
            rt.serve(system, name, {})
        with pytest.raises(TypeError, match="exports an actor as 5: names of actors are strings"):
            rt.serve(system, name, {5: counter})  # type: ignore[dict-item]
        with pytest.raises(rt.NotInSystem):
            async with rt.serve(stranger, name, {"counter": counter}):
                pass
        async with rt.serve(system, name, {"counter": counter}), rt.connect(name) as remote:
            with pytest.raises(NameTaken, match=f"taken by process {os.getpid()}"):
                async with rt.serve(system, name, {"counter": counter}):
                    pass
            with pytest.raises(rt.ActorError, match="exports no actor 'x'; it exports 'counter'"):
                remote.find("x", Counter)
            with pytest.raises(TypeError, match="needs the actor's class"):
                remote.find("counter", int)  # type: ignore[type-var]
        with pytest.raises(rt.NotInSystem):
            rt.connect(name).find("counter", Counter)


async def test_who_gives_up_before_the_answer_takes_no_slot(name: str) -> None:
    async with rt.System() as system:
        counter = await system.spawn(rt.spec(Counter, 0))
        async with rt.serve(system, name, {"counter": counter}) as serving:
            for turns in range(5):
                knock = Knock(KIND, name)
                for _ in range(turns):
                    await asyncio.sleep(0.005)
                knock.close()
                await asyncio.sleep(0.02)
                await eventually(lambda: serving.clients == [])


async def test_a_cancelled_leave_gives_up_what_waits_and_leaves_all_the_same(name: str) -> None:
    async with rt.System() as system:
        tally = await system.spawn(rt.spec(Tally), where=rt.process())
        async with rt.serve(system, name, {"tally": tally}) as serving:
            remote = rt.connect(name)
            await remote.__aenter__()
            remote.find("tally", Tally).add.cast(1)  # waits until it is known where the actor lives
            leaving = asyncio.create_task(remote.__aexit__(None, None, None))
            await asyncio.sleep(0)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            await eventually(lambda: serving.clients == [])
            await remote.__aexit__(None, None, None)  # again is allowed


async def test_more_programs_than_free_slots_are_refused(name: str) -> None:
    async with rt.System(ring_bytes=4096) as system:
        counter = await system.spawn(rt.spec(Counter, 0))
        async with rt.serve(system, name, {"counter": counter}) as serving:
            remotes = []
            for k in range(MAX_PROCESSES - 1):
                remotes.append(await rt.connect(name).__aenter__())
                assert await remotes[-1].find("counter", Counter).add(1) == k + 1
            with pytest.raises(NameRefused, match="64 processes, which is as many as it can have"):
                async with rt.connect(name):
                    pass
            for remote in remotes:
                await remote.__aexit__(None, None, None)
            await eventually(lambda: serving.clients == [])
            async with rt.connect(name) as remote:
                assert await remote.find("counter", Counter).add(0) == MAX_PROCESSES - 1


async def test_kill_9_of_either_side_leaves_no_name_after_the_next_start_and_no_hang(start: Start, name: str) -> None:
    chance = random.Random(KILLS)
    for turn in range(KILLS):
        server = start("serve", name, 60)
        assert line(server) == "serving", turn
        client = start("call", name)
        if chance.random() < 0.7:
            assert line(client) == "connected", turn
        time.sleep(chance.uniform(0, 0.1))
        victim = chance.choice([server, client])
        victim.kill()
        victim.wait()
        if victim is server:
            client.wait(20)
        else:
            async with asyncio.timeout(20), rt.connect(name) as remote:
                assert await remote.find("far", Tally).add(0) >= 0
            server.kill()
            server.wait()
    async with rt.System() as system, rt.serve(system, name, {"c": await system.spawn(rt.spec(Counter, 0))}):
        pass
    assert entries(name) == []
