"""The books of a simulation: what was sent, received, called, answered and handled, and what must hold of it.

Observers report here. A broken promise becomes a line in ``violations``, on which the world stops.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .trace import START_S

if TYPE_CHECKING:
    from .._native import Incoming
    from ..cell import Cell
    from ..placement import Restart
    from .process import Process
    from .world import World


ActorKey = tuple[int, int]  # system, actor id


class Party(NamedTuple):
    """A process as a member of one system: the app may be in several."""

    process: Process
    system: int

    @property
    def label(self) -> str:
        return self.process.label


@dataclass(frozen=True, slots=True)
class _Message:
    """A message in a ring."""

    checksum: int
    size_bytes: int
    sent_at: float
    text: str


@dataclass(slots=True)
class _Call:
    """A call or stream, from its caller's side."""

    caller: Party
    text: str
    opened_at: float
    is_open: Callable[[], bool]
    is_stream: bool
    answers: int = 0  # ends that its callee gave it
    items: int = 0


@dataclass(slots=True)
class _Mailbox:
    """A cell: one incarnation's mailbox."""

    party: Party
    name: str
    is_dead: bool = False
    serial: int = 0
    waiting: dict[int, tuple[int, Incoming]] = field(default_factory=dict)  # by identity, with their order
    last_taken: dict[object, int] = field(default_factory=dict)  # by origin


@dataclass(slots=True)
class _Life:
    """An actor through its incarnations."""

    name: str
    policy: Restart
    deaths: list[float] = field(default_factory=list)
    died_by_itself: bool = False


class Ledger:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.violations: list[str] = []
        self._world = world
        self._under_way: dict[tuple[Party, Party], deque[_Message]] = {}
        self._calls: dict[tuple[Party, int], _Call] = {}
        self._mailboxes: dict[ActorKey, list[_Mailbox]] = {}
        self._lives: dict[ActorKey, _Life] = {}

    # Rings: what one process sends to another arrives once, in order.

    def sent(self, sender: Party, receiver: Party, data: bytes | memoryview, text: str) -> None:
        message = _Message(zlib.crc32(data), len(data), self._world.now, text)
        self._under_way.setdefault((sender, receiver), deque()).append(message)

    def received(self, sender: Party, receiver: Party, data: bytes | memoryview, text: str) -> None:
        queue = self._under_way.get((sender, receiver))
        if not queue:
            what = "what was not sent, or was received before"
            self._violated(f"{receiver.label} received from {sender.label} {what}: {text}")
            return
        expected = queue.popleft()
        if (expected.checksum, expected.size_bytes) != (zlib.crc32(data), len(data)):
            self._violated(
                f"{receiver.label} received from {sender.label} out of order: {text}, while {expected.text} was next"
            )

    # Calls: each ends once, with what its callee answered to it.

    def opened(self, caller: Party, call_id: int, text: str, is_open: Callable[[], bool], is_stream: bool) -> None:
        call = self._calls.get((caller, call_id))
        if call is not None:
            call.text = text  # it is better known now
            return
        self._calls[caller, call_id] = _Call(caller, text, self._world.now, is_open, is_stream)

    def forgotten(self, caller: Party, call_id: int) -> None:
        """Its caller does not want the answer any more, and leaves it open."""
        self._calls[caller, call_id].is_open = lambda: False

    def answered(self, caller: Party, call_id: int, by: str) -> None:
        call = self._calls.get((caller, call_id))
        if call is None:
            self._violated(f"{by} answered call {call_id} of {caller.label}, which never made it")
            return
        call.answers += 1
        if call.answers > 1:
            self._violated(f"{by} answered call {call_id} ({call.text}) of {caller.label} {call.answers} times")

    def produced(self, caller: Party, call_id: int, count: int) -> None:
        call = self._calls.get((caller, call_id))
        if call is not None:
            call.items += count

    def accepted(self, caller: Party, call_id: int) -> None:
        """An answer is about to end a call that is open."""
        call = self._calls[caller, call_id]
        if call.answers == 0:
            self._violated(
                f"call {call_id} ({call.text}) of {caller.label} took an answer that was not given to it: "
                "a late one, meant for an earlier incarnation or an earlier call"
            )

    def took_items(self, caller: Party, call_id: int, count: int) -> None:
        """Items are about to be given to a stream that is open."""
        call = self._calls[caller, call_id]
        call.items -= count
        if call.items < 0:
            self._violated(f"stream {call_id} ({call.text}) of {caller.label} took items that were not sent to it")

    def open_calls(self) -> list[str]:
        """The calls of living processes that have not ended, in words."""
        found = []
        for (caller, call_id), call in self._calls.items():
            if call.is_open() and not caller.process.has_ended:
                state = "answered" if call.answers else "not answered"
                age_s = self._world.now - call.opened_at
                found.append(f"{caller.label}: call {call_id}, {call.text}, {state}, open for {age_s:.6f} s")
        return found

    # Mailboxes: bounded, in order, and silent after death.

    def cell_made(self, party: Party, cell: Cell) -> _Mailbox:
        mailbox = _Mailbox(party, cell.name)
        self._mailboxes.setdefault((party.system, cell.actor_id), []).append(mailbox)
        return mailbox

    def put(self, mailbox: _Mailbox, incoming: Incoming, capacity_bytes: int) -> None:
        mailbox.serial += 1
        mailbox.waiting[id(incoming)] = (mailbox.serial, incoming)
        held = sum(i.size_bytes for _, i in mailbox.waiting.values() if i.origin == incoming.origin)
        # Below a quarter of the bound one message of any size is let in: see `Route.allows`.
        limit = max(capacity_bytes, capacity_bytes // 4 + incoming.size_bytes)
        if held > limit:
            self._violated(f"mailbox of {mailbox.name} holds {held} bytes of one sender: its bound is {capacity_bytes}")

    def left(self, mailbox: _Mailbox, incoming: Incoming) -> None:
        """A message was dropped."""
        mailbox.waiting.pop(id(incoming), None)

    def handled(self, mailbox: _Mailbox, incoming: Incoming, *, waits: bool = True) -> None:
        """A handler is about to run; one that ``waits`` for its turn must have had no later message before it."""
        serial, _ = mailbox.waiting.pop(id(incoming), (0, None))
        if waits:
            if serial < mailbox.last_taken.get(incoming.origin, 0):
                self._violated(f"{mailbox.name}.{incoming.method} runs before a message that came earlier")
            mailbox.last_taken[incoming.origin] = serial
        if mailbox.is_dead:
            self._violated(f"{mailbox.name}.{incoming.method} runs in {mailbox.party.label} after the actor's death")

    # Lives: restarts within intensity.

    def entered(self, actor: ActorKey, name: str, policy: Restart) -> None:
        self._lives[actor] = _Life(name, policy)

    def died(self, actor: ActorKey, *, by_itself: bool) -> None:
        """An incarnation is gone, as watchers are told."""
        for mailbox in self._mailboxes.get(actor, []):
            mailbox.is_dead = True
        life = self._lives[actor]
        life.died_by_itself = by_itself
        if by_itself:
            life.deaths.append(self._world.now)

    def ready(self, actor: ActorKey) -> None:
        """An incarnation is up, as watchers are told."""
        life = self._lives[actor]
        if not life.died_by_itself:
            return
        life.died_by_itself = False
        policy = life.policy
        last = life.deaths[-1]
        within = [at for at in life.deaths if at >= last - policy.within_s]
        if len(within) > policy.max_restarts:
            self._violated(
                f"{life.name} was restarted after {len(within)} deaths within {policy.within_s:g} s: "
                f"its policy allows {policy.max_restarts}"
            )
        if policy.kind == "temporary":
            self._violated(f"{life.name} was restarted, but it is temporary")

    # At rest.

    def check_rest(self, *, is_at_rest: bool, patience_s: float) -> None:
        """Nothing is under way any more: every message has arrived, every answer has ended its call."""
        oldest = self._world.now if is_at_rest else self._world.now - patience_s
        for (sender, receiver), queue in self._under_way.items():
            if not queue or sender.process.has_ended or receiver.process.has_ended:
                continue
            if receiver.process.frozen_until > self._world.now:
                continue
            first = queue[0]
            if first.sent_at <= oldest:
                self._violated(
                    f"a message was lost: {first.text} from {sender.label} to {receiver.label}, sent at "
                    f"{first.sent_at - START_S:.6f}, has not been received"
                )
        for (caller, call_id), call in self._calls.items():
            if call.answers and call.is_open() and is_at_rest and not (caller.process.has_ended or call.is_stream):
                self._violated(f"call {call_id} ({call.text}) of {caller.label} was answered and has not ended")

    def check_end(self, app: Process) -> None:
        """The system has stopped: no call is open, no process is left."""
        for text in self.open_calls():
            self._violated(f"a call never ended: {text}")
        for process in self._world.running:
            if process is not app:
                self._violated(f"{process.label} outlived its system")

    def _violated(self, what: str) -> None:
        self.violations.append(what)
