"""What travels between nodes: envelopes in the rings, frames on the links. Numbers and small constructors only.

Envelopes (msgpack arrays, first element is the kind; context is a packed CallContext):
    CALL    actor_id, call_id, method, args, kwargs, context
    CAST    actor_id, method, args, kwargs
    REPLY   call_id, value                      ends a call or a stream
    FAILURE call_id, failure kind, name, type name, text, traceback
    CANCEL  actor_id, call_id                   of a call or a stream
    CREDIT  actor_id, bytes                     taken from the mailbox
    OPEN    actor_id, call_id, method, args, kwargs, context
    ITEMS   call_id, items, window              of a stream
    MORE    actor_id, call_id, count            items that the reader has consumed
    GROUP   actor_ids, first call_id or None, reply_from or None, method, args, kwargs, context
Frames between any two processes: ATTACH. From the root: BOOT, CONNECT, ROUTE, DIED, EVENT, STOP, ASK_STATISTICS,
PROMOTE, OWNED.
To the root: READY, START_FAILED, PHASE, RESOLVE, WATCH, UNWATCH, SPAWN, STOP_OWNED, GIVE_UP_SPAWN, CRASHED, STOPPED,
STATISTICS, LEFT.
"""

from __future__ import annotations

from enum import IntEnum

from ringcast.channels import EncodeError


class Envelope(IntEnum):
    """Kinds of ring messages between nodes."""

    CALL = 0
    CAST = 1
    REPLY = 2
    FAILURE = 3
    CANCEL = 4
    CREDIT = 5
    OPEN = 6
    ITEMS = 7
    MORE = 8
    GROUP = 9


class FailureKind(IntEnum):
    """Why a call failed on the callee's side."""

    RAISED = 0  # the handler raised
    CANCELLED = 1  # the handler was cancelled
    GONE = 2  # the actor is not here
    DEADLINE = 3  # the caller's deadline passed on this side
    CYCLE = 4  # the call would wait for itself


class FrameKind(IntEnum):
    """Kinds of link frames; channels keeps the kinds below 32 for itself."""

    ATTACH = 32  # reader slot, join position, epoch of the sender's ring
    BOOT = 33
    CONNECT = 34  # slot, name; fds: ring, bell, link
    ROUTE = 35  # actor_id, name, slot, capacity, stall_after_s, cause (None: it is up)
    DIED = 36  # slot, cause
    EVENT = 37  # watch number, event
    STOP = 38  # reason
    ASK_STATISTICS = 39
    PROMOTE = 40  # hand-off: a spare becomes the actor
    OWNED = 41  # answer to SPAWN and STOP_OWNED: number, (actor_id, name) or None, name, cause, text
    READY = 48
    START_FAILED = 49  # traceback
    PHASE = 50  # name, stall_after_s
    RESOLVE = 51  # actor_id
    WATCH = 52  # watch number, actor_id
    CRASHED = 53  # traceback
    STOPPED = 54  # hand-off
    SUSPECT = 56  # actor_id, progress: it looks stalled
    STATISTICS = 55  # NodeStatistics
    UNWATCH = 57  # watch number
    SPAWN = 58  # number, parcel, name, process, restart: an actor to be owned by this one
    STOP_OWNED = 59  # number, actor_id, reason, timeout_s
    GIVE_UP_SPAWN = 60  # number
    LEFT = 99  # a connected program has let go of the rings: name_door.LEAVE


def name_argument(error: EncodeError, method: str, position: int) -> None:
    """Say which argument of a call could not travel; ``position``: of the arguments in the envelope."""
    envelope, argument, *rest = (*error.path, "", "")
    if envelope == f"[{position}]" and argument:
        error.path = (f"argument {int(argument[1:-1]) + 1} of {method}, ", *rest[:-2])
    elif envelope == f"[{position + 1}]" and argument:
        error.path = (f"argument {argument[1:-1]} of {method}, ", *rest[:-2])


def name_part(error: EncodeError, depth: int) -> None:
    """Leave the envelope's own parts out of the path to what could not travel."""
    error.path = error.path[depth:]
