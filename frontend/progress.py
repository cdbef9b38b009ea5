"""Progress bars on stderr, by rich, which is imported at the first step only. For the CLI and for `LLM`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .builtin_models import Progress

if TYPE_CHECKING:
    import rich.progress


class _Bars:
    """One bar per thing that goes on; they appear when they first move."""

    def __init__(self) -> None:
        self._progress: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def report(self, what: str, done: int, total: int) -> None:
        if self._progress is None:
            self._progress = _byte_bars()
            self._progress.start()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def download_progress() -> Iterator[Progress]:
    """A callback for downloads. Draws nothing until it is called."""
    bars = _Bars()
    try:
        yield bars.report
    finally:
        bars.close()


@contextmanager
def request_progress(total: int, show: bool) -> Iterator[Callable[[], None]]:
    """A callback for each of ``total`` requests that is done; a bar only if ``show`` and stderr is a terminal."""
    if not show or sys.stderr is None or sys.stderr.closed or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    with RichProgress(console=Console(stderr=True)) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda: progress.advance(task)


def _byte_bars() -> rich.progress.Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
    )
