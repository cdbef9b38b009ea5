"""Readers that come late and rings that end: step machines after docs/channels.md section 6."""

from __future__ import annotations

from .machine import Body, Fence, Load, Order, Program, Receive, Send, Sleep, Store, Violated
from .protocol import WORD, Channel, Rules, arm, bell, disarm, flush, link, make_room, poll, publish, ring_bell, slowest

CLOSED = 2


def state(channel: Channel) -> str:
    return f"state.{channel.writer}"


def wait_for_space(
    rules: Rules, channel: Channel, readers: tuple[str, ...], position: int, wanted: int, arming: int
) -> Body:
    """S1 to S7 of a writer that reads nothing."""
    yield from arm(rules, channel.writer, arming)
    lowest = yield from slowest(rules, channel, readers, position)
    if lowest >= wanted:
        yield Store(bell(channel.writer), arming)
        return
    yield Sleep(channel.writer)
    yield from disarm(rules, channel.writer, arming)


def admitting_writer(rules: Rules, channel: Channel, records: int) -> Program:
    """The first reader is there from the start; after the first record the second one is admitted."""
    first, late = channel.readers
    readers: tuple[str, ...] = (first,)
    position, lowest, arming = 0, 0, 0
    while position < records:
        room, lowest, wanted = yield from make_room(rules, channel, readers, position, lowest, readers)
        if not room:
            arming += WORD
            yield from wait_for_space(rules, channel, readers, position, wanted, arming)
            continue
        del room, wanted
        yield from publish(rules, channel, position)
        position += 1
        if position == 2 and not rules.admits_first:
            yield Store(channel.word(late), 1)
        yield from flush(rules, readers)
        if position == 1:
            if rules.admits_first:
                yield Store(channel.word(late), position, note=(f"consumed.{channel.writer}.{late}", position))
            yield Send(link(channel.writer, late), position)
            readers = channel.readers


def late_reader(rules: Rules, channel: Channel, me: str, records: int) -> Program:
    """Hears of its admission on the link, and reads from its join position on."""
    yield Sleep(me, link(channel.writer, me))
    cursor = yield Receive(link(channel.writer, me))
    arming = 0
    while cursor < records:
        end = yield from poll(rules, channel, me, cursor)
        if end == cursor:
            arming += WORD
            yield from arm(rules, me, arming)
            head = yield Load(channel.head, Order.ACQUIRE)
            if head == cursor:
                yield Sleep(me)
                yield from disarm(rules, me, arming)
            else:
                yield Store(bell(me), arming)
            del head
        cursor = end


def closing_writer(rules: Rules, channel: Channel) -> Program:
    """One record, and the end: by the state word only, as when the ring has no room for a CLOSE record."""
    yield from publish(rules, channel, 0)
    yield Store(state(channel), CLOSED, rules.close_release)
    yield Fence()
    for reader in channel.readers:
        yield from ring_bell(rules, reader)


def reader_to_the_end(rules: Rules, channel: Channel, me: str) -> Program:
    """Reads until the ring says that nothing will follow; the one record must have come before."""
    cursor, arming = 0, 0
    while True:
        end = yield from poll(rules, channel, me, cursor)
        if end == cursor:
            word = yield Load(state(channel), Order.ACQUIRE)
            if word == CLOSED:
                head = yield Load(channel.head, Order.ACQUIRE)
                if head == cursor:
                    break
                del head
            del word
            arming += WORD
            yield from arm(rules, me, arming)
            head = yield Load(channel.head, Order.ACQUIRE)
            word = yield Load(state(channel), Order.ACQUIRE)
            if head == cursor and word != CLOSED:
                yield Sleep(me)
                yield from disarm(rules, me, arming)
            else:
                yield Store(bell(me), arming)
            del head, word
        cursor = end
    if cursor != 1:
        raise Violated("the ring is closed, and a record that was published before was not read")
