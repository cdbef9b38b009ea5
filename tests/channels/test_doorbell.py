"""Promises of doorbell and board: nobody sleeps through a message, nobody is woken for nothing, None waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from channel_kit import EPOCH, WRITER_BELL

from ringcast.channels import Board, Doorbell, RingMismatch, RingReader, RingWriter, _native, create_segment


def token(bell):
    """Take the eventfd's token; 0 if there is none."""
    try:
        return os.eventfd_read(bell.fileno())
    except BlockingIOError:
        return 0


def test_ring_of_an_awake_owner_makes_no_system_call(bells):
    bell = bells[0]
    assert bell.ring() is False
    assert (bell.sent, bell.suppressed, token(bell)) == (0, 1, 0)


def test_one_ring_wakes_an_armed_owner_and_later_ones_are_suppressed(bells):
    owner, other = bells[0], Doorbell(bells.board, 0, bells.eventfds[0])
    assert owner.arm([])
    assert other.ring() is True
    assert other.ring() is False
    assert token(owner) == 1
    assert (other.sent, other.suppressed) == (1, 1)


def test_a_ringer_that_died_before_its_system_call_keeps_nobody_from_ringing(bells):
    bell = bells[0]
    slot_offset = 4096  # the bell of slot 0 is the first word behind the board's header
    os.pwrite(bells.segment.fd, bytes([_native.RINGING]), slot_offset)
    assert bell.ring() is True
    assert token(bell) == 1 and bell.state == _native.AWAKE


def test_notify_wakes_whatever_the_word_says(bells):
    bells[0].notify()
    assert token(bells[0]) == 1


def test_arm_refuses_while_a_record_is_unread_and_parks_when_all_is_read(ring, bells):
    r = ring()
    bell = bells[0]
    r.writer.try_send(b"x", 1)
    assert bell.arm(r.readers) is False
    assert bell.state == _native.AWAKE
    r.readers[0].poll()
    assert bell.arm(r.readers) is True
    assert bell.state == _native.ARMED
    r.writer.try_send(b"y", 1)
    assert bell.state == _native.ARMED  # published, not yet flushed
    assert r.writer.flush() == 1
    bell.disarm()
    assert bell.state == _native.AWAKE and token(bell) == 0


def test_a_blocked_reader_does_not_keep_its_owner_awake(ring, bells):
    r = ring()
    r.writer.try_send(b"x", 1)
    r.readers[0].blocked = True
    assert bells[0].arm(r.readers) is True
    bells[0].disarm()
    r.readers[0].blocked = False
    assert bells[0].arm(r.readers) is False


def test_space_that_came_is_reported_once(ring, bells):
    r = ring(1024)
    while r.writer.try_send(b"", 1):
        pass
    r.readers[0].poll()
    assert bells[WRITER_BELL].arm([], [r.writer]) is False
    assert bells[WRITER_BELL].arm([], [r.writer]) is True


def test_a_wait_for_space_survives_smaller_sends_in_between(ring, bells):
    r = ring(4096)
    while r.writer.try_send(bytes(400), 1):
        pass
    while r.writer.try_send(b"", 1):
        pass
    assert r.writer.wants_space
    r.readers[0].poll(2)
    assert r.writer.try_send(b"small", 1)
    assert bells[WRITER_BELL].arm([], [r.writer]) is True
    r.readers[0].poll()
    assert token(bells[WRITER_BELL]) == 1


def test_wait_returns_at_once_when_something_is_unread(ring, bells):
    r = ring()
    r.writer.try_send(b"x", 1)
    assert bells[0].wait(r.readers, [], [], None, 0.0) == []


def test_wait_times_out_and_leaves_the_bell_awake(ring, bells):
    r = ring()
    start = time.monotonic()
    assert bells[0].wait(r.readers, [], [], 0.05, 0.0) == []
    assert time.monotonic() - start >= 0.05
    assert bells[0].state == _native.AWAKE


def test_wait_without_timeout_waits_until_rung(ring, bells):
    r = ring()
    done = threading.Event()

    def run():
        bells[0].wait(r.readers, [], [], None, 0.0)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert not done.wait(0.3)
    assert bells[0].state == _native.ARMED
    with pytest.raises(RuntimeError, match="waits"):
        bells[0].close()
    r.writer.try_send(b"x", 1)
    assert r.writer.flush() == 1
    thread.join(5)
    assert done.is_set()


def test_wait_spins_without_the_gil_and_sees_a_record_that_nobody_rang_for(ring, bells):
    r = ring()
    seen = threading.Event()

    def run():
        if bells[0].wait(r.readers, [], [], 30.0, 20.0) == []:
            seen.set()

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.05)  # the main thread can run at all: the spinner holds no GIL
    r.writer.try_send(b"x", 1)
    assert seen.wait(10)
    thread.join()


def test_wait_reports_readable_and_hung_up_descriptors(ring, bells):
    r = ring()
    quiet, quiet_end = os.pipe()
    readable, writable = os.pipe()
    hung, hung_end = os.pipe()
    try:
        os.write(writable, b"x")
        os.close(hung_end)
        assert set(bells[0].wait(r.readers, [], [quiet, readable, hung], None, 0.0)) == {readable, hung}
        r.writer.try_send(b"x", 1)
        assert bells[0].wait(r.readers, [], [readable], None, 0.0) in ([], [readable])
        assert bells[0].wait(r.readers, [], [readable], 0, 0.0) == [readable]
    finally:
        for fd in (quiet, quiet_end, readable, writable, hung):
            os.close(fd)


def test_wait_reports_descriptors_that_can_be_written(bells):
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    try:
        assert bells[0].wait([], [], [], None, 0.0, [writable]) == [writable]
        assert bells[0].wait([], [], [readable], None, 0.0, out_fds=[writable]) == [writable]
        while True:
            try:
                os.write(writable, bytes(4096))
            except BlockingIOError:
                break
        assert bells[0].wait([], [], [], 0.02, 0.0, [writable]) == []
        assert bells[0].wait([], [], [readable], 0.02, 0.0, [writable]) == [readable]
    finally:
        os.close(readable)
        os.close(writable)


def test_a_ready_ring_never_sleeps_while_descriptors_are_looked_at(ring, bells):
    """The look that is due once in a millisecond only looks: it once slept for ever, unarmed."""
    r = ring()
    quiet, quiet_end = os.pipe()
    r.writer.try_send(b"never read", 1)
    try:
        for _ in range(3):
            assert bells[0].wait(r.readers, [], [quiet], None, 0.0) == []
            time.sleep(0.003)
    finally:
        os.close(quiet)
        os.close(quiet_end)


def test_busy_rings_hide_no_descriptor_for_ever(ring, bells):
    r = ring()
    readable, writable = os.pipe()
    os.write(writable, b"x")
    r.writer.try_send(b"never read", 1)
    deadline = time.monotonic() + 5
    while bells[0].wait(r.readers, [], [readable], None, 0.0) != [readable]:
        assert time.monotonic() < deadline
    os.close(readable)
    os.close(writable)


def test_wait_returns_at_once_from_a_busy_ring_whose_descriptors_are_silent(ring, bells):
    r = ring()
    readable, writable = os.pipe()
    r.writer.try_send(b"x", 1)
    try:
        for _ in range(3):
            time.sleep(0.002)  # the descriptors have not been looked at for longer than a millisecond
            assert bells[0].wait(r.readers, [], [readable], None, 0.0) == []
    finally:
        os.close(readable)
        os.close(writable)


def test_wait_refuses_a_closed_descriptor_instead_of_spinning(bells):
    bell = bells[0]
    fd = os.dup(0)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        bell.wait([], [], [fd], None, 0.0)


def test_wait_wakes_when_awaited_space_comes(ring, bells):
    r = ring(1024)
    while r.writer.try_send(b"", 1):
        pass
    timer = threading.Timer(0.05, r.readers[0].poll)
    timer.start()
    assert bells[WRITER_BELL].wait([], [r.writer], [], None, 0.0) == []
    timer.join()
    assert not r.writer.wants_space and r.writer.try_send(b"", 1)


def test_wait_runs_signal_handlers_and_goes_on(ring, bells):
    r = ring()
    calls = []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        start = time.monotonic()
        assert bells[0].wait(r.readers, [], [], 0.2, 0.0) == []
        assert time.monotonic() - start >= 0.2
        assert len(calls) >= 3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_wait_ends_with_the_exception_of_a_signal_handler(ring, bells):
    r = ring()

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            bells[0].wait(r.readers, [], [], None, 0.0)
        assert bells[0].state == _native.AWAKE
    finally:
        signal.signal(signal.SIGALRM, before)


def test_bad_arguments_are_named(ring, bells):
    r = ring()
    with pytest.raises(TypeError, match="readers must hold"):
        bells[0].arm([r.writer])
    with pytest.raises(TypeError, match="writers must hold"):
        bells[0].wait(r.readers, [1], [], None, 0.0)
    with pytest.raises(ValueError, match="timeout_s is not a number"):
        bells[0].wait([], [], [], float("nan"), 0.0)
    with pytest.raises(ValueError, match="slot is 64"):
        Doorbell(bells.board, 64, bells[0].fileno())
    with pytest.raises(OSError):
        Doorbell(bells.board, 0, -1)


def test_closed_doorbell_says_so_and_a_writer_that_rings_it_goes_on(ring, bells):
    r = ring()
    bells[0].arm(r.readers)
    bells[0].close()
    bells[0].close()
    with pytest.raises(ValueError, match="closed"):
        bells[0].ring()
    r.writer.try_send(b"x", 1)
    r.writer.flush()
    assert [m.payload for m in r.readers[0].poll()] == [b"x"]


def test_board_keeps_state_and_progress_of_each_slot_apart():
    segment = create_segment(Board.size_bytes(3))
    board, other = Board.create(segment.fd), Board(segment.fd)
    assert board.slots == 3
    assert board.state(1) == (0, 0) and board.progress(1) == (0, 0)
    board.set_state(1, incarnation=2**32 - 1, state=5)
    board.advance(1, 9)
    board.advance(1, 65535)
    assert other.state(1) == (2**32 - 1, 5)
    assert other.progress(1) == (2, 65535)
    assert other.state(0) == other.progress(2) == (0, 0)
    with pytest.raises(ValueError, match="slot is 3"):
        board.state(3)
    with pytest.raises(ValueError, match="phase"):
        board.advance(0, 65536)
    segment.close()


def test_board_refuses_another_segment(ring):
    r = ring()
    segment = create_segment(100)
    for open_board in (Board, Board.look, Board.create):
        with pytest.raises(RingMismatch, match="use already" if open_board == Board.create else "no board"):
            open_board(r.segment.fd)
        with pytest.raises(ValueError, match="size_bytes"):
            open_board(segment.fd)
    segment.close()


def test_nobody_but_its_maker_writes_to_a_new_segment(bells):
    """An onlooker tried whether each segment that it found was a board, and made rings boards before their writers
    had come to them."""
    segment = create_segment(RingWriter.size_bytes(1 << 16))
    for open_board in (Board, Board.look):
        with pytest.raises(RingMismatch, match="no board"):
            open_board(segment.fd)
    with pytest.raises(RingMismatch):
        RingReader(segment.fd, 0, 0, None, EPOCH)
    assert not any(os.pread(segment.fd, segment.size_bytes, 0))
    RingWriter(segment.fd, bells[0], epoch=EPOCH)
    segment.close()


def test_an_onlooker_cannot_write(bells):
    bells.board.set_state(3, incarnation=1, state=2)
    fd = os.open(f"/proc/self/fd/{bells.segment.fd}", os.O_RDONLY)
    board = Board.look(fd)
    os.close(fd)
    assert board.state(3) == (1, 2)
    for write in (
        lambda: board.set_state(3, incarnation=1, state=1),
        lambda: board.advance(3, 1),
        lambda: board.set_gauges(3, 1),
        lambda: board.set_label(3, "x"),
        lambda: Doorbell(board, 3, bells[0].fileno()),
    ):
        with pytest.raises(ValueError, match="onlooker"):
            write()
    assert bells.board.state(3) == (1, 2) and bells.board.progress(3) == (0, 0)
