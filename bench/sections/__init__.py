"""The parts of the channel benchmark: what they measure with, and how much of it. Each section is a module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..report import Figure, Report
from ..workers import Cores, Pair


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. Every repetition runs all transports one after another."""

    repetitions: int
    polled_count: int  # round trips of transports whose readers spin
    slept_count: int  # round trips of transports whose readers sleep
    stream_bytes: int  # by us; the others send less
    fan_batches: int
    copies: int  # large messages a repetition
    counted: int  # messages whose system calls are counted
    idle_s: float
    stopped_s: float  # the slow reader's section


FULL: Final = Plan(15, 10_000, 1_500, 1 << 28, 400, 5, 100_000, 10.0, 10.0)
QUICK: Final = Plan(4, 2_000, 200, 1 << 25, 60, 2, 100_000, 3.0, 3.0)
TINY: Final = Plan(1, 60, 20, 1 << 18, 5, 1, 1_000, 0.2, 1.0)  # for the smoke test


@dataclass(frozen=True, slots=True)
class Transport:
    """A way to send bytes: labels and the classes behind it, as ``module:class``."""

    label: str
    duplex: str
    fan_out: str | None
    sleeps: bool  # its reader sleeps in `receive`; otherwise it spins
    package: str | None = None
    python: str = sys.executable

    def pair(self, cores: Cores) -> Pair:
        """Its two ends, in processes of their own."""
        return Pair(self.duplex, cores, self.python)


OURS: Final = Transport("ringcast", "bench.transports.ring:RingEndpoint", "bench.transports.ring:RingFanOut", False)
PEERS: Final = (
    Transport("multiprocessing.Pipe", "bench.transports.pipe:PipeEndpoint", "bench.transports.pipe:PipeFanOut", True),
    Transport("pyzmq", "bench.transports.zeromq:ZmqEndpoint", "bench.transports.zeromq:ZmqFanOut", True, "zmq"),
    Transport(
        "iceoryx2",
        "bench.transports.iceoryx:IceoryxEndpoint",
        "bench.transports.iceoryx:IceoryxFanOut",
        False,
        "iceoryx2",
    ),
)


@dataclass(slots=True)
class Bench:
    """One run: what sections measure with, and where they put what they find."""

    plan: Plan
    cores: Cores
    transports: tuple[Transport, ...]  # ours first
    report: Report
    say: Callable[[str], None]  # progress, for a person who waits


class Series:
    """Values of repetitions, collected under keys; a `Figure` each in the end."""

    def __init__(self) -> None:
        self._values: dict[Any, list[float]] = {}

    def add(self, key: Any, value: float) -> None:
        """One more repetition."""
        self._values.setdefault(key, []).append(value)

    def add_laps(self, key: Any, laps: Mapping[str, float]) -> None:
        """Median and 99th percentile in ns, as endpoints return them: under (key, "p50") and (key, "p99")."""
        for name in ("p50", "p99"):
            self.add((key, name), laps[name])

    def figure(self, key: Any, unit: str, factor: float = 1.0) -> Figure:
        """All repetitions of a key, in that unit."""
        return Figure(tuple(value * factor for value in self._values[key]), unit)
