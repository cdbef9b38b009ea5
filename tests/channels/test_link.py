"""Promises of a link: whole frames in order with their descriptors, no blocking, a quiet end."""

from __future__ import annotations

import os
import resource
import socket
import struct

import pytest

from ringcast.channels import Frame, Link, LinkError


@pytest.fixture
def pair(nothing_left):
    one, other = Link.pair()
    yield one, other
    one.close()
    other.close()


def move(sender, receiver):
    """Pump and receive until all is through."""
    frames = []
    while sender.pending:
        sender.pump()
        frames += receiver.receive()
    return frames + receiver.receive()


def test_frames_arrive_whole_and_in_order(pair):
    one, other = pair
    one.send(40, 7, b"first")
    one.send(41, 2**64 - 1)
    one.send(65535, 0, bytearray(b"third"))
    assert other.receive() == [
        Frame(40, 7, b"first"),
        Frame(41, 2**64 - 1, b""),
        Frame(65535, 0, b"third"),
    ]
    assert other.receive() == [] and not other.closed


def test_both_directions_are_independent(pair):
    one, other = pair
    one.send(40, 1, b"there")
    other.send(40, 2, b"back")
    assert [f.payload for f in one.receive()] == [b"back"]
    assert [f.payload for f in other.receive()] == [b"there"]


def test_payload_far_larger_than_the_socket_buffer_waits_and_never_blocks(pair):
    one, other = pair
    big = os.urandom(1 << 20) * 9
    one.send(40, 1, big)
    assert one.pending and one.pending_bytes > 0
    one.send(40, 2, b"behind")
    frames = move(one, other)
    assert [f.id for f in frames] == [1, 2]
    assert frames[0].payload == big
    assert not one.pending and one.pending_bytes == 0


def test_a_waiting_payload_is_not_changed_by_its_owner_afterwards(pair):
    one, other = pair
    buffer = bytearray(b"a" * (4 << 20))
    one.send(40, 1, buffer)
    buffer[:] = b"b" * len(buffer)
    assert move(one, other)[0].payload == b"a" * len(buffer)


def test_descriptors_come_with_the_frame_that_they_belong_to(pair):
    one, other = pair
    pipes = [os.pipe() for _ in range(3)]
    one.send(40, 1, b"two", (pipes[0][1], pipes[1][1]))
    one.send(40, 2, b"none")
    one.send(40, 3, b"", [pipes[2][1]])
    for _, write_end in pipes:
        os.close(write_end)
    frames = other.receive()
    assert [len(f.fds) for f in frames] == [2, 0, 1]
    for (read_end, _), fd in zip(pipes, [*frames[0].fds, *frames[2].fds], strict=True):
        assert not os.get_inheritable(fd)
        os.write(fd, b"hello")
        os.close(fd)
        assert os.read(read_end, 9) == b"hello"
        assert os.read(read_end, 9) == b""  # no other copy of the write end was left open
        os.close(read_end)


def test_descriptors_of_a_waiting_frame_survive_their_owners_close(pair):
    one, other = pair
    one.send(40, 1, bytes(4 << 20))
    read_end, write_end = os.pipe()
    one.send(40, 2, bytes(1 << 20), (write_end,))
    os.close(write_end)
    frames = move(one, other)
    os.write(frames[1].fds[0], b"alive")
    os.close(frames[1].fds[0])
    assert os.read(read_end, 9) == b"alive"
    assert os.read(read_end, 9) == b""
    os.close(read_end)


def test_eof_closes_after_everything_was_received(pair):
    one, other = pair
    one.send(40, 1, b"last words")
    one.close()
    assert not other.closed
    assert [f.payload for f in other.receive()] == [b"last words"]
    assert other.closed and other.eof and not other.truncated
    other.send(40, 1, b"to nobody")
    assert not other.pending and other.receive() == []


def test_frame_cut_by_eof_is_dropped_and_reported(pair):
    one, other = pair
    one.send(40, 1, b"whole")
    one.send(40, 2, bytes(4 << 20))
    one.close()
    assert [f.id for f in other.receive()] == [1]
    assert other.closed and other.truncated


def test_sends_to_a_peer_that_has_gone_are_dropped_without_an_exception(pair):
    one, other = pair
    one.send(40, 1, bytes(4 << 20), (0,))
    other.close()
    one.pump()
    assert one.closed and not one.pending
    for _ in range(3):
        one.send(40, 2, b"x", (0,))
    assert one.receive() == [] and one.eof


def test_close_releases_unclaimed_and_unsent_descriptors(pair):
    one, other = pair
    one.send(40, 1, b"", (0, 1, 2))
    one.send(40, 2, bytes(4 << 20), (0,))
    one.send(40, 3, b"", (0,))
    other._read()  # the descriptors have arrived, nobody has claimed them; the leak oracle sees the rest
    one.close()
    other.close()
    other.close()
    assert one.fileno() == -1


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<IIHHIQ", 0xDEADBEEF, 0, 1, 0, 0, 0),
        struct.pack("<IIHHIQ", 0x4B4C4352, 1 << 31, 1, 0, 0, 0),
        struct.pack("<IIHHIQ", 0x4B4C4352, 0, 1, 300, 0, 0),
        struct.pack("<IIHHIQ", 0x4B4C4352, 0, 1, 2, 0, 0),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_malformed_bytes_raise_after_the_good_frames_and_close(header):
    raw, end = socket.socketpair()
    good, link = Link(raw), Link(end)
    good.send(40, 1, b"good")
    raw.send(header)
    assert [f.payload for f in link.receive()] == [b"good"]
    with pytest.raises(LinkError):
        link.receive()
    assert link.closed and link.receive() == []
    good.close()


def test_frame_beyond_the_limits_is_the_callers_error(pair):
    with pytest.raises(ValueError, match="254 fds"):
        pair[0].send(40, 1, b"", [0] * 254)
    with pytest.raises(ValueError, match="limits"):
        pair[0].send(40, 1, memoryview(bytes(1)).cast("B")[:0].tobytes() + bytes((1 << 30) + 1))
    assert not pair[0].pending


def test_many_descriptors_in_one_frame(pair):
    pair[0].send(40, 1, b"", [0] * 253)
    (frame,) = pair[1].receive()
    assert len(frame.fds) == 253
    for fd in frame.fds:
        os.close(fd)


def test_lack_of_descriptors_on_arrival_is_an_error_with_its_remedy(pair):
    pair[0].send(40, 1, b"", [0] * 50)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, hard))
        with pytest.raises(LinkError, match="ulimit -n"):
            pair[1].receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert pair[1].closed


def test_link_takes_a_bare_descriptor():
    a, b = socket.socketpair()
    one, other = Link(a.detach()), Link(b.detach())
    assert not os.get_blocking(one.fileno()) and not os.get_inheritable(one.fileno())
    one.send(40, 5, b"x")
    assert other.receive() == [Frame(40, 5, b"x")]
