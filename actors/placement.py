"""What to start and where: plain values that System.spawn takes. Nothing here runs anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from .actor import Actor, BlockingActor
from .child_output import Output, check_output
from .system_calls import calling

P = ParamSpec("P")
A = TypeVar("A", bound="Actor | BlockingActor")


@dataclass(frozen=True, slots=True)
class Spec(Generic[A]):
    """A class and its constructor's arguments: enough to start the actor, and to start it again."""

    cls: type[A]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def spec(cls: Callable[P, A], *args: P.args, **kwargs: P.kwargs) -> Spec[A]:
    """A `Spec`, with the arguments checked against the constructor by the type checker."""
    if not (isinstance(cls, type) and issubclass(cls, Actor | BlockingActor)):
        raise TypeError(f"{cls!r} is no actor class: derive it from rt.Actor or rt.BlockingActor")
    return Spec(cast(type[A], cls), args, kwargs)


@dataclass(frozen=True, slots=True)
class Here:
    """In the process that spawns it: a task on its loop (Actor) or a thread (BlockingActor)."""


here = Here()


@dataclass(frozen=True, slots=True)
class process:  # a value class with a verb's name: reads as where=rt.process()
    """In a process of its own.

    ``env`` is added to the inherited environment (thread counts such as OMP_NUM_THREADS belong there: they are read
    when a library is loaded). ``cpus`` are the processors that it may run on, from its first lines on; memory then
    comes from their NUMA node, by the kernel's first-touch rule. ``ValueError`` if this machine has none of them.
    ``spare``: while the actor is up another process waits that has run its ``on_prepare`` already, and becomes its next
    incarnation: a restart then costs what ``on_start`` takes. It sleeps, but its memory is taken. ``output``: where the
    lines go that it writes to stdout and stderr, if not where those of the system's other processes go (see `System`).
    """

    env: Mapping[str, str] = field(default_factory=dict)
    cpus: frozenset[int] | None = None
    spare: bool = False
    output: Output | None = None

    def __post_init__(self) -> None:
        if self.output is not None:
            check_output(self.output, "process()")
        for name, value in self.env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"process(env={{{name!r}: {value!r}}}): give strings")
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"process(env={{{name!r}: {value!r}}}): no variable can be called so, or hold NUL")
        if self.cpus is not None:
            object.__setattr__(self, "cpus", frozenset(self.cpus))  # given as a list, perhaps
            with calling("sched_getaffinity"):
                usable = os.sched_getaffinity(0)
            if not self.cpus & usable:
                raise ValueError(
                    f"process(cpus={sorted(self.cpus)}): none of them is usable here, only {sorted(usable)} are"
                )


Where = Here | process


def check_budget(owner: str, max_restarts: object, within_s: float) -> None:
    """Raise unless something may be restarted so many times within such a period; ``owner`` begins the message."""
    if not isinstance(max_restarts, int):
        raise TypeError(f"{owner}max_restarts is {max_restarts!r}: give a whole number")
    if max_restarts < 0:
        raise ValueError(f"{owner}max_restarts is {max_restarts}: it cannot be negative")
    if not within_s > 0:
        raise ValueError(f"{owner}within_s is {within_s}: it must be positive seconds")


@dataclass(frozen=True, slots=True)
class Restart:
    """When a dead actor is started again.

    ``permanent`` always; ``transient`` unless it ended by itself with exit code 0; ``temporary`` never. More than
    ``max_restarts`` within ``within_s`` seconds and the supervisor gives up. The delay doubles from ``backoff_s`` to
    ``max_backoff_s``, with up to 20 % jitter, and starts over after a period without deaths. ``on_stall``: what is
    done about an actor that is stalled (see `Actor.stall_after_s`) beyond telling its watchers. ``outside_kills``:
    whether a death by a signal from outside (`Cause.from_outside`: kill -9 by a person or a tool) counts towards
    ``max_restarts``; with "ignore" the actor is restarted after every one of them.
    """

    kind: Literal["permanent", "transient", "temporary"] = "temporary"
    max_restarts: int = 5
    within_s: float = 60.0
    backoff_s: float = 0.05
    max_backoff_s: float = 5.0
    on_stall: Literal["report", "kill"] = "report"
    outside_kills: Literal["count", "ignore"] = "count"

    def __post_init__(self) -> None:
        if self.kind not in ("permanent", "transient", "temporary"):
            raise ValueError(f"Restart.kind is {self.kind!r}: use 'permanent', 'transient' or 'temporary'")
        if self.on_stall not in ("report", "kill"):
            raise ValueError(f"Restart.on_stall is {self.on_stall!r}: use 'report' or 'kill'")
        if self.outside_kills not in ("count", "ignore"):
            raise ValueError(f"Restart.outside_kills is {self.outside_kills!r}: use 'count' or 'ignore'")
        check_budget("Restart.", self.max_restarts, self.within_s)
        for name in ("backoff_s", "max_backoff_s"):
            if not getattr(self, name) >= 0:  # false for NaN, too
                raise ValueError(f"Restart.{name} is {getattr(self, name)}: it cannot be negative")


def check_spawn(spec: object, name: object, where: object, restart: object) -> None:
    """What can be wrong with the arguments of a spawn, named."""
    if not isinstance(spec, Spec):
        raise TypeError(f"spawn needs rt.spec(Class, ...), not {spec!r}")
    if not isinstance(where, Where):
        raise TypeError(f"where is {where!r}: use rt.here or rt.process(...)")
    if not isinstance(restart, Restart):
        raise TypeError(f"restart is {restart!r}: use rt.Restart('permanent' | 'transient' | 'temporary')")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name is {name!r}: give a string")
    if name is not None and not _is_text(name):
        raise ValueError(f"name is {name!r}: it can hold neither NUL nor half a surrogate pair")


def _is_text(name: str) -> bool:
    """Whether it can travel, and be a process's title."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False
