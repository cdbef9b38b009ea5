"""Detach, carry over the link, attach again: step machines line for line after docs/channels.md section 4.

One ring, one slow reader R under `spill`. Readers that always keep up are no threads here: they let every record go
into the ring and never hold it. So the writer may overwrite as soon as R does not own the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .machine import Body, Fence, Load, Order, Program, Receive, Send, Sleep, Store, Swap, Violated
from .protocol import WORD, Channel, Rules, arm, bell, disarm, flush, link, ring_bell

PINNED, DETACHED, STEP = 1, 2, 4  # a cursor word is STEP * position + flags
SPILL, NOTICE = "spill", "notice"


@dataclass(frozen=True, slots=True)
class SpillRules:
    """The lines of spill that can be taken away."""

    ring: Rules = field(default_factory=Rules)
    detach_swaps: bool = True  # D2 is a swap, not a store
    detach_acquire: Order = Order.ACQUIRE  # of D1 and D2, together with A1
    reader_swaps: bool = True  # R3 is a swap, not a store
    reader_heeds: bool = True  # a failed R3 drops the copies
    delivers_last: bool = True  # R5 after R3
    moves_first: bool = True  # D3 before W3
    heeds_pins: bool = True  # D1
    checks_corrupt: bool = True  # bytes that make no sense are a defect only if we still own them
    waits_for_notice: bool = True  # L3: the notice in the link ends LINK, not the word
    attaches_late: bool = True  # T1 waits until R has taken everything: a matter of policy
    word_before_records: bool = True  # H1 before W4
    pins_swap: bool = True  # V1 is a swap, not a store
    rings_moved: bool = True  # what was published for R and not flushed is rung although R was detached since


@dataclass(frozen=True, slots=True)
class Lane:
    """The configuration of one run: which records are for R, how R reads, when the writer flushes."""

    channel: Channel  # its only reader is R
    wanted: tuple[bool, ...]  # per record: R's bit in the mask
    batch: int = 9  # records that R copies at once
    views: bool = False  # R reads in place
    flush_every: int = 1
    obituary: str | None = None  # where R hears of the writer's death, or the writer of R's

    @property
    def taken(self) -> str:
        return f"taken.{self.channel.writer}.R"

    @property
    def link(self) -> str:
        return link(self.channel.writer, "R")


def writer(rules: SpillRules, lane: Lane) -> Program:
    """send() for each record, T1 to T3."""
    channel = lane.channel
    me = channel.writer
    attached, spilled, lowest, arming, dirty, alive = True, 0, 0, 0, False, True
    position = 0
    while position < len(lane.wanted):
        if lane.obituary == link("supervisor", me) and alive:
            alive = (yield Receive(lane.obituary)) is None
            attached = attached and alive
        wanted = lane.wanted[position] and alive
        if wanted and not attached:
            taken = yield Load(lane.taken, Order.ACQUIRE)
            if taken == spilled or not rules.attaches_late:
                attached, lowest = True, position
                if rules.word_before_records:
                    yield Store(channel.word("R"), STEP * position, Order.RELEASE)
                yield Send(lane.link, (NOTICE, position))
            del taken
        if attached and position + 1 - lowest > channel.capacity:
            required = position + 1 - channel.capacity
            outcome, value = yield from hold(rules, lane, position, required)
            if outcome == "pinned":
                arming += WORD if rules.ring.numbered else 0
                yield from wait(rules, lane, required, arming)
                continue
            if outcome == "detached":
                attached, spilled = False, spilled + value
                dirty = dirty and rules.rings_moved
            else:
                lowest = value
            del outcome, value, required
        yield Store(channel.cell(position), position + 1, Order.PLAIN)
        yield Store(channel.head, position + 1, rules.ring.head_release)
        if attached and lowest == position and not rules.word_before_records:
            yield Store(channel.word("R"), STEP * position, Order.RELEASE)
        if wanted and not attached:
            yield Send(lane.link, (SPILL, position))
            spilled += 1
        dirty = dirty or (wanted and attached)
        position += 1
        if position % lane.flush_every == 0 or position == len(lane.wanted):
            yield from flush(rules.ring, ("R",) if dirty else ())
            dirty = False
        del wanted


def hold(rules: SpillRules, lane: Lane, position: int, required: int) -> Body:
    """W1 and D1 to D4 against R: ("moved", its cursor), ("detached", records pushed) or ("pinned", 0)."""
    channel = lane.channel
    while True:
        word = yield Load(channel.word("R"), rules.detach_acquire)
        if word // STEP >= required:
            return "moved", word // STEP
        if word & PINNED and rules.heeds_pins:
            return "pinned", 0
        if rules.detach_swaps:
            order = Order.ACQ_REL if rules.detach_acquire is Order.ACQUIRE else Order.RELAXED
            found = yield Swap(channel.word("R"), word, word | DETACHED, order)
            if found != word:
                continue
        else:
            yield Store(channel.word("R"), word | DETACHED, Order.RELEASE)
        pushed = 0
        at = word // STEP
        while at < position:
            value = yield Load(channel.cell(at), Order.PLAIN)
            if value != at + 1:
                raise Violated(f"the writer moves record {at} to the link, but its bytes are those of {value - 1}")
            if lane.wanted[at] and rules.moves_first:
                yield Send(lane.link, (SPILL, at))
                pushed += 1
            at += 1
        return "detached", pushed


def wait(rules: SpillRules, lane: Lane, required: int, arming: int) -> Body:
    """X1 to X4 and the sleep of the writer, for a reader that holds a view."""
    channel, me = lane.channel, lane.channel.writer
    yield Store(channel.space_wanted, required)
    yield Fence()
    word = yield Load(channel.word("R"), rules.ring.cursor_acquire)
    if word // STEP < required:
        del word
        yield from ring_bell(rules.ring, "R")
        yield from arm(rules.ring, me, arming)
        word = yield Load(channel.word("R"), Order.ACQUIRE)
        if word // STEP >= required or not word & PINNED:
            yield Store(bell(me), arming)
        else:
            del word
            yield Sleep(me)
            yield from disarm(rules.ring, me, arming)
    yield Store(channel.space_wanted, 0)


def reader(rules: SpillRules, lane: Lane) -> Program:
    """Copies or views in mode RING, takes frames in mode LINK; checks that each record comes once and in order."""
    channel = lane.channel
    in_ring, cursor, due, taken, arming, dead = True, 0, first_wanted(lane, 0), 0, 0, False
    held: tuple[tuple[str, int], ...] = ()  # frames received and not yet taken
    while due < len(lane.wanted):
        idle = True
        if lane.obituary == link("supervisor", "R") and not dead:
            dead = (yield Receive(lane.obituary)) is not None
            idle = not dead
        frame = yield Receive(lane.link)
        if frame is not None:
            held, idle = (*held, frame), False
        ended = dead and frame is None
        del frame
        if not rules.waits_for_notice and not in_ring:
            word = yield Load(channel.word("R"), Order.ACQUIRE)
            if not word & DETACHED:
                in_ring, cursor, idle = True, word // STEP, False
            del word
        if in_ring:
            outcome, cursor, due = yield from read_ring(rules, lane, cursor, due)
            if outcome != "nothing":
                in_ring, ended, idle = outcome != "lost", False, False
            del outcome
        if not in_ring and held:
            (kind, number), held, ended, idle = held[0], held[1:], False, False
            if kind == NOTICE:
                in_ring, cursor = True, number
            else:
                due = deliver(lane, due, number)
                taken += 1
                yield Store(lane.taken, taken, Order.RELEASE)
            del kind, number
        if ended:
            return  # the writer is dead, and what it left is read: a prefix of what it sent
        if idle and due < len(lane.wanted):
            arming += WORD if rules.ring.numbered else 0
            yield from sleep(rules, lane, in_ring, cursor, arming)


def first_wanted(lane: Lane, start: int) -> int:
    """The next record for R; as many as there are if none is left."""
    while start < len(lane.wanted) and not lane.wanted[start]:
        start += 1
    return start


def deliver(lane: Lane, due: int, record: int) -> int:
    """What is due after this record, which must be the one that is due now."""
    if record != due:
        raise Violated(f"record {record} was delivered where {due} was due: a gap, a double, disorder or torn bytes")
    return first_wanted(lane, due + 1)


def read_ring(rules: SpillRules, lane: Lane, cursor: int, due: int) -> Body:
    """R1 to R5: ("nothing" | "read" | "lost", cursor, due)."""
    channel = lane.channel
    head = yield Load(channel.head, rules.ring.head_acquire)
    if head == cursor:
        return "nothing", cursor, due
    end = min(head, cursor + lane.batch)
    del head
    if lane.views:
        return (yield from view(rules, lane, cursor, due))
    copies: tuple[int, ...] = ()
    while cursor + len(copies) < end:
        value = yield Load(channel.cell(cursor + len(copies)), Order.RACING)
        if value != cursor + len(copies) + 1 and rules.reader_heeds and rules.delivers_last:
            if not copies:
                return (yield from suspect(rules, lane, cursor, due, value))
            end = cursor + len(copies)  # those before it may be good
        else:
            copies = (*copies, value - 1)
        del value
    if not rules.delivers_last:
        due = deliver_all(lane, due, copies)
    cells = tuple(channel.cell(cursor + i) for i in range(len(copies)))
    if rules.reader_swaps:
        word = STEP * cursor
        found = yield Swap(channel.word("R"), word, STEP * end, rules.ring.cursor_release, validates=cells)
        if found != word and rules.reader_heeds:
            return "lost", cursor, due
        del word, found
    else:
        yield Store(channel.word("R"), STEP * end, Order.RELEASE)
    del cells
    yield from give_back(rules, lane, end)
    if rules.delivers_last:
        due = deliver_all(lane, due, copies)
    return "read", end, due


def deliver_all(lane: Lane, due: int, copies: tuple[int, ...]) -> int:
    for record in copies:
        if record < 0 or lane.wanted[record]:
            due = deliver(lane, due, record)
    return due


def suspect(rules: SpillRules, lane: Lane, cursor: int, due: int, value: int) -> Body:
    """Bytes that make no sense: corrupt only if they are still ours."""
    if rules.checks_corrupt:
        found = yield Swap(lane.channel.word("R"), STEP * cursor, STEP * cursor, Order.ACQ_REL)
        if found != STEP * cursor:
            return "lost", cursor, due
    raise Violated(f"RingCorrupt: record {cursor} reads as {value - 1}")


def view(rules: SpillRules, lane: Lane, cursor: int, due: int) -> Body:
    """V1 to V4 for one record."""
    channel = lane.channel
    word = STEP * cursor
    if rules.pins_swap:
        found = yield Swap(channel.word("R"), word, word | PINNED, Order.ACQ_REL)
        if found != word:
            return "lost", cursor, due
        del found
    else:
        yield Store(channel.word("R"), word | PINNED)
    value = yield Load(channel.cell(cursor), Order.PLAIN)
    if value != cursor + 1:
        raise Violated(f"a view of record {cursor} shows {value - 1}")
    yield Store(channel.word("R"), word + STEP, rules.ring.cursor_release)
    yield from give_back(rules, lane, cursor + 1)
    return "read", cursor + 1, deliver_all(lane, due, (cursor,))


def give_back(rules: SpillRules, lane: Lane, end: int) -> Body:
    """R4."""
    if rules.ring.release_fence:
        yield Fence()
    wanted = yield Load(lane.channel.space_wanted)
    if wanted and end >= wanted:
        yield from ring_bell(rules.ring, lane.channel.writer)


def sleep(rules: SpillRules, lane: Lane, in_ring: bool, cursor: int, arming: int) -> Body:
    """S1 to S7; the link wakes in both modes."""
    yield from arm(rules.ring, "R", arming)
    if in_ring:
        head = yield Load(lane.channel.head, Order.ACQUIRE)
        if head != cursor:
            yield Store(bell("R"), arming)
            return
        del head
    rung = yield Sleep("R", lane.link)
    if rung:
        yield from disarm(rules.ring, "R", arming)
    else:
        yield Store(bell("R"), arming)
