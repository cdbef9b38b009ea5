"""Promises of rings on a loop: nothing lost, nobody starved, sends in order, idle without a single wake-up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
import uvloop
from channel_kit import EPOCH, WRITER_BELL

from ringcast.channels import ChannelError, EndOfRing, PeerDead, RingFull
from ringcast.channels.aio import Port
from ringcast.channels.overflow import STREAM_LIMIT_BYTES

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
uvloop.new_event_loop().close()  # the first one opens a pipe for the whole process


def on_both_loops(test):
    """Run an async test with these two fixtures on each kind of loop."""

    @pytest.mark.parametrize("loop", LOOPS)
    def run(lane, bells, loop):
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(test(lane, bells))

    run.__name__ = test.__name__
    return run


async def some(inbox, count):
    return [(await inbox.read()).payload for _ in range(count)]


@on_both_loops
async def test_reader_sleeps_until_it_is_rung_and_reads_in_order(lane, bells):
    x = lane()
    async with Port(bells[0]) as port:
        inbox = port.receive_from(x.inboxes[0])
        task = asyncio.create_task(some(inbox, 3))
        await asyncio.sleep(0.02)
        assert bells[0].state == 1  # armed
        x.outbox.send_many([b"a", b"b", b"c"], 1)
        assert x.outbox.flush() == 1
        assert await task == [b"a", b"b", b"c"]


@on_both_loops
async def test_iteration_takes_every_kind_of_message_and_ends_with_the_ring(lane, bells):
    x = lane(policy="spill")
    sent = [b"%d" % i * (600 if i % 40 == 5 else STREAM_LIMIT_BYTES if i == 50 else 3) for i in range(300)]
    async with Port(bells[0]) as port, Port(bells[WRITER_BELL]) as writing:
        inbox, outbox = port.receive_from(x.inboxes[0]), writing.send_through(x.outbox)

        async def write():
            for message in sent:
                await outbox.send(message, 1)
            x.outbox.close()

        task = asyncio.create_task(write())
        assert [bytes(m.payload) async for m in inbox] == sent
        await task
        with pytest.raises(EndOfRing, match=f"epoch {EPOCH}"):
            await inbox.read()


@on_both_loops
async def test_peer_dead_is_raised_after_draining(lane, bells):
    x = lane()
    x.outbox.send_many([b"a", b"b"], 1)
    frames = []
    async with Port(bells[0]) as port:
        inbox = port.receive_from(x.inboxes[0], frames.append)
        assert await some(inbox, 2) == [b"a", b"b"]
        task = asyncio.create_task(inbox.read())
        await asyncio.sleep(0)
        x.links[0].send(40, 1, b"owner's")
        x.links[0].close()
        with pytest.raises(PeerDead):
            await task
    assert [f.payload for f in frames] == [b"owner's"]


@on_both_loops
async def test_cancelled_read_loses_nothing(lane, bells):
    x = lane()
    async with Port(bells[0]) as port:
        inbox = port.receive_from(x.inboxes[0])
        for i in range(20):
            task = asyncio.create_task(inbox.read())
            await asyncio.sleep(0)
            x.outbox.try_send(b"%d" % i, 1)
            x.outbox.flush()
            await asyncio.sleep(0)
            task.cancel()
            try:
                assert (await task).payload == b"%d" % i
            except asyncio.CancelledError:
                assert (await inbox.read()).payload == b"%d" % i


@on_both_loops
async def test_two_tasks_may_not_read_one_inbox(lane, bells):
    x = lane()
    async with Port(bells[0]) as port:
        inbox = port.receive_from(x.inboxes[0])
        task = asyncio.create_task(inbox.read())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one at a time"):
            await inbox.read()
        task.cancel()


@on_both_loops
async def test_hot_stream_does_not_starve_the_loop(lane, bells):
    x = lane(capacity=1 << 20)
    x.outbox.send_many([b"x"] * 5000, 1)
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Port(bells[0], batch=50) as port:
        inbox = port.receive_from(x.inboxes[0])
        counter = asyncio.create_task(count_turns())
        assert len(await some(inbox, 5000)) == 5000
        counter.cancel()
    assert turns >= 5000 // 50 - 1


@on_both_loops
async def test_unread_messages_stay_in_the_ring_and_hold_the_writer_back(lane, bells):
    x = lane(capacity=1 << 16)
    async with Port(bells[0], batch=16) as port:
        inbox = port.receive_from(x.inboxes[0])
        x.outbox.send_many([b"x"] * 1000, 1)
        x.outbox.flush()
        await asyncio.sleep(0.02)
        assert x.outbox.ring.lag(0) == (1000 - 16) * 64
        assert bells[0].state == 1  # asleep although there is more: nobody wants it
        assert len(await some(inbox, 1000)) == 1000


@on_both_loops
async def test_several_rings_share_one_bell(lane, bells):
    lanes = [lane() for _ in range(3)]
    async with Port(bells[0]) as port:
        inboxes = [port.receive_from(x.inboxes[0]) for x in lanes]
        tasks = [asyncio.create_task(some(inbox, 50)) for inbox in inboxes]
        for i in range(50):
            for k, x in enumerate(lanes):
                assert x.outbox.try_send(b"%d.%d" % (k, i), 1)
                x.outbox.flush()
            await asyncio.sleep(0)
        assert await asyncio.gather(*tasks) == [[b"%d.%d" % (k, i) for i in range(50)] for k in range(3)]


@on_both_loops
async def test_send_waits_for_space_in_the_order_of_the_calls(lane, bells):
    x = lane(capacity=1024)
    async with Port(bells[WRITER_BELL]) as port:
        outbox = port.send_through(x.outbox)
        tasks = [asyncio.create_task(outbox.send(b"%d" % i, 1)) for i in range(40)]
        await asyncio.sleep(0.02)
        assert [task.done() for task in tasks] == [True] * 16 + [False] * 24
        assert not outbox.try_send(b"out of turn", 1)
        assert bells[WRITER_BELL].state == 1
        tasks[20].cancel()
        seen = []
        while len(seen) < 39:
            seen += [m.payload for m in x.inboxes[0].poll()]
            await asyncio.sleep(0.001)
        assert seen == [b"%d" % i for i in range(40) if i != 20]


@on_both_loops
async def test_failures_of_a_waiting_send_are_its_own(lane, bells):
    x = lane(readers=2, capacity=1024)
    async with Port(bells[WRITER_BELL]) as port:
        outbox = port.send_through(x.outbox)
        while outbox.try_send(b"", 0b11):
            x.read(0)
        first = asyncio.create_task(outbox.send(b"refused", 0b11))
        await asyncio.sleep(0.01)
        x.outbox.set_policy(1, "reject")
        port._schedule()
        with pytest.raises(RingFull, match="slot 1"):
            await first
        x.outbox.set_policy(1, "wait")
        wrong = asyncio.create_task(outbox.send("text", 0b01))
        with pytest.raises(TypeError):
            await wrong


@on_both_loops
async def test_leaving_the_port_ends_what_waits(lane, bells):
    x = lane(capacity=1024)
    async with Port(bells[WRITER_BELL]) as port:
        outbox, inbox = port.send_through(x.outbox), port.receive_from(lane().inboxes[0])
        while outbox.try_send(b"", 1):
            pass
        tasks = [asyncio.create_task(outbox.send(b"never", 1)), asyncio.create_task(inbox.read())]
        await asyncio.sleep(0.01)
    for task in tasks:
        with pytest.raises(ChannelError, match="port was closed"):
            await task
    x.inboxes[0].poll()
    assert x.read(0) == []


@on_both_loops
async def test_idle_port_is_never_woken(lane, bells):
    x = lane()
    async with Port(bells[0]) as port:
        inbox = port.receive_from(x.inboxes[0])
        task = asyncio.create_task(inbox.read())
        await asyncio.sleep(0.05)
        calls = []
        drain = port._drain
        port._drain = lambda: calls.append(drain())
        before = bells[0].statistics()
        await asyncio.sleep(0.5)
        assert calls == [] and bells[0].statistics() == before and bells[0].state == 1
        x.outbox.try_send(b"x", 1)
        x.outbox.flush()
        assert (await task).payload == b"x"


@on_both_loops
async def test_hot_traffic_is_polled_for_and_takes_no_system_call_for_waking(lane, bells):
    x = lane(capacity=1 << 16)
    if not bells[0].may_spin():
        pytest.skip("one core: polling is off")
    async with Port(bells[0], hot_s=10.0) as port:
        inbox = port.receive_from(x.inboxes[0])
        task = asyncio.create_task(some(inbox, 200))
        for i in range(200):
            x.outbox.try_send(b"%d" % i, 1)
            x.outbox.flush()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert await task == [b"%d" % i for i in range(200)]
        assert x.outbox.statistics().wakes_sent <= 1


def test_channels_import_no_asyncio_but_for_this_module():
    code = "import sys, ringcast.channels; a = 'asyncio' in sys.modules; import ringcast.channels.aio; print(a)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=os.environ).strip() == "False"
