"""The probe, in a real system and in a simulated one."""

from __future__ import annotations

import pytest
from simulated_zoo import Client, Store

import ringcast.actors as rt
from ringcast.actors.testing import Probe, Simulation

pytestmark = pytest.mark.usefixtures("leak_oracle")


async def probe_a_client(system: rt.System) -> list[object]:
    probe = await system.spawn(rt.spec(Probe))
    store = await system.spawn(rt.spec(Store))
    await system.spawn(rt.spec(Client, store, probe, 0.001))
    told = await probe.until(lambda told: len(told) >= 4)
    assert told == (await probe.told())[: len(told)]
    return told


async def test_a_probe_waits_in_a_real_system() -> None:
    async with rt.deadline(10), rt.System() as system:
        told = await probe_a_client(system)
    assert ["1/2", "1/2"] in told


def test_a_probe_waits_in_a_simulated_system() -> None:
    with Simulation(3) as sim:
        told = sim.run(probe_a_client)
    assert ["1/2", "1/2"] in told


async def test_waiting_for_a_probe_can_be_given_up() -> None:
    async with rt.System() as system:
        probe = await system.spawn(rt.spec(Probe))
        with pytest.raises(rt.DeadlineExceeded):
            async with rt.deadline(0.02):
                await probe.until(lambda told: False)
        await probe.tell(1)
        assert await probe.until(bool) == [1]
