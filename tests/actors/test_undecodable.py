"""Messages that do not decode: each ends its own call, however it was encoded, and everything else goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from actor_zoo import Counter

import ringcast.actors as rt
from ringcast.actors.node import Node
from ringcast.actors.ref import Ref, pack_ref, unpack_ref
from ringcast.actors.wire import Envelope
from ringcast.channels import message

LARGE = 8192  # bytes: such a buffer lies behind the message proper


@message(117)
@dataclass
class Unknown:
    """Not registered in the process of the actor, which does not import this module."""

    data: bytes


@pytest.fixture
async def system() -> AsyncIterator[rt.System]:
    async with rt.System() as system:
        yield system


def put_into_ring(actor: Any, kind: int, *rest: object) -> None:
    """Send an envelope to the actor's process, its large buffers behind it."""
    node = actor._sender
    parts = node.codec.encode_parts((int(kind), *rest))
    assert len(parts) > 1
    (peer,) = node.peers.values()
    assert node.outbox.try_send(parts, peer.mask)
    node.flush()


@pytest.mark.parametrize("size", [1, LARGE])
async def test_a_call_that_does_not_decode_there_ends_with_the_error(system: rt.System, size: int) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    with pytest.raises(rt.RemoteError, match="unknown message tag 117"):
        await counter.echo(Unknown(b"x" * size))
    assert await counter.add(1) == 1
    assert (await system.statistics())["Counter-1"].undecodable == 1


@pytest.mark.parametrize("kind", [Envelope.CALL, Envelope.GROUP])
async def test_a_call_with_buffers_behind_it_that_does_not_decode_ends_with_the_error(
    system: rt.System, kind: Envelope
) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    ref: Any = counter
    node: Node = ref._sender
    await counter.add(0)  # the way is known
    future = node.calls._new_future()
    node.calls._pending[future.call_id] = (future, node.routes[ref._actor_id])
    arguments = ("echo", (Unknown(b"x" * LARGE),), {}, None)
    if kind is Envelope.CALL:
        put_into_ring(ref, kind, ref._actor_id, future.call_id, *arguments)
    else:
        put_into_ring(ref, kind, [ref._actor_id + 1, ref._actor_id], future.call_id - 1, None, *arguments)
    with pytest.raises(rt.RemoteError, match="unknown message tag 117"):
        await future
    assert await counter.add(1) == 1


async def test_what_is_no_envelope_is_counted_and_disturbs_nobody(system: rt.System) -> None:
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    ref: Any = counter
    (peer,) = ref._sender.peers.values()
    damaged = b"".join(ref._sender.codec.encode_parts((0, b"x" * LARGE)))[:6]
    for junk in (b"\xc1", b"\xc1\x01\xff\xff\x00", damaged, b"\x93\x00", b"\x00", b"\x92\xa1x\xa1y", b"\x91\x90", b""):
        assert ref._sender.outbox.try_send(junk, peer.mask)
    ref._sender.flush()
    assert await counter.add(1) == 1
    assert (await system.statistics())["Counter-1"].undecodable == 8


@pytest.mark.parametrize(
    "wrong",
    [
        (2**63, 1, 2),
        (Envelope.CALL, "ID", 99, ["echo"], [], {}, None),
        (Envelope.CALL, "ID", 99, "echo", 5, {}, None),
        (Envelope.CALL, "ID", 99, "echo", [], [], None),
        (Envelope.CALL, "ID", {}, "echo", [], {}, None),
        (Envelope.CALL, [], 99, "echo", [], {}, None),
        (Envelope.CALL, "ID", 99, "echo", [], {}, ["soon", [], None, False]),
        (Envelope.CALL, "ID", 99, "echo", [], {}, [None, ["first"], None, False]),
        (Envelope.CALL, "ID", 99, "echo", [], {}, [None, [], 7, False]),
        (Envelope.CALL, "ID", 99, "echo", [], {}),
        (Envelope.OPEN, "ID", None, "echo", [], {}, None),
        (Envelope.CAST, "ID", "echo", [], {}, 6),
        (Envelope.CAST, "ID", b"echo", [], {}),
        (Envelope.GROUP, 5, 99, None, "echo", [], {}, None),
        (Envelope.GROUP, [{}], 99, None, "echo", [], {}, None),
        (Envelope.GROUP, ["ID"], [], None, "echo", [], {}, None),
        (Envelope.REPLY, {}, 1),
        (Envelope.REPLY, 1),
    ],
    ids=lambda wrong: str(wrong)[:60],
)
async def test_an_envelope_of_wrong_parts_gets_into_no_mailbox(system: rt.System, wrong: tuple[Any, ...]) -> None:
    """In a mailbox it would end the actor, or whoever waits behind it."""
    counter = await system.spawn(rt.spec(Counter, 0), where=rt.process())
    ref: Any = counter
    (peer,) = ref._sender.peers.values()

    def real(part: object) -> object:
        return ref._actor_id if part == "ID" else [real(item) for item in part] if isinstance(part, list) else part

    ref._sender.send(peer, ref._sender.codec.encode([int(wrong[0]), *(real(part) for part in wrong[1:])]))
    assert await counter.add(1) == 1
    assert (await system.statistics())["Counter-1"].undecodable == 1


@pytest.mark.parametrize("data", [b"", b"\x01\x00\x00", b"\x01\x00\x00\x00\x00\x00\x00\x00\xff"])
def test_bytes_that_are_no_reference_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a reference of|utf-8"):
        unpack_ref(data, None)


@pytest.mark.parametrize("name", ["", "a", "ключ 鍵", "x" * 10_000])
def test_a_reference_is_the_same_on_the_other_side(name: str) -> None:
    ref = unpack_ref(pack_ref(Ref(2**40, name, None)), None)
    assert (ref._actor_id, ref._name) == (2**40, name)
