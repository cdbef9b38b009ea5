"""What a message in a ring is, for traces: its kind and the numbers that name it, without decoding the rest."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgpack

from ringcast.channels import DecodeError
from ringcast.channels.codec import message_proper

from ..ref import number_of
from ..wire import Envelope

HEAD_BYTES = 512  # enough for what is named here; actor ids of a very large group may not fit


class Head(NamedTuple):
    """The beginning of an envelope. ``kind`` is None if it is none."""

    kind: Envelope | None
    first: object = None  # actor id(s), or the call id of an answer
    second: object = None  # call id, or the method of a cast
    third: object = None  # method of a call


_FIELDS = {
    Envelope.CALL: 3,
    Envelope.OPEN: 3,
    Envelope.CAST: 2,
    Envelope.CANCEL: 2,
    Envelope.MORE: 3,
    Envelope.CREDIT: 2,
}


def head_of(data: bytes | memoryview) -> Head:
    """The beginning of an envelope."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    try:
        unpacker.feed(message_proper(data)[:HEAD_BYTES])
        unpacker.read_array_header()
        kind = Envelope(unpacker.unpack())
        return Head(kind, *(unpacker.unpack() for _ in range(_FIELDS.get(kind, 1))))
    except (DecodeError, ValueError, TypeError, msgpack.UnpackException):
        return Head(None)


def describe(data: bytes | memoryview) -> str:
    """In words, with size and checksum: equal texts mean equal messages."""
    head = head_of(data)
    size = f"({len(data)} B, {zlib.crc32(data):08x})"
    match head.kind:
        case None:
            return f"something undecodable {size}"
        case Envelope.CALL | Envelope.OPEN:
            return f"{head.kind.name} {head.second} of {_number(head.first)}.{head.third} {size}"
        case Envelope.CAST:
            return f"CAST to {_number(head.first)}.{head.second} {size}"
        case Envelope.REPLY | Envelope.FAILURE | Envelope.ITEMS:
            return f"{head.kind.name} to call {head.first} {size}"
        case Envelope.CANCEL | Envelope.MORE:
            return f"{head.kind.name} of call {head.second} {size}"
        case _:
            return f"{head.kind.name} {_number(head.first)} {size}"


def _number(actor_id: object) -> str:
    """The actor, or the actors, of an envelope."""
    if isinstance(actor_id, list):
        return ", ".join(_number(one) for one in actor_id)
    return f"#{number_of(actor_id)}" if isinstance(actor_id, int) else str(actor_id)
