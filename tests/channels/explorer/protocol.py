"""Ring and doorbell as step machines, line for line after docs/channels.md sections 2 and 3.

`Rules` are the lines that a mutation may take away. A record is one cell whose value is its position plus one; the
writer of a ring is called like the ring, and a process has one bell and one eventfd called like the process.
"""

from __future__ import annotations

from dataclasses import dataclass

from .machine import (
    AwaitDeath,
    Body,
    Fence,
    Load,
    Order,
    Program,
    Receive,
    Ring,
    Send,
    Sleep,
    Store,
    Swap,
    Take,
    Violated,
)

AWAKE, ARMED, RINGING = 0, 1, 2
WORD = 4  # a bell word is state + WORD * number of the arming, so that a late ringer meets only its own arming
DIED = "died"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the protocol does. Each field is one line of it that can be taken away."""

    flush_fence: bool = True  # F1
    arm_fence: bool = True  # S2
    release_fence: bool = True  # R4
    full_fence: bool = True  # X2
    head_release: Order = Order.RELEASE  # P1, in W4
    head_acquire: Order = Order.ACQUIRE  # A2, in R1
    cursor_release: Order = Order.RELEASE  # P2, in R3
    cursor_acquire: Order = Order.ACQUIRE  # A1, in W1 and X3
    word_before_call: bool = True  # B2 before B3
    word_after_call: str = "as it is then"  # if not: which arming is meant, or "as seen before"
    ringing_rings: bool = True  # B2: RINGING keeps nobody else from ringing
    numbered: bool = True  # B4 touches only the arming that B1 saw
    looks_after_arming: bool = True  # S3 after S1
    awake_before_take: bool = True  # S6 before S7
    rings_laggards: bool = True  # X4 rings readers that the record is not for
    announces_first: bool = True  # X1 before X3
    drains_while_waiting: bool = True
    notifies_survivors: bool = True  # the supervisor, on every death
    awaits_proof: bool = True  # evicts on proof of death only
    fills_before_head: bool = True  # W3 before W4
    admits_first: bool = True  # the cursor of a late reader is set before the next record
    close_release: Order = Order.RELEASE  # of the state word


@dataclass(frozen=True, slots=True)
class Channel:
    """A ring: who writes it, who reads it, how many records it holds."""

    writer: str
    readers: tuple[str, ...]
    capacity: int

    @property
    def head(self) -> str:
        return f"head.{self.writer}"

    @property
    def space_wanted(self) -> str:
        return f"space_wanted.{self.writer}"

    def word(self, reader: str) -> str:
        return f"cursor.{self.writer}.{reader}"

    def cell(self, position: int) -> str:
        return f"cell.{self.writer}.{position % self.capacity}"

    def cells(self) -> list[str]:
        return [self.cell(i) for i in range(self.capacity)]


def bell(process: str) -> str:
    return f"bell.{process}"


def link(sender: str, receiver: str) -> str:
    return f"{sender}>{receiver}"


# ---- the doorbell ----


def ring_bell(rules: Rules, process: str) -> Body:
    """B1 to B4."""
    seen = yield Load(bell(process))
    if seen % WORD == AWAKE:
        return
    arming = seen - seen % WORD
    if not rules.word_before_call:
        yield Ring(process)
        if rules.word_after_call == "as it is then":
            seen = yield Load(bell(process))
            arming = seen - seen % WORD
        yield Swap(bell(process), arming + ARMED, arming + RINGING, Order.ACQ_REL)
        yield Swap(bell(process), arming + RINGING, arming + AWAKE)
        return
    if seen % WORD == ARMED:
        found = yield Swap(bell(process), arming + ARMED, arming + RINGING, Order.ACQ_REL)
        if found % WORD == AWAKE:
            return
        arming = found - found % WORD
    elif not rules.ringing_rings:
        return
    yield Ring(process)
    yield Swap(bell(process), arming + RINGING, arming + AWAKE)


def disarm(rules: Rules, me: str, arming: int) -> Body:
    """S6 and S7."""
    if rules.awake_before_take:
        yield Store(bell(me), arming + AWAKE)
        yield Take(me)
    else:
        yield Take(me)
        yield Store(bell(me), arming + AWAKE)


def arm(rules: Rules, me: str, arming: int) -> Body:
    """S1 and S2."""
    yield Store(bell(me), arming + ARMED)
    if rules.arm_fence:
        yield Fence()


# ---- the two ends of a ring ----


def poll(rules: Rules, channel: Channel, me: str, cursor: int, limit: int = 9) -> Body:
    """R1 to R5: the cursor afterwards."""
    head = yield Load(channel.head, rules.head_acquire)
    end = min(head, cursor + limit)
    if end == cursor:
        return cursor
    if head - cursor > channel.capacity:
        raise Violated(f"{head - cursor} records in a ring of {channel.capacity}")
    at = cursor
    while at < end:
        value = yield Load(channel.cell(at), Order.PLAIN)
        if value != at + 1:
            raise Violated(f"record {at} reads as {value - 1}: a gap, a double or torn bytes")
        at += 1
    note = (f"consumed.{channel.writer}.{me}", end)
    found = yield Swap(channel.word(me), cursor, end, rules.cursor_release, note=note)
    if found != cursor:
        raise Violated(f"the cursor word is {found}, not {cursor}: it was changed under its reader")
    del found, note
    if rules.release_fence:
        yield Fence()
    wanted = yield Load(channel.space_wanted)
    if wanted and end >= wanted:
        yield from ring_bell(rules, channel.writer)
    return end


def slowest(rules: Rules, channel: Channel, readers: tuple[str, ...], position: int) -> Body:
    """The minimum of the readers' cursors; the position if there are none."""
    lowest = position
    for reader in readers:
        cursor = yield Load(channel.word(reader), rules.cursor_acquire)
        lowest = min(lowest, cursor)
    return lowest


def make_room(
    rules: Rules, channel: Channel, readers: tuple[str, ...], position: int, lowest: int, addressed: tuple[str, ...]
) -> Body:
    """W1, and X1 to X4 if the ring is full: (there is room, lowest cursor, position awaited or 0)."""
    if position + 1 - lowest <= channel.capacity:
        return True, lowest, 0
    lowest = yield from slowest(rules, channel, readers, position)
    if position + 1 - lowest <= channel.capacity:
        return True, lowest, 0
    required = position + 1 - channel.capacity
    wanted = min(required + channel.capacity // 4, position)
    if rules.announces_first:
        yield Store(channel.space_wanted, wanted)
    if rules.full_fence:
        yield Fence()
    lowest = yield from slowest(rules, channel, readers, position)
    if lowest >= required:
        yield Store(channel.space_wanted, 0)
        return True, lowest, 0
    if not rules.announces_first:
        yield Store(channel.space_wanted, wanted)
    for reader in readers:
        cursor = yield Load(channel.word(reader))
        if cursor < wanted and (rules.rings_laggards or reader in addressed):
            yield from ring_bell(rules, reader)
    return False, lowest, wanted


def publish(rules: Rules, channel: Channel, position: int) -> Body:
    """W3 and W4."""
    note = (f"published.{channel.writer}", position + 1)
    if rules.fills_before_head:
        yield Store(channel.cell(position), position + 1, Order.PLAIN)
        yield Store(channel.head, position + 1, rules.head_release, note=note)
    else:
        yield Store(channel.head, position + 1, rules.head_release, note=note)
        yield Store(channel.cell(position), position + 1, Order.PLAIN)


def flush(rules: Rules, addressed: tuple[str, ...]) -> Body:
    """F1 and F2."""
    if rules.flush_fence:
        yield Fence()
    for reader in addressed:
        yield from ring_bell(rules, reader)


# ---- whole processes ----


@dataclass(frozen=True, slots=True)
class Role:
    """What a process does: it reads every inbound ring to its end and sends a record for each of ``addressed``."""

    me: str
    inbound: tuple[tuple[Channel, int], ...] = ()  # rings, and how many records come
    outbound: Channel | None = None
    addressed: tuple[tuple[str, ...], ...] = ()  # per record, the readers that flush rings
    flush_every: int = 1
    obituaries: str | None = (
        None  # the link on which the supervisor reports a death: of a writer, or of a reader to evict
    )
    optional: tuple[str, ...] = ()  # writers whose records may come or not


def process(rules: Rules, role: Role) -> Program:
    """Poll, send, and sleep on the own bell while there is neither a record nor space."""
    cursors = (0,) * len(role.inbound)
    sent, lowest, wanted, arming = 0, 0, 0, 0
    readers = role.outbound.readers if role.outbound else ()
    dead: tuple[str, ...] = ()
    while True:
        idle = True
        if role.obituaries is not None and not dead:
            news = yield Receive(role.obituaries)
            if news is not None:
                dead, idle = (news,), False
                readers = tuple(reader for reader in readers if reader != news)
        all_sent = sent == len(role.addressed)
        if rules.drains_while_waiting or all_sent:
            after = yield from poll_all(rules, role, cursors)
            idle, cursors = idle and after == cursors, after
        if role.outbound is not None and sent < len(role.addressed):
            rung = role.addressed[sent]
            room, lowest, wanted = yield from make_room(rules, role.outbound, readers, sent, lowest, rung)
            if room:
                yield from publish(rules, role.outbound, sent)
                sent, idle = sent + 1, False
                if sent % role.flush_every == 0 or sent == len(role.addressed):
                    yield from flush(rules, tuple(r for r in rung if r in readers))
        del all_sent
        complete = yield from has_everything(role, cursors, dead)
        if complete and sent == len(role.addressed):
            return
        if idle:
            arming += WORD if rules.numbered else 0
            yield from sleep(rules, role, cursors, readers, sent, wanted, arming)


def poll_all(rules: Rules, role: Role, cursors: tuple[int, ...]) -> Body:
    for i, (channel, count) in enumerate(role.inbound):
        if cursors[i] < count:
            cursor = yield from poll(rules, channel, role.me, cursors[i])
            cursors = (*cursors[:i], cursor, *cursors[i + 1 :])
    return cursors


def has_everything(role: Role, cursors: tuple[int, ...], dead: tuple[str, ...]) -> Body:
    """Every inbound stream has ended: with its last record, or its dead writer's last, or it does not matter."""
    for i, (channel, count) in enumerate(role.inbound):
        if cursors[i] == count or channel.writer in role.optional:
            continue
        if channel.writer not in dead:
            return False
        head = yield Load(channel.head, Order.ACQUIRE)  # the obituary came after the last head
        if head != cursors[i]:
            return False
    return True


def sleep(
    rules: Rules, role: Role, cursors: tuple[int, ...], readers: tuple[str, ...], sent: int, wanted: int, arming: int
) -> Body:
    """S1 to S7."""
    me = role.me
    if not rules.looks_after_arming:
        ready = yield from is_ready(rules, role, cursors, readers, sent, wanted)
        yield from arm(rules, me, arming)
    else:
        yield from arm(rules, me, arming)
        ready = yield from is_ready(rules, role, cursors, readers, sent, wanted)
    if ready:
        yield Store(bell(me), arming + AWAKE)
        return
    del ready
    yield Sleep(me)
    yield from disarm(rules, me, arming)


def is_ready(
    rules: Rules, role: Role, cursors: tuple[int, ...], readers: tuple[str, ...], sent: int, wanted: int
) -> Body:
    """S3: a record, or the space that a send waits for."""
    for i, (channel, count) in enumerate(role.inbound):
        if cursors[i] < count and (rules.drains_while_waiting or sent == len(role.addressed)):
            head = yield Load(channel.head, Order.ACQUIRE)
            if head != cursors[i]:
                return True
    if wanted:
        assert role.outbound is not None
        lowest = yield from slowest(rules, role.outbound, readers, sent)
        return lowest >= wanted
    return False


def supervisor(rules: Rules, victim: str, survivors: tuple[str, ...]) -> Program:
    """Reports a death to the survivors and wakes them whatever their bells say."""
    died = True
    if rules.awaits_proof:
        died = yield AwaitDeath(victim)
    if died:
        for survivor in survivors:
            yield Send(link("supervisor", survivor), victim)
            if rules.notifies_survivors:
                yield Ring(survivor)
