"""multiprocessing.Pipe: a Unix socket pair with a length before each message. Every transfer is two system calls."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

from . import Endpoint, FanOutEndpoint, Peer


class PipeEndpoint(Endpoint):
    """One duplex connection; its reader always sleeps in the kernel."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self._connection = _offer(peer) if near else _take(peer)
        self.send, self.receive = self._connection.send_bytes, self._connection.recv_bytes
        self.ping_asleep, self.echo_asleep = self.ping, self.echo


class PipeFanOut(FanOutEndpoint):
    """A connection for each reader, written one after another."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self.peer = peer
        self._near = near

    def open(self, readers: int, size_bytes: int) -> None:
        """As many connections."""
        self._connections = [_offer(self.peer) if self._near else _take(self.peer) for _ in range(readers)]

    def send_all(self, payload: bytes) -> None:
        """To each."""
        for connection in self._connections:
            connection.send_bytes(payload)

    def pollers(self) -> list[Callable[[], int]]:
        """Each looks first."""

        def poller(connection: Connection) -> Callable[[], int]:
            def poll() -> int:
                if not connection.poll(0):
                    return 0
                connection.recv_bytes()
                return 1

            return poll

        return [poller(connection) for connection in self._connections]


def _offer(peer: Peer) -> Connection:
    ours, theirs = multiprocessing.Pipe()
    peer.send(None, [theirs.fileno()])
    peer.receive()
    theirs.close()
    return ours


def _take(peer: Peer) -> Connection:
    connection = Connection(os.dup(peer.receive()[1][0]))
    peer.send()
    return connection
