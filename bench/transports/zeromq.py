"""pyzmq over ipc: PUSH and PULL each way, or XPUB and SUB to many. An I/O thread in each process does the transfer."""

from __future__ import annotations

import os
from collections.abc import Callable

import zmq

from . import Endpoint, FanOutEndpoint, Peer


def _address(name: str) -> str:
    return f"ipc://@ringcast-bench-{os.getpid()}-{name}"


class ZmqEndpoint(Endpoint):
    """PUSH to PULL in both directions. The reader sleeps when its queue is empty."""

    def __init__(self, peer: Peer, near: bool) -> None:
        context = zmq.Context()
        outward, inward = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        address = _address("inward")
        inward.bind(address)
        peer.send(address)
        outward.connect(str(peer.receive()[0]))
        self.send, self.receive = outward.send, inward.recv
        self.ping_asleep, self.echo_asleep = self.ping, self.echo


class ZmqFanOut(FanOutEndpoint):
    """One XPUB, which learns of the subscriptions, and SUBs; no high-water mark, so nothing is dropped."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self.peer = peer
        self._near = near
        self._context = zmq.Context()
        self._serial = 0

    def open(self, readers: int, size_bytes: int) -> None:
        """A fresh publisher."""
        if self._near:
            self._serial += 1
            address = _address(f"fan-{self._serial}")
            publisher = self._context.socket(zmq.XPUB)
            publisher.setsockopt(zmq.SNDHWM, 0)
            publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
            publisher.bind(address)
            self.peer.send(address)
            for _ in range(readers):
                publisher.recv()
            self.peer.receive()
            self.send_all = publisher.send
        else:
            address = str(self.peer.receive()[0])
            self._subscribers = []
            for _ in range(readers):
                subscriber = self._context.socket(zmq.SUB)
                subscriber.setsockopt(zmq.RCVHWM, 0)
                subscriber.setsockopt(zmq.SUBSCRIBE, b"")
                subscriber.connect(address)
                self._subscribers.append(subscriber)
            self.peer.send()

    def pollers(self) -> list[Callable[[], int]]:
        """Without waiting."""

        def poller(subscriber: zmq.Socket[bytes]) -> Callable[[], int]:
            def poll() -> int:
                try:
                    subscriber.recv(zmq.DONTWAIT)
                except zmq.Again:
                    return 0
                return 1

            return poll

        return [poller(subscriber) for subscriber in self._subscribers]
