"""A simulator that finds nothing proves nothing: bugs planted in the runtime are found within two hundred seeds."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest
from simulated_zoo import ALL_FAULTS, KEEP, Caster, Client, Store, tolerant

import ringcast.actors as rt
from ringcast.actors.async_cell import AsyncCell
from ringcast.actors.async_node import AsyncNode
from ringcast.actors.member import Budget
from ringcast.actors.node import Node
from ringcast.actors.origin import RemoteOrigin
from ringcast.actors.peer import Peer
from ringcast.actors.root_node import RootNode
from ringcast.actors.route import Route
from ringcast.actors.testing import Faults, Probe, Simulation, SimulationFailed, explore


async def restarting_callers(sim: Simulation, system: rt.System) -> None:
    """A store that answers slowly, and callers that die while it does and ask anew."""
    probe = await system.spawn(rt.spec(Probe), name="probe")
    store = await system.spawn(rt.spec(Store), name="store", where=rt.process(), restart=KEEP)
    for name in ("one", "two"):
        await system.spawn(rt.spec(Client, store, probe, 0.1), name=name, where=rt.process(), restart=KEEP)
    sim.faults = Faults(kill=0.005, max_kills=10)
    await probe.until(lambda told: len(told) >= 30)
    sim.faults = Faults()
    assert all(token == answer for token, answer in await probe.told())


async def chatter(sim: Simulation, system: rt.System) -> None:
    """Two processes that keep waking each other, with nothing else to wake them."""
    store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
    for k in range(10):
        assert await store.put("k", k) == k


async def late_ringers(sim: Simulation, system: rt.System) -> None:
    """A third process goes on sending to a dead one, of whose death it hears late."""
    store = await system.spawn(rt.spec(Store), name="store", where=rt.process(), restart=KEEP)
    await system.spawn(rt.spec(Caster, store), name="caster", where=rt.process())
    watch = system.watch(store)
    sim.faults = Faults(delayed_frame=0.5)
    for incarnation in range(1, 6):
        async for event in watch:
            if event == rt.Ready(incarnation):
                break
        await asyncio.sleep(0.02)
        async with rt.deadline(0.1):
            assert await store.put("k", incarnation) == incarnation
        sim.kill("store")


def test_the_scenarios_are_right_when_nothing_is_planted() -> None:
    explore(restarting_callers, range(50))
    explore(chatter, range(50))
    explore(late_ringers, range(50))


def test_a_reader_that_does_not_look_again_after_arming_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(self: AsyncNode) -> None:
        self._turn_scheduled = False
        if not self._running:
            return
        self.flush()
        if self.poll_once():
            self._schedule_turn()
        else:
            self.loop.call_soon(lambda: self._running and self.bell.arm([]))

    monkeypatch.setattr(AsyncNode, "_turn", turn)
    with pytest.raises(SimulationFailed, match="nothing can happen any more|a message was lost"):
        explore(chatter, range(200))


def test_a_lost_doorbell_is_found() -> None:
    with pytest.raises(SimulationFailed, match="nothing can happen any more|a message was lost"):
        explore(chatter, range(200), faults=Faults(lost_doorbell=0.02))


def test_a_bell_whose_word_outlives_its_eventfd_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """This simulator found it: a dead process's bell, rung late, left its successor in the same slot asleep."""
    made: list[int] = []

    def one_each(self: RootNode, slot: int) -> int:
        made.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        return made[-1]

    monkeypatch.setattr(RootNode, "bell_fd", one_each)
    try:
        with pytest.raises((SimulationFailed, rt.DeadlineExceeded)):
            explore(late_ringers, range(200))
    finally:
        for fd in made:
            os.close(fd)


def test_a_reply_delivered_to_the_callers_next_incarnation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_whoever_is_there_now(self: RemoteOrigin, data: bytes) -> None:
        peer: Peer | None = self._node.peers.get(self._peer.slot)
        if peer is not None:
            self._node.send(peer, data)

    monkeypatch.setattr(RemoteOrigin, "_send", to_whoever_is_there_now)
    with pytest.raises(SimulationFailed, match="took an answer that was not given to it"):
        explore(restarting_callers, range(200))


def test_a_message_that_overtakes_the_backlog_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaking(self: Node, mask: int, payload: bytes) -> None:
        if not self.outbox.try_send(payload, mask):
            self._backlog.append((payload, mask))
        self.schedule_flush()

    async def bursts(sim: Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        await store.put("k", 0)  # the way is known
        sim.faults = Faults(full_ring=0.2, delay_s=0.001)
        for number in range(300):
            store.note.cast(f"{number}")
            await asyncio.sleep(0.0001)

    explore(bursts, range(5))
    monkeypatch.setattr(Node, "send_masked", overtaking)
    with pytest.raises(SimulationFailed, match="out of order"):
        explore(bursts, range(20))


def test_a_mailbox_without_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flood(sim: Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        await asyncio.gather(store.work(1), *(store.size(bytes(6000)) for _ in range(400)))

    explore(flood, [1])
    monkeypatch.setattr(Route, "allows", lambda self, size_bytes: True)
    with pytest.raises(SimulationFailed, match="its bound is 1048576"):
        explore(flood, range(200))


def test_restarts_beyond_the_policy_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dying(sim: Simulation, system: rt.System) -> None:
        policy = rt.Restart("permanent", max_restarts=2, within_s=60, backoff_s=0.01)
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process(), restart=policy)
        for _ in range(5):
            await tolerant(store.die("kill"))
            await asyncio.sleep(0.5)

    explore(dying, range(5))
    monkeypatch.setattr(Budget, "spend", lambda self: 1)
    with pytest.raises(SimulationFailed, match="its policy allows 2"):
        explore(dying, range(200))


def test_a_handler_that_runs_after_its_actors_death_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stopping(sim: Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store")
        await store.put("k", 1)
        await system.stop(store)
        cells[-1].put(incoming[-1])
        await asyncio.sleep(1)

    cells: list[AsyncCell] = []
    incoming: list[Any] = []
    put = AsyncCell.put

    def remembering(self: AsyncCell, message: Any) -> None:
        cells.append(self)
        incoming.append(message)
        put(self, message)

    monkeypatch.setattr(AsyncCell, "put", remembering)
    monkeypatch.setattr("ringcast.actors.runner.ActorRunner.stop", _stop_that_forgets_the_mailbox)
    with pytest.raises(SimulationFailed, match="runs in app after the actor's death"):
        explore(stopping, range(200))


async def _stop_that_forgets_the_mailbox(self: Any, reason: str, *, orderly: bool = True) -> object:
    return None


def test_a_call_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(sim: Simulation, system: rt.System) -> None:
        store = await system.spawn(rt.spec(Store), name="store", where=rt.process())
        call = asyncio.ensure_future(store.echo("x", 10.0))
        await asyncio.sleep(1)
        sim.kill("store")
        await asyncio.wait([call], timeout=30)

    explore(forget, range(5))
    monkeypatch.setattr("ringcast.actors.calls.Calls.fail_route", lambda self, route, cause: None)
    with pytest.raises(SimulationFailed, match=r"a call never ended: app: call 1, store\.echo"):
        explore(forget, range(200))


def test_a_failure_names_its_seed_and_the_seed_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "send_masked", _every_message_twice)
    faults = replace(ALL_FAULTS, kill=0.0)  # a killed store would fail the scenario before the planted bug does
    failures = []
    with pytest.raises(SimulationFailed) as caught:
        explore(chatter, range(200), faults=faults)
    failures.append(caught.value)
    with pytest.raises(SimulationFailed) as caught:
        explore(chatter, [failures[0].seed], faults=faults)
    failures.append(caught.value)
    assert str(failures[0]) == str(failures[1])
    assert f"(seed {failures[0].seed})" in str(failures[0])
    assert "the end of the trace" in str(failures[0])


def _every_message_twice(self: Node, mask: int, payload: bytes) -> None:
    for _ in range(2):
        if self._backlog or not self.outbox.try_send(payload, mask):
            self._backlog.append((payload, mask))
    self.schedule_flush()
