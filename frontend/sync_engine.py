"""What the synchronous faces share: an `AsyncLLM` on an event loop in a thread of its own.

Needs no ``__main__`` guard: the engine's processes are started by the runtime and never import the program.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Self

from ringcast.actors.forks import tell_of_forks
from ringcast.scheduler.messages import SchedulerStatistics

from .async_llm import AsyncLLM
from .engine_args import EngineArgs
from .engine_client import Health, RingFigures
from .loop_thread import LoopThread
from .progress import download_progress
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer


class SyncEngine:
    """An engine that is ready when the constructor returns. Close it, or use ``with``, or let the program end."""

    def __init__(self, args: EngineArgs) -> None:
        """Errors are those of `AsyncLLM.start`."""
        with download_progress() as progress:
            self._open(AsyncLLM(args, progress=progress))

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> Self:
        """vLLM's way to make one: an engine from its arguments as a value."""
        with download_progress() as progress:
            return cls.from_async_llm(AsyncLLM(args, progress=progress))

    @classmethod
    def from_async_llm(cls, llm: AsyncLLM) -> Self:
        """Around an `AsyncLLM` that has not started: it starts on the new object's own loop."""
        made = cls.__new__(cls)
        made._open(llm)
        return made

    def _open(self, llm: AsyncLLM) -> None:
        self._llm = llm
        thread = self._thread = LoopThread(f"ringcast {type(self).__name__}")
        # Runs at `close`, when the object is forgotten, and at the end of the program, whichever comes first.
        self._finalizer = weakref.finalize(self, lambda: thread.close(llm.close()))
        tell_of_forks(self)
        try:
            self._thread.run(llm.start())
        except BaseException:
            self.close()
            raise

    def was_forked(self) -> None:
        """See `ringcast.actors.forks`: the engine is the parent's to close."""
        self._finalizer.detach()

    def close(self) -> None:
        """Stop the engine and its processes. Safe twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._llm.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used when a call gives none."""
        return self._llm.default_sampling_params()

    def health(self) -> Health:
        """The engine's state, now."""
        return self._llm.health()

    def statistics(self) -> SchedulerStatistics:
        """The scheduler's accounts."""
        return self._thread.run(self._llm.statistics())

    def ring_figures(self) -> RingFigures:
        """What went over the rings of all processes."""
        return self._thread.run(self._llm.ring_figures())
