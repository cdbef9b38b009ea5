"""Actors that get into one kind of trouble in one phase of their life."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import ringcast.actors as rt


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def trouble(kind: str) -> None:
    if kind == "exception":
        raise ValueError("planned trouble")
    if kind == "unpicklable exception":
        raise Unpicklable("planned trouble")
    if kind == "SystemExit":
        sys.exit("planned trouble")
    if kind == "OOM by rlimit":
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), before[1]))
        try:
            bytearray(1 << 30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
    if kind in ("SIGKILL", "SIGSEGV", "SIGSTOP"):
        os.kill(os.getpid(), signal.Signals[kind])
    if kind == "os._exit":
        os._exit(9)
    if kind == "hang without the GIL":
        time.sleep(3600)
    if kind == "hang with the GIL":
        sum(range(10**13))


if "TROUBLE_AT_IMPORT" in os.environ:
    trouble(os.environ["TROUBLE_AT_IMPORT"])


class Troubled(rt.Actor):
    def __init__(self, phase: str, kind: str) -> None:
        self.phase = phase
        self.kind = kind
        self.at("__init__")

    def at(self, phase: str) -> None:
        if phase == self.phase:
            trouble(self.kind)

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.at("on_start")

    @rt.call
    async def handler(self) -> str:
        self.at("handler")
        return "fine"

    @rt.stream()
    async def stream(self) -> AsyncIterator[int]:
        yield 1
        self.at("stream")

    async def on_stop(self, reason: str) -> object:
        self.at("on_stop")
        return None


class BlockingTroubled(rt.BlockingActor):
    def __init__(self, phase: str, kind: str) -> None:
        self.phase = phase
        self.kind = kind
        self.at("__init__")

    def at(self, phase: str) -> None:
        if phase == self.phase:
            trouble(self.kind)

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.at("on_start")

    @rt.call
    def handler(self) -> str:
        self.at("handler")
        return "fine"

    @rt.stream()
    def stream(self) -> Iterator[int]:
        yield 1
        self.at("stream")

    def on_stop(self, reason: str) -> object:
        self.at("on_stop")
        return None


class Prepared(rt.Actor):
    """Tells in which process it prepared, and when; ``fails_if_incarnation`` cannot prepare."""

    def __init__(self, fails_if_incarnation: int = 0) -> None:
        self.fails_if_incarnation = fails_if_incarnation
        self.steps: list[object] = []

    async def on_prepare(self, ctx: rt.Context) -> None:
        if ctx.incarnation == self.fails_if_incarnation:
            raise RuntimeError("nothing to prepare with")
        self.steps.append(["prepare", os.getpid(), time.monotonic()])

    async def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.steps.append(["start", os.getpid(), time.monotonic(), handoff])

    @rt.call
    async def told(self) -> list[object]:
        return self.steps

    @rt.call
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def on_stop(self, reason: str) -> object:
        return "with regards"


class PreparedBlocking(rt.BlockingActor):
    """The same on a main thread."""

    def __init__(self, fails_if_incarnation: int = 0) -> None:
        self.fails_if_incarnation = fails_if_incarnation
        self.steps: list[object] = []

    def on_prepare(self, ctx: rt.Context) -> None:
        if ctx.incarnation == self.fails_if_incarnation:
            raise RuntimeError("nothing to prepare with")
        self.steps.append(["prepare", os.getpid(), time.monotonic()])

    def on_start(self, ctx: rt.Context, handoff: object) -> None:
        self.steps.append(["start", os.getpid(), time.monotonic(), handoff])

    @rt.call
    def told(self) -> list[object]:
        return self.steps

    @rt.call
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_stop(self, reason: str) -> object:
        return "with regards"
