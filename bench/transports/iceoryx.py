"""iceoryx2 publish-subscribe: shared-memory slots, polled. Bytes are copied in and out as with the others.

Its subscribers have no way to sleep on data: the wake-up rows use its event service, a listener that waits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import iceoryx2 as ix  # type: ignore[import-untyped]

from . import Endpoint, FanOutEndpoint, Peer

ix.set_log_level(ix.LogLevel.Error)
_Bytes = ix.Slice[ctypes.c_uint8]
LARGEST_BYTES = 1 << 20
BUFFERED = 64


class _Node:
    """A node and the services opened on it."""

    def __init__(self) -> None:
        self._node = ix.NodeBuilder.new().create(ix.ServiceType.Ipc)
        self._kept: list[Any] = []

    def _service(self, name: str, readers: int, buffered: int) -> Any:
        service = (
            self._node.service_builder(ix.ServiceName.new(name))
            .publish_subscribe(_Bytes)
            .enable_safe_overflow(False)
            .max_subscribers(readers)
            .subscriber_max_buffer_size(buffered)
            .open_or_create()
        )
        self._kept.append(service)
        return service

    def sender(self, name: str, readers: int, largest_bytes: int, buffered: int) -> Callable[[bytes], None]:
        """Copies into a loaned slot and publishes it; waits while a subscriber's buffer is full."""
        publisher = (
            self._service(name, readers, buffered)
            .publisher_builder()
            .initial_max_slice_len(largest_bytes)
            .backpressure_strategy(ix.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        self._kept.append(publisher)
        loan, copy = publisher.loan_slice_uninit, ctypes.memmove

        def send(payload: bytes) -> None:
            sample = loan(len(payload))
            copy(sample.payload_ptr, payload, len(payload))
            sample.assume_init().send()

        return send

    def poller(self, name: str, readers: int, buffered: int) -> Callable[[], bytes | None]:
        """Copies the next message out, or returns None."""
        subscriber = self._service(name, readers, buffered).subscriber_builder().buffer_size(buffered).create()
        self._kept.append(subscriber)
        receive, copy = subscriber.receive, ctypes.string_at

        def poll() -> bytes | None:
            sample = receive()
            if sample is None:
                return None
            payload = copy(sample.payload_ptr, sample.payload().len())
            sample.delete()
            return payload

        return poll

    def event(self, name: str) -> Any:
        """An event service."""
        service = self._node.service_builder(ix.ServiceName.new(name)).event().open_or_create()
        self._kept.append(service)
        return service


class IceoryxEndpoint(Endpoint):
    """A service in each direction. Its readers spin."""

    def __init__(self, peer: Peer, near: bool) -> None:
        name = _shared_name(peer, near)
        names = (f"{name}-out", f"{name}-in")
        outward, inward = names if near else names[::-1]
        node = _Node()
        poll = node.poller(inward, 1, BUFFERED)
        self.send = node.sender(outward, 1, LARGEST_BYTES, BUFFERED)
        peer.send()
        peer.receive()

        def receive() -> bytes:
            while (payload := poll()) is None:
                pass
            return payload

        self.receive = receive
        self.ping_asleep, self.echo_asleep = self.ping, self.echo  # it stays awake, which the idle table shows
        self._node = node


class IceoryxEvents(Endpoint):
    """A notifier and a listener in each direction: wakes, carries no bytes."""

    def __init__(self, peer: Peer, near: bool) -> None:
        name = _shared_name(peer, near)
        names = (f"{name}-event-out", f"{name}-event-in")
        outward, inward = names if near else names[::-1]
        self._node = _Node()
        listener = self._node.event(inward).listener_builder().create()
        peer.send()
        peer.receive()
        notifier = self._node.event(outward).notifier_builder().create()
        peer.send()
        peer.receive()
        notify, wait = notifier.notify, listener.blocking_wait

        def receive() -> None:
            while not wait():
                pass

        self.send = lambda _payload: notify()
        self.receive = receive
        self.ping_asleep, self.echo_asleep = self.ping, self.echo


class IceoryxFanOut(FanOutEndpoint):
    """One publisher, many subscribers."""

    def __init__(self, peer: Peer, near: bool) -> None:
        self.peer = peer
        self._near = near
        self._serial = 0

    def open(self, readers: int, size_bytes: int) -> None:
        """A fresh service, which reserves memory for what its subscribers may hold: few slots if they are large."""
        buffered = BUFFERED if size_bytes <= LARGEST_BYTES else 2
        name = _shared_name(self.peer, self._near) + f"-fan-{self._serial}"
        self._serial += 1
        self._node = _Node()
        if self._near:
            self.peer.receive()
            self.send_all = self._node.sender(name, readers, size_bytes, buffered)
            self.peer.send()
        else:
            self._polls = [self._node.poller(name, readers, buffered) for _ in range(readers)]
            self.peer.send()
            self.peer.receive()

    def pollers(self) -> list[Callable[[], int]]:
        """Each takes one message."""

        def counted(poll: Callable[[], bytes | None]) -> Callable[[], int]:
            return lambda: poll() is not None

        return [counted(poll) for poll in self._polls]


def _shared_name(peer: Peer, near: bool) -> str:
    if near:
        name = f"ringcast-bench-{os.getpid()}"
        peer.send(name)
        return name
    return str(peer.receive()[0])
