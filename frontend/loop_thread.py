"""An event loop on a thread of its own, for synchronous callers. `LLM` owns one; nothing else runs on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ringcast.actors.forks import FORKED_TEXT, forget_tasks, tell_of_forks
from ringcast.actors.standard_streams import open_standard_streams
from ringcast.actors.system_calls import explain

from .errors import EngineNotReady, EngineStartFailed

T = TypeVar("T")


class LoopThread:
    """Runs coroutines to their end for callers on other threads. Works in notebooks: it needs no loop of theirs."""

    def __init__(self, name: str) -> None:
        open_standard_streams()  # a loop that gets one of their numbers aborts
        self._loop = _new_event_loop()
        self._ended_because = "the engine was closed"
        # A daemon: a program that ends without closing must not hang; the engine's processes end with ours.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise EngineStartFailed(explain(error)) from error
        tell_of_forks(self)

    def was_forked(self) -> None:
        """See `ringcast.actors.forks`: the thread is not here."""
        self._ended_because = FORKED_TEXT
        forget_tasks(self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. KeyboardInterrupt cancels it, waits for it to clean up, and goes on."""
        if not self._thread.is_alive():
            coroutine.close()
            raise EngineNotReady(f"{self._ended_because}: make a new one")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a synchronous call from the engine's own loop would wait for itself")
        ended = threading.Event()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(lambda _: ended.set())

        self._loop.call_soon_threadsafe(start)
        try:
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            ended.wait()
            raise
        return tasks[0].result()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last`` and end the thread. From the loop's own thread (a collected cycle may bring us there) it is only
        started, and the thread ends after it.
        """
        if threading.current_thread() is self._thread:
            self._loop.create_task(last).add_done_callback(lambda _: self._loop.stop())
            return
        try:
            self.run(last)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_tasks())
            self._loop.close()


async def _end_tasks() -> None:
    """Cancel what still runs and wait for it, as ``asyncio.run`` does."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
