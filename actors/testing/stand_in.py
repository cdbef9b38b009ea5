"""Stand-ins for what surrounds an actor in a unit test: its context, and the actors that it talks to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import call_scope
from ..consumer import StreamReader
from ..context import Context, Watch
from ..errors import ActorError
from ..events import Event
from ..placement import Restart, Spec, Where
from ..ref import Ref
from ..timers import Timer, check_seconds


@dataclass(frozen=True, slots=True)
class TimerStarted:
    """A timer in `FakeContext.timers`."""

    msg: object
    seconds: float
    repeats: bool
    timer: Timer


class FakeContext(Context):
    """What ``on_start`` and ``run`` are given in a test without a runtime. Records phases; the test plays the rest."""

    def __init__(self, name: str = "actor", incarnation: int = 1) -> None:
        owner = _Owner()
        super().__init__(owner, FakeActor(name).ref, name, incarnation)
        self._fake = owner

    @property
    def phases(self) -> list[str]:
        """The names given to `phase`, in order."""
        return self._fake.phases

    @property
    def timers(self) -> list[TimerStarted]:
        """What `after` and `every` were asked for, in order. The test calls the handlers itself."""
        return self._fake.timers

    @property
    def spawned(self) -> list[Spec[Any]]:
        """What was given to `spawn`, in order. Its references belong to stand-ins that answer nothing."""
        return self._fake.spawned

    def tell(self, ref: object, event: Event) -> None:
        """Let the actor's watches of ``ref`` see an event; ones that are opened later see it too, if it is the last."""
        if not isinstance(ref, Ref):
            raise ActorError(f"tell needs a reference, not {type(ref).__name__}")
        self._fake.tell(ref, event)

    def cancel(self) -> None:
        """From here on `cancelled` is true: the caller has given up, or a stop waits."""
        self._fake.is_cancelled = True


class _Owner:
    """The place that hosts the actor, for `Context`."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.timers: list[TimerStarted] = []
        self.spawned: list[Spec[Any]] = []
        self.stopped: list[Ref] = []
        self.is_cancelled = False
        self._watches: dict[Ref, list[Watch]] = {}
        self._last: dict[Ref, Event] = {}

    def report_phase(self, phase: str, stall_after_s: float | None) -> None:
        self.phases.append(phase)

    def report_progress(self) -> None:
        """Nobody watches for stalls."""

    def start_timer(self, msg: object, seconds: float, repeats: bool) -> Timer:
        check_seconds(seconds, repeats)
        timer = Timer()
        self.timers.append(TimerStarted(msg, seconds, repeats, timer))
        return timer

    def watch(self, ref: Ref) -> Watch:
        watch = Watch()
        watches = self._watches.setdefault(ref, [])
        watches.append(watch)
        watch.unsubscribe = lambda: watches.remove(watch)
        if ref in self._last:
            watch.put(self._last[ref])
        return watch

    def tell(self, ref: Ref, event: Event) -> None:
        self._last[ref] = event
        for watch in list(self._watches.get(ref, [])):
            watch.put(event)

    async def spawn(self, spec: Spec[Any], name: str | None, where: Where, restart: Restart) -> tuple[int, str]:
        self.spawned.append(spec)
        ref = FakeActor(name or spec.cls.__name__)._ref
        return ref._actor_id, ref._name

    async def stop_owned(self, ref: Ref, reason: str, timeout_s: float) -> None:
        self.stopped.append(ref)

    def cancelled(self) -> bool:
        return self.is_cancelled or call_scope.current().expired()


@dataclass(frozen=True, slots=True)
class Told:
    """An ask, a cast or the opening of a stream that a stand-in got."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_cast: bool
    is_stream: bool = False


class FakeActor:
    """An actor that is not there: ``ref`` can be given to the actor under test.

    ``told`` is everything that it was told, in order; ``asks``, ``casts`` and ``opened`` are its parts.

    ``answers`` maps a method to a function of the call's arguments: what it returns is the answer, what it raises
    (`ActorDied`, say) is raised at the caller. Casts need no answer.
    """

    _ids = itertools.count(1)  # no system's: those are larger

    def __init__(self, name: str = "fake", answers: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self.told: list[Told] = []
        self._answers = dict(answers or {})
        self._ref = Ref(next(self._ids), name, self)

    @property
    def ref(self) -> Any:
        """The reference, of whatever type is wanted."""
        return self._ref

    @property
    def asks(self) -> list[Told]:
        """What it was asked, answered or not."""
        return [told for told in self.told if not told.is_cast and not told.is_stream]

    @property
    def casts(self) -> list[Told]:
        """What it was told without being asked."""
        return [told for told in self.told if told.is_cast]

    @property
    def opened(self) -> list[Told]:
        """The streams of it that were opened."""
        return [told for told in self.told if told.is_stream]

    # What a reference needs of its node.

    def ask(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        self.told.append(Told(method, args, kwargs, is_cast=False))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer = self._answers.get(method)
        if answer is None:
            known = ", ".join(self._answers) or "none"
            raise LookupError(f"stand-in {ref!r} was asked for {method!r} and has no answer for it (it has: {known})")
        try:
            future.set_result(answer(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def tell(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.told.append(Told(method, args, kwargs, is_cast=True))
        if method in self._answers:
            self._answers[method](*args, **kwargs)

    async def tell_waiting(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tell(ref, method, args, kwargs)

    def open(self, ref: Ref, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamReader:
        """The answer's function returns the items."""
        self.told.append(Told(method, args, kwargs, is_cast=False, is_stream=True))
        if method not in self._answers:
            known = ", ".join(self._answers) or "none"
            raise LookupError(f"stand-in {ref!r} has no items for the stream {method!r} (it has answers for: {known})")
        items = list(self._answers[method](*args, **kwargs))

        def start(reader: StreamReader) -> int:
            reader.put(items, len(items) + 1, lambda _: None)
            reader.end(None, None)
            return 0

        return StreamReader(start, lambda _: None)
